"""Backbone, pooling and head with their preprocessing and a fingerprint: what is saved, loaded and served."""

import contextlib
import copy
import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sightline.data.dataset import ImageDataset, consecutive, load_batches, read_ahead
from sightline.data.transforms import Preprocessing, eval_transform
from sightline.errors import InputError
from sightline.files import copy_folder, read_json_object, recovered_folder, regular_file, replaced_folder
from sightline.models.backbones import (
    BUNDLED,
    FreezeBatchNorm,
    adapters,
    add_lora,
    batch_norms,
    colours_of,
    create_backbone,
    feature_map,
    has_class_token,
    has_own_pooling,
    merge_adapters,
    n_prefix_tokens,
    own_preprocessing,
)
from sightline.models.card import CARD_FILE, Account, ModelCard, download, is_hub_name, read_card, upload, write_card
from sightline.models.heads import FeatureNorm, Head, Whitening
from sightline.models.inference import AT_ONCE, WORTH_EXPORTING, Backend, open_backend, torch_backend
from sightline.models.pooling import POOLINGS
from sightline.models.quick_backward import quick_backward
from sightline.models.scorer_inputs import ScorerInputs, split_rows
from sightline.models.wrapped import ModuleSource, WrappedBackbone, as_preprocessing, module_source
from sightline.progress import html_table, tracked

FORMAT = 1
SETTINGS_FILE = "encoder.json"
WEIGHTS_FILE = "model.safetensors"
ICONS_SIDE = 96  # pixels: better than 64, at which the weights `icons` were trained, on validation classes of icons
MOST_DIMENSIONS = 65_536  # of vectors: a settings file that asks for more asks for the machine's memory
ImageInput = str | Path | Image.Image | NDArray[np.uint8]


