"""The loss of a training step: on a batch and, with a memory, on earlier embeddings; its state is in buffers."""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.blocks import check_blocks, loss_in_blocks
from sightline.losses.state import fit_buffers, identify_batch, keeps_batches
from sightline.losses.sums import named_terms, takes_references, terms_of
from sightline.training.distributed import gathered
from sightline.training.large_batch import Examples, as_they_are, chunk_bounds
from sightline.training.recipe import Recipe

PROXY_STEP = 0.1  # towards the mean of a batch: a running mean over about ten batches of the class


class CrossBatchMemory(nn.Module):
    """The latest embeddings of training images, with labels and ids (cross-batch memory, XBM).

    A queue of fixed length: new items replace the oldest. It holds an image once: a new embedding replaces the older one.
    :meth:`references` leaves out the images of a batch, so no item is compared with its own older embedding; the items of
    the batch are compared with each other in the loss of the batch.

    Args:
        size: largest number of items.
        dim: length of an embedding.
        n_levels: label levels.

    Example:
        >>> memory = CrossBatchMemory(size=3, dim=2, n_levels=1)
        >>> memory.push(torch.eye(2), torch.tensor([[5], [6]]), torch.tensor([10, 11]))
        >>> memory.push(torch.ones(2, 2), torch.tensor([[5], [7]]), torch.tensor([10, 12]))
        >>> memory.references(torch.tensor([12]))[1].flatten().tolist()
        [6, 5]
    """

    rows: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(self, size: int, dim: int, n_levels: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("rows", torch.zeros(0, dim))
        self.register_buffer("labels", torch.zeros(0, n_levels, dtype=torch.int64))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(fit_buffers)  # type: ignore[no-untyped-call]

    def push(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Add items, newest last, and drop the oldest."""
        # Which to keep is asked once: on a GPU every index of unknown length is waited for.
        newest = ~(ids[:, None] == ids).triu(1).any(1)
        kept = torch.cat([~torch.isin(self.ids, ids), newest]).nonzero()[-self.size :, 0]
        table = labels if labels.ndim == 2 else labels[:, None]
        self.rows = torch.cat([self.rows, embeddings.detach().to(self.rows)])[kept]
        self.labels = torch.cat([self.labels, table])[kept]
        self.ids = torch.cat([self.ids, ids])[kept]

    def references(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the items, without the images with these ids."""
        others = (~torch.isin(self.ids, ids)).nonzero()[:, 0]
        return self.rows[others], self.labels[others]


class MomentumEncoder(nn.Module):
    """A running mean of an encoder's weights, which embeds images for the memory (momentum encoder, MoCo).

    The latest embeddings of an encoder that learns come from as many encoders as there were steps; items that moved apart
    for no other reason are out of order. The mean of the weights moves slowly, so that its embeddings can be compared.

    Args:
        encoder: is copied.
        momentum: share of the mean that a step keeps, in (0, 1).

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> mean = MomentumEncoder(layer, momentum=0.75)
        >>> _ = nn.init.constant_(mean.encoder.weight, 1.0), nn.init.constant_(layer.weight, 5.0)
        >>> mean.follow(layer)
        >>> mean.encoder.weight.item()
        2.0
    """

    def __init__(self, encoder: nn.Module, momentum: float) -> None:
        super().__init__()
        self.encoder, self.momentum = copy.deepcopy(encoder).requires_grad_(False).eval(), momentum

    @torch.no_grad()
    def follow(self, encoder: nn.Module) -> None:
        """Move the mean towards the encoder's weights; buffers, such as statistics of batch norm, are copied."""
        for mean, weight in zip(self.encoder.parameters(), encoder.parameters(), strict=True):
            mean.lerp_(weight.to(mean), 1 - self.momentum)
        for copied, buffer in zip(self.encoder.buffers(), encoder.buffers(), strict=True):
            copied.copy_(buffer)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.encoder(images)
        return embeddings


class BatchLoss(nn.Module):
    """A loss on (embeddings, labels, ids) of the whole batch, with an optional memory.

    From step ``start`` on, the loss with a memory is a weighted sum of the loss on the batch and the loss against the
    memory, which fills from the first step. If ``joined``, each item of the batch ranks the rest of the batch and all other
    images of the memory in one list; items of the batch carry a gradient, as queries and as items.

    The memory holds the embeddings that the loss was called on. With ``momentum``, :func:`remember` fills it instead, by
    the encoder that :meth:`start_keys` creates.

    Args:
        loss: must take a reference set if there is a memory.
        memory: earlier embeddings; None for none.
        start: first step in which the loss uses the memory.
        share: weight of the loss against the memory, in [0, 1].
        joined: rank batch and memory as one list.
        followers: proxies that are running means instead of learned weights; one row for each finest class.
        queries_at_once: rows of scores held in memory; None for all. Without a memory only.
        momentum: of the encoder that fills the memory; 0 for none.

    Attributes:
        keys: the momentum encoder; None without one.
        terms: terms of the last call; with a memory ``batch`` and, once it is used, ``memory``: see
            :mod:`sightline.losses.sums`.
    """

    n_steps: Tensor

    def __init__(
        self,
        loss: nn.Module,
        memory: CrossBatchMemory | None = None,
        start: int = 0,
        share: float = 0.5,
        joined: bool = False,
        followers: Sequence[nn.Parameter] = (),
        queries_at_once: int | None = None,
        momentum: float = 0.0,
    ) -> None:
        super().__init__()
        self.queries_at_once, self.momentum = queries_at_once, momentum
        self.keys: MomentumEncoder | None = None
        self.loss, self.memory, self.start, self.share, self.joined = loss, memory, start, share, joined
        self.followers = [proxies.requires_grad_(False) for proxies in followers]
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64), persistent=memory is not None)
        self.terms: dict[str, Tensor] = {}

    def forward(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        identify_batch(self.loss, ids)
        value = self._value(embeddings, labels, ids)
        if self.training and self.followers:
            self.move_proxies(embeddings, labels)
        return value

    def start_keys(self, encoder: nn.Module) -> None:
        """Copy the encoder, as it is before training, if the memory has a momentum."""
        if self.momentum:
            self.keys = MomentumEncoder(encoder, self.momentum)

    @torch.no_grad()
    def move_proxies(self, embeddings: Tensor, labels: Tensor, step: float = PROXY_STEP) -> None:
        """Move the proxies of the classes in the batch by ``step`` towards the mean embedding of their class."""
        classes, places = (labels if labels.ndim == 1 else labels[:, 0]).unique(return_inverse=True)
        for proxies in self.followers:
            sums = proxies.new_zeros(len(classes), proxies.shape[1])
            sums.index_add_(0, places, F.normalize(embeddings.detach().to(proxies)))
            proxies[classes] = torch.lerp(F.normalize(proxies[classes]), F.normalize(sums), step)

    def _value(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        value: Tensor
        if self.queries_at_once is not None:
            value, self.terms = loss_in_blocks(self.loss, embeddings, labels, self.queries_at_once)
            return value
        if self.memory is None:
            value = self.loss(embeddings, labels)
            self.terms = terms_of(self.loss)
            return value
        references, ref_labels = self.memory.references(ids)
        references, ref_labels = references.to(embeddings), ref_labels if labels.ndim == 2 else ref_labels[:, 0]
        if self.joined:
            both = {"ref_emb": torch.cat([embeddings, references]), "ref_labels": torch.cat([labels, ref_labels])}
            value = self.loss(embeddings, labels, **both)
            self.terms = terms_of(self.loss)
        else:
            value = self._weighted(embeddings, labels, references, ref_labels)
        if self.training:
            if self.keys is None:
                self.memory.push(embeddings, labels, ids)
            self.n_steps = self.n_steps + 1
        return value

    def _weighted(self, embeddings: Tensor, labels: Tensor, references: Tensor, ref_labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels)
        self.terms = named_terms("batch", self.loss, value)
        if len(references) and (not self.start or int(self.n_steps) >= self.start):
            against: Tensor = self.loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
            self.terms |= named_terms("memory", self.loss, against)
            value = (1 - self.share) * value + self.share * against
        return value


def add_memory(loss: nn.Module, recipe: Recipe, n_images: int, shape: tuple[int, int], n_batches: int) -> BatchLoss:
    """The loss with the recipe's memory; raises InputError if the loss cannot use one.

    Args:
        loss: the recipe's loss.
        recipe: the recipe of the run.
        n_images: number of training images.
        shape: dimensions of an embedding, and label levels.
        n_batches: batches per epoch.
    """
    section, name, reference = recipe.memory, recipe.loss.name, recipe.loss.reference
    is_whole_set = reference != "batch"
    followers = _following_proxies(loss, name) if recipe.loss.proxies == "means" else ()
    if is_whole_set and section.size is not None:
        raise InputError(f"memory.size and loss.reference={reference!r} exclude each other; remove one")
    size, key = ("all", "loss.reference") if is_whole_set else (section.size, "memory.size")
    if recipe.loss.queries_at_once is not None:
        check_blocks(loss)
        if size is not None:
            raise InputError(f"loss.queries_at_once and {key} exclude each other; remove one")
    if size is None:
        if section.momentum is not None:
            raise InputError("memory.momentum needs a memory: set memory.size or loss.reference='train', or remove the key")
        return BatchLoss(loss, followers=followers, queries_at_once=recipe.loss.queries_at_once)
    if not takes_references(loss):
        raise InputError(f"{key}: loss {name!r} takes no reference set; choose another loss, or remove the key")
    if keeps_batches(loss):
        raise InputError(f"{key}: loss {name!r} keeps earlier batches itself; remove the key, or set loss.memory=0")
    momentum = section.momentum
    if momentum is None:
        momentum = 1 - 1 / n_batches if is_whole_set else 0.0
    if momentum and recipe.strategy == "fsdp":
        raise InputError(
            f"{key}: a momentum encoder needs whole weights, and strategy=fsdp shards them; set memory.momentum=0 or "
            "strategy=ddp"
        )
    memory = CrossBatchMemory(n_images if size == "all" else size, *shape)
    start = section.start_epoch * n_batches
    return BatchLoss(loss, memory, start, section.share, reference == "train", followers, momentum=momentum)


def remember(
    fabric: Fabric,
    loss: BatchLoss,
    learner: nn.Module,
    batch: Examples,
    chunk_size: int | None = None,
    finished: Callable[[Tensor], Tensor] = as_they_are,
) -> None:
    """After a step, move the momentum encoder of a loss and add its embeddings of the batch to the memory.

    Does nothing for a loss without a momentum encoder.

    Args:
        fabric: devices and precision.
        loss: with the memory.
        learner: after the step.
        batch: this process's part of it; the memory gets the whole.
        chunk_size: images per forward pass; None for one pass.
        finished: converts loaded images to what the learner takes.
    """
    if loss.keys is None or loss.memory is None:
        return
    loss.keys.follow(learner)
    bounds = chunk_bounds(len(batch.images), chunk_size)
    with fabric.autocast():
        rows = torch.cat([loss.keys(finished(batch.images[start:stop])) for start, stop in bounds])
    loss.memory.push(gathered(rows), gathered(batch.labels), gathered(batch.ids))


def _following_proxies(loss: nn.Module, name: str) -> list[nn.Parameter]:
    """The proxies of a loss; raises InputError if there are none, or if they are not those of the finest classes."""
    found = [weight for path, weight in loss.named_parameters() if path.split(".")[-1] == "proxies"]
    if not found or any(isinstance(part, nn.ModuleList) for part in loss.modules()):
        raise InputError(
            f"loss.proxies='means': loss {name!r} has no proxies of the finest classes; use loss.proxies=learned"
        )
    return found
