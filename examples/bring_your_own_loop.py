# %% [markdown]
# # Bring your own PyTorch loop
#
# Sightline's losses are modules that take embeddings and labels. Whatever trains your model today, one line changes:
#
#     python examples/bring_your_own_loop.py photos/
#
# Three loops, the same loss: plain torch, pytorch-metric-learning's call style, a Hugging Face `Trainer`.

# %%
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils import common_functions
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import sightline as sl

# %% [markdown]
# ## Data
# Any data set of images and labels will do. A ranking loss needs batches in which images have a partner of their class:
# `MPerClassSampler`, or a sampler of Sightline's.


# %%
class Labelled(Dataset[tuple[Tensor, Tensor]]):
    """The images of a manifest, augmented for training, with their labels: one a level, finest first."""

    def __init__(self, manifest: sl.Manifest, encoder: sl.Encoder) -> None:
        self.paths, self.preprocessing = manifest.paths(), encoder.settings.preprocessing
        self.labels = torch.from_numpy(manifest.labels())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        side, margin = self.preprocessing.crop, self.preprocessing.crop // 4
        image = Image.open(self.paths[index]).convert("RGB").resize((side + margin, side + margin))
        left, top = torch.randint(margin + 1, (2,)).tolist()
        return self.preprocessing.to_tensor(image.crop((left, top, left + side, top + side))), self.labels[index]


def sampler_of(data: Labelled, batch_size: int) -> MPerClassSampler:
    """Batches of four images a class, the same in every run: the library draws from where this name points."""
    common_functions.NUMPY_RANDOM = np.random.default_rng(0)
    return MPerClassSampler(data.labels[:, 0], m=4, batch_size=batch_size, length_before_new_iter=len(data))


# %% [markdown]
# ## Plain torch, in ten lines


# %%
def plain_torch(encoder: sl.Encoder, data: Labelled, epochs: int, batch_size: int, lr: float) -> None:
    """Train the encoder where it is."""
    loader = DataLoader(data, batch_size, sampler=sampler_of(data, batch_size), drop_last=True)
    loss = sl.create_loss("roadmap")
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr)
    encoder.train()
    for _ in range(epochs):
        for images, labels in loader:
            value = loss(encoder(images), labels[:, 0])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


# %% [markdown]
# ## pytorch-metric-learning's call style
# The loss stands where one of theirs stood, `ref_emb` and `ref_labels` included: here the batch also ranks the embeddings
# of the batch before it, as a memory would.


# %%
def in_their_style(encoder: sl.Encoder, data: Labelled, epochs: int, batch_size: int, lr: float) -> None:
    """Train the encoder where it is; was: ``loss_func = losses.FastAPLoss()``."""
    loader = DataLoader(data, batch_size, sampler=sampler_of(data, batch_size), drop_last=True)
    loss_func = sl.create_loss("sup_ap")
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr)
    encoder.train()
    for _ in range(epochs):
        before: tuple[Tensor, Tensor] | None = None
        for images, levels in loader:
            embeddings, labels = encoder(images), levels[:, 0]
            loss = loss_func(embeddings, labels)
            if before is not None:
                loss = loss + loss_func(embeddings, labels, ref_emb=before[0], ref_labels=before[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before = embeddings.detach(), labels


# %% [markdown]
# ## Inside a Hugging Face `Trainer`
# A `Trainer` wants a model that returns its loss. All levels of the labels go in: `happier` ranks images of the same class
# first, then those that share an ancestor. It has a vector for each class, which learns too: it is a part of the model.


# %%
class WithLoss(nn.Module):
    """An encoder that returns its loss, as a ``Trainer`` expects."""

    def __init__(self, encoder: sl.Encoder, loss: nn.Module) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        embeddings = self.encoder(pixel_values)
        return {"loss": self.loss(embeddings, labels), "embeddings": embeddings}


def with_trainer(encoder: sl.Encoder, data: Labelled, epochs: int, batch_size: int, lr: float) -> None:
    """Train the encoder where it is; needs ``transformers`` and ``accelerate``."""
    from transformers import Trainer, TrainingArguments

    class OfClasses(Trainer):
        def _get_train_sampler(self, train_dataset: Dataset | None = None) -> MPerClassSampler:
            return sampler_of(data, batch_size)

    def collate(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        images, labels = zip(*items, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.stack(labels)}

    n_classes = int(data.labels[:, 0].max()) + 1
    loss = sl.create_loss("happier", n_classes=n_classes, embedding_dim=encoder.dim)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=batch_size,
            learning_rate=lr,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        OfClasses(WithLoss(encoder, loss), settings, data_collator=collate, train_dataset=data).train()


# %% [markdown]
# ## All three
# What was trained is an `Encoder`: it is saved, evaluated and searched with like any other.


# %%
WAYS = {"plain torch": plain_torch, "their style": in_their_style, "Trainer": with_trainer}


def main(
    folder: Path,
    backbone: str = "tf_efficientnet_lite0",
    weights: str | None = "bundled",
    image_size: int = 96,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 1e-4,
) -> dict[str, sl.Result]:
    """What each way makes of the same encoder: results on the images of the folder, and of the encoder before."""
    manifest = sl.read_manifest(folder)
    results = {}
    for name, train in {"before": None, **WAYS}.items():
        torch.manual_seed(0)
        encoder = sl.Encoder.create(backbone, 128, weights=weights, image_size=image_size)
        if train is not None:
            train(encoder, Labelled(manifest, encoder), epochs, batch_size, lr)
        results[name] = sl.evaluate_table(sl.embed_manifest(encoder.eval(), manifest))
        print(f"{name}: R@1 {results[name]['recall@1']:.3f}, mAP@R {results[name]['map@r']:.3f}")  # noqa: T201
    return results


if __name__ == "__main__":
    main(Path(sys.argv[1]))