class EncoderSettings(BaseModel):
    """Everything about an encoder but its weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    pooling: str
    embedding_dim: int | None = Field(ge=1, le=MOST_DIMENSIONS)
    freeze_batch_norm: FreezeBatchNorm
    preprocessing: Preprocessing
    feature_norm: FeatureNorm = "layer"
    whitening_dim: int | None = Field(default=None, ge=1, le=MOST_DIMENSIONS)
    module: ModuleSource | None = None  # of a wrapped module, whose name ``backbone`` then is

    def absent(self) -> dict[str, Any]:
        """What files and fingerprints leave out: keys that came later, where they have no effect."""
        without: dict[str, Any] = {key: True for key in ("whitening_dim", "module") if getattr(self, key) is None}
        return without | ({"preprocessing": {"interpolation"}} if self.preprocessing.interpolation == "bilinear" else {})


class Encoder(nn.Module):
    """Images to unit vectors: backbone, pooling, a norm, projection, L2 norm and, where one was fitted, a whitening.

    Make one with :meth:`create`, :meth:`wrap` or :meth:`from_pretrained`; ``card`` is the model card read by the last.
    """

    def __init__(self, settings: EncoderSettings, backbone: nn.Module, trust: bool = False) -> None:
        super().__init__()
        self.settings = settings
        self.card: ModelCard | None = None
        self.backbone = backbone
        if settings.pooling == "cls" and not has_class_token(backbone):
            raise InputError(f"pooling 'cls' needs a class token, backbone {settings.backbone!r} has none")
        own = getattr(backbone, "head_hidden_size", backbone.num_features)  # behind the backbone's own pooling
        self.n_channels = int(own if settings.pooling == "native" else backbone.num_features)  # type: ignore[arg-type]
        known = {"n_prefix_tokens": n_prefix_tokens(backbone), "n_channels": self.n_channels, "backbone": backbone}
        self.pooling = POOLINGS.create(settings.pooling, {}, trust=trust, **known)
        self._learning: frozenset[str] | None = None
        self.backend = "auto"  # what encodes, where a call does not say
        self._backends: dict[object, Any] = {}  # by name and threads, of the weights under "versions"
        self.head = Head(self.n_channels, settings.embedding_dim, settings.feature_norm, settings.whitening_dim)
        self.allow_gradients()
        # Channels beside each other in memory: three times as fast for EfficientNet-Lite0 on two cores.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def create(
        cls,
        backbone: str,
        embedding_dim: int | None = 512,
        pooling: str | None = None,
        weights: str | None = None,
        image_size: int | None = None,
        resize: int | None = None,
        freeze_batch_norm: FreezeBatchNorm = "stats",
        seed: int = 0,
        feature_norm: FeatureNorm = "layer",
        stretch: bool = False,
        trust: bool = False,
    ) -> "Encoder":
        """A new encoder; weights that come from no file are random, by the seed.

        Args:
            backbone: a timm model's name, or ``tiny``.
            embedding_dim: length of the vectors; None keeps the backbone's, without a projection.
            pooling: ``native``, ``avg``, ``max``, ``mean+max``, ``gem``, ``gem_frozen`` or ``cls``; or
                ``package.module:Name``. None for ``native`` where the backbone has an attention pool or a class token,
                ``gem`` elsewhere.
            weights: ``bundled``, ``icons`` (for drawings), ``hub``, a safetensors file, or None for random ones.
            image_size: side of the square images it sees, cut from the middle; None for size, resizing, cut and
                interpolation as the backbone was trained with.
            resize: length of the shorter side before that cut; None for 8/7 of ``image_size``.
            freeze_batch_norm: ``stats`` fixes running statistics in training, ``all`` its weights too, ``none`` nothing.
            seed: for random weights.
            feature_norm: of the pooled vector: ``layer``, ``l2`` or ``none``.
            stretch: bring both sides to ``resize``; the aspect is lost.
            trust: import and run a pooling that is named as ``package.module:Name``; otherwise it is refused.

        Example:
            >>> encoder = Encoder.create("tiny", embedding_dim=8, image_size=32)
            >>> encoder.encode([Image.new("RGB", (40, 30))]).shape
            (1, 8)
        """
        preprocessing = own_preprocessing(backbone)
        if image_size is not None or resize is not None:
            side = image_size or preprocessing.crop
            length = round(side * 8 / 7) if resize is None else resize
            if length < side:
                raise InputError(f"resize must be at least image_size, got {length} and {side}")
            preprocessing = Preprocessing(crop=side, resize=length, stretch=stretch, **colours_of(backbone))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = create_backbone(backbone, weights, preprocessing.crop)
            settings = EncoderSettings(
                backbone=backbone,
                pooling=pooling or ("native" if has_own_pooling(model) else "gem"),
                embedding_dim=embedding_dim,
                freeze_batch_norm=freeze_batch_norm,
                preprocessing=preprocessing,
                feature_norm=feature_norm,
            )
            encoder = cls(settings, model, trust)
        encoder._check_image_size()
        return encoder

    @classmethod
    def wrap(
        cls,
        module: nn.Module,
        preprocessing: Preprocessing | int | object,
        name: str | None = None,
        *,
        factory: str | Callable[..., nn.Module] | None = None,
        output: str | None = None,
        pooling: str | None = None,
        embedding_dim: int | None = None,
        freeze_batch_norm: FreezeBatchNorm = "stats",
        seed: int = 0,
    ) -> "Encoder":
        """An encoder around a module of your own, or a Hugging Face vision model; it shares the module's weights.

        It encodes, trains, indexes and serves like any other. To be saved it needs a factory that another process can
        import, and :meth:`from_pretrained` imports it only with ``trust=True``. A Hugging Face model, or a module whose
        class is importable and takes no arguments, is its own factory.

        Args:
            module: from (B, 3, H, W) images to (B, C) vectors, (B, C, H, W) maps or (B, T, C) tokens.
            preprocessing: of the images; or their side in pixels, with ImageNet's colours; or a Hugging Face image
                processor.
            name: what cards and galleries call it; default: the name of its class.
            factory: a function or class that makes the module without arguments, itself or as ``package.module:name``.
            output: the attribute or key of the module's output that holds the features; default: the output itself or, of
                a Hugging Face model, ``image_embeds``, ``last_hidden_state`` or ``pooler_output``, the first it has.
            pooling: see :meth:`create`; default: ``none`` for vectors, ``cls`` for tokens of which the first is no part of
                the image, ``avg`` otherwise.
            embedding_dim: dimensions of a projection added to it, after a LayerNorm; None keeps the module's vectors.
            freeze_batch_norm: see :meth:`create`.
            seed: random seed of the projection.

        Example:
            >>> encoder = Encoder.wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)), 8, name="linear")
            >>> encoder.encode([Image.new("RGB", (40, 30))]).shape
            (1, 5)
        """
        if not isinstance(module, nn.Module):
            raise InputError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        seen, was_training = as_preprocessing(preprocessing), module.training
        source = module_source(module, factory, output)
        backbone = WrappedBackbone(module, seen.crop, output)
        learning = [key for key, weight in backbone.named_parameters() if weight.requires_grad]
        tokens = "cls" if backbone.num_prefix_tokens else "avg"
        settings = EncoderSettings(
            backbone=name or type(module).__name__,
            pooling=pooling or {2: "none", 3: tokens, 4: "avg"}[backbone.n_axes],
            embedding_dim=embedding_dim,
            freeze_batch_norm=freeze_batch_norm,
            preprocessing=seen,
            feature_norm="none" if embedding_dim is None else "layer",
            module=source,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            encoder = cls(settings, backbone)
        encoder._check_image_size()
        encoder.learn_only(learning)  # what the user has frozen stays frozen
        return encoder.train(was_training)

    def _check_image_size(self) -> None:
        """Refuse an image size that the backbone cannot take, as most transformers take one alone."""
        name, side = self.settings.backbone, self.settings.preprocessing.crop
        try:
            with torch.inference_mode():
                self.eval()(torch.zeros(1, 3, side, side, device=self.device))
        except (AssertionError, RuntimeError) as error:
            raise InputError(f"backbone {name!r} takes no images of {side} x {side} pixels: {error}") from error
        self.train()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.settings.whitening_dim or self.settings.embedding_dim or self.n_channels

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths of the parts of a row of its results: the vector alone."""
        return (self.dim,)

    @property
    def has_feature_maps(self) -> bool:
        """Whether its backbone returns maps or tokens, not vectors."""
        return getattr(self.backbone, "n_axes", 4) > 2

    def forward(self, images: Tensor) -> Tensor:
        """(B, D) unit vectors of (B, 3, H, W) normalised images."""
        return self.head(self.pooled(images))  # type: ignore[no-any-return]

    def pooled(self, images: Tensor) -> Tensor:
        """(B, C) what the head is given of (B, 3, H, W) normalised images."""
        images = images.contiguous(memory_format=torch.channels_last)
        with quick_backward(images):
            return self.pooling(feature_map(self.backbone, images))  # type: ignore[no-any-return]

    def feature_maps(self, images: Tensor) -> Tensor:
        """(B, C, H, W), or (B, T, C) tokens of the image alone, of (B, 3, H, W) normalised images."""
        return self.maps(images)[1]

    def _without_prefix(self, maps: Tensor) -> Tensor:
        if maps.ndim == 2:
            raise InputError(f"backbone {self.settings.backbone!r} has no feature maps: its module returns vectors")
        return maps if maps.ndim == 4 else maps[:, n_prefix_tokens(self.backbone) :]

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What the backbone returns of (B, 3, H, W) normalised images, for the pooling; and that of the image alone."""
        maps = feature_map(self.backbone, images.contiguous(memory_format=torch.channels_last))
        return maps, self._without_prefix(maps)

    def train(self, mode: bool = True) -> "Encoder":
        """As for any module, except that frozen batch norms keep their running statistics."""
        super().train(mode)
        if mode and self.settings.freeze_batch_norm != "none":
            for layer in batch_norms(self.backbone):
                layer.eval()
        return self

    def allow_gradients(self, backbone: bool = True) -> None:
        """Make the backbone trainable or freeze it: its adapters alone if it has some, else what :meth:`learn_only` named.

        Batch norms that are frozen altogether stay frozen.
        """
        has_adapters = bool(adapters(self.backbone))
        for name, weight in self.backbone.named_parameters():
            chosen = "lora_" in name if has_adapters else self._learning is None or name in self._learning
            weight.requires_grad_(backbone and chosen)
        if self.settings.freeze_batch_norm == "all":
            for layer in batch_norms(self.backbone):
                layer.requires_grad_(False)

    def learn_only(self, names: Collection[str], pooling: bool = True) -> None:
        """Train only these weights of the backbone; the head is trained in any case.

        Args:
            names: of weights, as the backbone has them.
            pooling: whether to train the pooling.
        """
        self._learning = frozenset(names)
        self.pooling.requires_grad_(pooling)
        self.allow_gradients()

    def add_lora(self, rank: int = 8, seed: int = 0) -> None:
        """Train the backbone by LoRA adapters alone; they are merged into its weights when it is saved."""
        add_lora(self.backbone, rank, seed)
        self.allow_gradients()

    def whitened(self, whitening: Whitening) -> "Encoder":
        """A copy that whitens its vectors; another encoder, by its fingerprint.

        Args:
            whitening: fitted on vectors of this encoder.
        """
        if self.head.whitening is not None:
            raise InputError("the encoder already whitens its vectors: fit on the encoder without whitening")
        out_dim, in_dim = whitening.weight.shape
        if in_dim != self.dim:
            raise InputError(f"whitening: fitted on {in_dim} dimensions, the encoder has {self.dim}")
        encoder = copy.deepcopy(self)
        encoder.settings = self.settings.model_copy(update={"whitening_dim": out_dim})
        encoder.head.whitening = copy.deepcopy(whitening).to(self.device)
        return encoder

    def _repr_html_(self) -> str:
        settings = self.settings
        seen, factory = settings.preprocessing, settings.module and settings.module.factory
        n_learn = sum(weight.numel() for weight in self.parameters() if weight.requires_grad)
        rows = {
            "backbone": settings.backbone + (f" ({factory})" if factory else ""),
            "pooling": settings.pooling,
            "vectors": f"{self.dim} dimensions{', whitened' if settings.whitening_dim else ''}",
            "images": f"{seen.crop} x {seen.crop} pixels, from {seen.resize}{' stretched' if seen.stretch else ''}",
            "weights": f"{sum(weight.numel() for weight in self.parameters()):,}, {n_learn:,} of them trainable",
            "device": str(self.device),
        }
        return html_table([["Encoder", ""], *rows.items()])

    def fingerprint(self) -> str:
        """A name for what the encoder computes: a hash of its weights and settings, 32 hexadecimal digits."""
        exclude = {"freeze_batch_norm": True} | self.settings.absent()
        return state_hash(self.state_dict(), self.settings.model_dump_json(exclude=exclude))

    def encode(
        self,
        images: Sequence[ImageInput],
        batch_size: int = 64,
        n_workers: int = 0,
        show_progress: bool = False,
        backend: str | None = None,
    ) -> NDArray[np.float32]:
        """One unit vector for each image, in the order given.

        Args:
            images: paths, PIL images, or uint8 arrays of shape (H, W), (H, W, 3) or (H, W, 4).
            batch_size: images in one pass through the model.
            n_workers: processes that read images ahead; 0 reads them in threads.
            show_progress: draw a progress bar.
            backend: what computes, by the names of :func:`~sightline.models.inference.open_backend`. None for the encoder's
                own attribute ``backend``.

        Returns:
            (N, D) float32.
        """
        dataset = ImageDataset(_opened_images(images), eval_transform(self.settings.preprocessing))
        return self.encode_dataset(dataset, batch_size, n_workers, show_progress, backend)

    def encode_dataset(
        self,
        dataset: ImageDataset,
        batch_size: int = 64,
        n_workers: int = 0,
        show_progress: bool = False,
        backend: str | None = None,
        pooled: bool = False,
        broken: dict[int, str] | None = None,
        scorer_inputs: bool = False,
    ) -> NDArray[np.float32]:
        """One unit vector for each item of a data set, or with ``pooled`` (N, C) what the head is given of it, by torch.

        See :meth:`encode`. With ``scorer_inputs``, the rows of :class:`~sightline.models.scorer_inputs.ScorerInputs`. With
        ``broken``, which receives the places of images that cannot be read, and why, their rows are without meaning.
        """
        n_images = len(dataset)
        network = ScorerInputs(self) if scorer_inputs else self
        vectors = np.empty((n_images, self.n_channels if pooled else sum(network.widths)), np.float32)
        if was_training := self.training:  # asked, as it goes through every layer
            self.eval()
        try:
            name = backend or self.backend
            # Of a single image all cores compute the vector.
            by_thread = not n_workers and n_images > 1
            by = torch_backend(self, self.pooled) if pooled else self._opened(network, name, n_images, by_thread)
            part = min(AT_ONCE, -(-n_images // torch.get_num_threads())) if by.by_thread else batch_size
            batches = consecutive(n_images, min(batch_size, max(1, part)))
            found: Iterator[tuple[Sequence[int], NDArray[np.float32]]]
            if by.by_thread:
                found = read_ahead(dataset, batches, by.run, broken)
            elif n_workers == 0:
                reading = read_ahead(dataset, batches, Tensor.detach, broken)
                found = ((places, by.run(pixels)) for places, pixels in reading)
            else:
                loaded = load_batches(dataset, batches, n_workers, finish=False, broken=broken)
                found = ((batch.places.tolist(), by.run(batch.images)) for batch in loaded)
            for places, of_batch in tracked(found, "Embedding", len(batches), show_progress):
                vectors[places] = of_batch
        finally:
            if was_training:
                self.train()
        return vectors

    def scorer_inputs(
        self,
        images: Sequence[ImageInput],
        batch_size: int = 64,
        n_workers: int = 0,
        show_progress: bool = False,
        backend: str | None = None,
    ) -> dict[str, NDArray[np.float32]]:
        """What scorers of :mod:`sightline.ood` take, of each image, by name; computed in one pass.

        Args:
            images: all arguments are those of :meth:`encode`.
            batch_size: images in one pass through the model.
            n_workers: processes that read images ahead; 0 reads them in threads.
            show_progress: draw a progress bar.
            backend: what computes.

        Returns:
            ``vectors`` (N, D); ``features`` (N, C), what the head is given, before its projection; and ``feature maps``
            (N, C), of which the deviation of each channel over positions is all that ``gmm_std`` reads.
        """
        dataset = ImageDataset(_opened_images(images), eval_transform(self.settings.preprocessing))
        rows = self.encode_dataset(dataset, batch_size, n_workers, show_progress, backend, scorer_inputs=True)
        return split_rows(rows, ScorerInputs(self).widths)

    def _opened(self, network: "Encoder | ScorerInputs", name: str, n_images: int, by_thread: bool) -> Backend:
        """The backend by that name, of the encoder or with inputs of scorers.

        It is kept as long as no weight changes, so that single queries need not wait for it.
        """
        versions = tuple((tensor.data_ptr(), tensor._version) for tensor in (*self.parameters(), *self.buffers()))
        if self._backends.get("versions") != versions:
            self._backends = {"versions": versions}
        differs = (n_images >= WORTH_EXPORTING, by_thread) if name in ("auto", "onnx") else ()
        key = (name, torch.get_num_threads(), differs, type(network))
        if key not in self._backends:
            self._backends[key] = open_backend(network, name, n_images, by_thread)
        return self._backends[key]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_backends": {}}  # a copy, or another process, opens its own

    def save_pretrained(self, folder: Path | str, account: Account | None = None) -> Path:
        """Write the encoder and its model card to a folder of three files, which appears complete or not at all.

        An encoder that is there already is replaced, but a rejector of the same encoder in its folder is kept; any other
        folder with something in it is refused.

        Args:
            folder: where to.
            account: what the card says about data, training and metrics; None for that of ``card`` if it has the
                fingerprint of this encoder, else nothing.
        """
        if adapters(self.backbone):
            merged = copy.deepcopy(self)
            merge_adapters(merged.backbone)
            return merged.save_pretrained(folder, account)
        source, folder = self.settings.module, Path(folder)
        if source is not None and source.factory is None:
            raise InputError(
                f"encoder {self.settings.backbone!r} cannot be saved: another process must be able to make the module; "
                "put what makes it into a .py file and give Encoder.wrap(..., factory='my_module:make_model')"
            )
        with replaced_folder(folder, SETTINGS_FILE, "an encoder") as new:
            save_file(_separate(self.state_dict()), new / WEIGHTS_FILE)
            card = self.described(folder.resolve().name, account)
            # Without ``module`` where there is none; ``whitening_dim`` has always been written.
            settings = self.settings.model_dump(exclude=self.settings.absent() | {"whitening_dim": False})
            described = {"format": FORMAT, "fingerprint": card.fingerprint, **settings}
            (new / SETTINGS_FILE).write_text(json.dumps(described, indent=2) + "\n")
            write_card(new, card)
            _keep_rejector(folder, new, card.fingerprint)
        return folder

    def described(self, name: str, account: Account | None = None) -> ModelCard:
        """The card under that name; see :meth:`save_pretrained`."""
        fingerprint = self.fingerprint()
        if account is None:
            account = self.card if self.card is not None and self.card.fingerprint == fingerprint else Account()
        return ModelCard(
            name=name,
            fingerprint=fingerprint,
            backbone=self.settings.backbone,
            pooling=self.settings.pooling,
            dim=self.dim,
            is_whitened=self.settings.whitening_dim is not None,
            factory=None if self.settings.module is None else self.settings.module.factory,
            preprocessing=self.settings.preprocessing,
            **{key: getattr(account, key) for key in Account.model_fields},
        )

    def push_to_hub(
        self, name: str, private: bool | None = None, revision: str | None = None, message: str = "Encoder"
    ) -> str:
        """Upload what :meth:`save_pretrained` writes; see :func:`~sightline.models.card.upload`.

        Returns:
            The commit's address.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.save_pretrained(Path(scratch) / "encoder")
            write_card(folder, read_card(folder).model_copy(update={"name": name}))
            return upload(folder, name, private, revision, message)

    @classmethod
    def from_pretrained(cls, folder: Path | str, revision: str | None = None, trust: bool = False) -> "Encoder":
        """The encoder that :meth:`save_pretrained` wrote there or :meth:`push_to_hub` uploaded, or a pretrained one.

        Args:
            folder: a folder. Where there is no such folder: ``bundled`` for the pretrained encoder that needs no network;
                ``icons`` for the one trained further on drawings; ``timm:NAME`` for a timm model with its weights from the
                hub, as it was trained; or ``owner/name`` on a hub, as a string.
            revision: of a hub's: branch, tag or commit; None for ``main``.
            trust: import and run the factory of a wrapped module, or a pooling that the encoder names as
                ``package.module:Name``; otherwise they are refused.
        """
        hub_name, folder = folder, recovered_folder(Path(folder))
        root = folder
        if (stock := _stock_model(str(hub_name))) and not folder.exists():
            backbone, weights, side = stock
            return cls.create(backbone, None, "native", weights, side, side, feature_norm="none").eval()
        if revision is not None and folder.exists():
            raise InputError(f"{folder}: revision is for a hub, and this is a folder; got revision {revision!r}")
        if is_hub_name(hub_name) and not folder.exists():
            folder = download(str(hub_name), (SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE), revision)
            root = folder.parents[1]  # whose snapshots are links to its blobs
        for name in (SETTINGS_FILE, WEIGHTS_FILE):
            if not (folder / name).exists():
                raise InputError(f"{folder}: not an encoder folder: it has no {name}")
            regular_file(folder / name, root)
        described = read_json_object(folder / SETTINGS_FILE)
        found, fingerprint = described.pop("format", None), described.pop("fingerprint", None)
        if found != FORMAT:
            raise InputError(f"{folder}: an encoder of format {found!r}; this version of Sightline reads {FORMAT}")
        try:
            settings = EncoderSettings.model_validate(described)
            with torch.random.fork_rng():  # the weights drawn here are replaced
                encoder = cls(settings, _create_backbone(settings, trust), trust)
        except InputError as error:
            raise InputError(f"{folder / SETTINGS_FILE}: {error}") from error
        except (TypeError, ValueError, RuntimeError) as error:  # not these keys, or values that no encoder has
            raise InputError(f"{folder / SETTINGS_FILE}: not an encoder's settings: {error}") from error
        try:
            encoder.load_state_dict(load_file(folder / WEIGHTS_FILE))
        except (SafetensorError, RuntimeError) as error:
            raise InputError(f"{folder / WEIGHTS_FILE}: not the weights of this encoder: {error}") from error
        if encoder.fingerprint() != fingerprint:
            raise InputError(f"{folder}: weights or settings were changed: the fingerprint is not {fingerprint}")
        with contextlib.suppress(InputError, FileNotFoundError):  # none, or one that somebody else wrote
            regular_file(folder / CARD_FILE, root)
            encoder.card = read_card(folder)
        return encoder.eval()


def check_encoder(encoder: object) -> None:
    """Refuse anything but an encoder."""
    if not isinstance(encoder, Encoder):
        hint = "; Encoder.from_pretrained reads a folder" if isinstance(encoder, str | Path) else ""
        raise InputError(f"encoder must be an Encoder, got {type(encoder).__name__}{hint}; Encoder.wrap wraps any module")


def _stock_model(name: str) -> tuple[str, str, int | None] | None:
    """The timm model that ``bundled``, ``icons`` or ``timm:NAME`` stand for, its weights and image size; else None."""
    kind, _, model = name.partition(":")
    if kind == "timm" and model:
        return model, "hub", None
    return {"bundled": (BUNDLED, "bundled", None), "icons": (BUNDLED, "icons", ICONS_SIDE)}.get(name)


def _create_backbone(settings: EncoderSettings, trust: bool) -> nn.Module:
    """The backbone that the settings name, with random weights."""
    if settings.module is None:
        return create_backbone(settings.backbone, side=settings.preprocessing.crop)
    return WrappedBackbone(settings.module.create(trust), settings.preprocessing.crop, settings.module.output)


def _separate(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, contiguous, and those that share memory with an earlier one copied: safetensors refuses them."""
    seen: set[int] = set()
    found = {}
    for name, tensor in state.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return found


def state_hash(state: dict[str, Tensor], settings: str = "") -> str:
    """A hash of named tensors and a text, 32 hexadecimal digits."""
    digest = hashlib.sha256(settings.encode())
    for name, tensor in sorted(state.items()):
        if not name.endswith("num_batches_tracked"):  # counts training batches; no vector depends on it
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _keep_rejector(old: Path, new: Path, fingerprint: str) -> None:
    file = old / "rejector" / "rejector.json"
    with contextlib.suppress(FileNotFoundError):
        if read_json_object(file, old).get("fingerprint") == fingerprint:
            copy_folder(file.parent, new / "rejector")


def _is_picture(array: NDArray[np.generic]) -> bool:
    return array.ndim == 3 and array.shape[2] in (3, 4)


def _opened_images(images: Sequence[ImageInput]) -> list[Path | Image.Image]:
    if isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and _is_picture(images)):
        raise InputError(f"encode takes a list of images, got a single {type(images).__name__}")
    return [_as_source(image, place) for place, image in enumerate(images)]


def _as_source(image: ImageInput, place: int) -> Path | Image.Image:
    if isinstance(image, str | Path):
        return Path(image)
    if isinstance(image, Image.Image):
        return image
    array = np.asarray(image)
    if array.dtype != np.uint8 or 0 in array.shape or not (array.ndim == 2 or _is_picture(array)):
        raise InputError(f"image {place} must be uint8 (H, W), (H, W, 3) or (H, W, 4), got {array.dtype} {array.shape}")
    return Image.fromarray(array)
