"""Train a small residual network on CIFAR-10, for the out-of-distribution receipts.

`python benchmarks/ood_networks.py --images cifar --work work` reads `cifar/train/CLASS/*.jpg` and `cifar/test/CLASS/*.jpg`,
trains with cross-entropy on all classes and writes `work/networks/NAME.pt`; `--half` takes half of the classes, drawn by
the seed. It saves after every epoch, and goes on from there if it was stopped. The schedule and the widths were set before
the first run; the last epoch is taken, whatever its accuracy.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

SIZE, BATCH, EPOCHS, SHIFT = 32, 256, 8, 2
RATE, MOMENTUM, DECAY, WARM = 0.2, 0.9, 5e-4, 0.2  # of stochastic gradient descent; WARM is the rising part of the schedule
WIDTHS = (48, 96, 192)
PATCHES = 5000  # images whose 2 x 2 patches set the first layer


class Stage(nn.Module):
    """A convolution, pooling, and a residual convolution."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, 1, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](F.max_pool2d(self.first(x), 2)).relu()
        return x + self.norms[1](self.second(x)).relu()


class SmallResNet(nn.Module):
    """32 x 32 pixels to a (192, 3, 3) feature map, its mean, and logits. The first layer whitens patches and is fixed."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2, bias=False).requires_grad_(False)
        self.stages = nn.Sequential(*(Stage(a, b) for a, b in zip((24, *WIDTHS[:-1]), WIDTHS, strict=True)))
        self.head = nn.Linear(WIDTHS[-1], n_classes)
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("deviation", torch.ones(1, 3, 1, 1))

    def set_first_layer(self, images: Tensor) -> None:
        """The eigenvectors of the covariance of patches, divided by their deviations, with both signs."""
        raw = images[:PATCHES].float()
        self.mean.copy_(raw.mean((0, 2, 3), keepdim=True))
        self.deviation.copy_(raw.std((0, 2, 3), keepdim=True))
        patches = F.unfold((raw - self.mean) / self.deviation, 2).transpose(1, 2).reshape(-1, 12)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        rows = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([rows, -rows]))

    def maps(self, images: Tensor) -> Tensor:
        """(N, 192, 3, 3) of (N, 3, 32, 32) bytes."""
        pixels = (images.float() - self.mean) / self.deviation
        return self.stages(self.whiten(pixels.contiguous(memory_format=torch.channels_last)))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.maps(images).mean((2, 3)))


def pixels(files: list[Path]) -> Tensor:
    """(N, 3, 32, 32) bytes."""
    stack = np.empty((len(files), SIZE, SIZE, 3), np.uint8)
    for place, file in enumerate(files):
        with Image.open(file) as image:
            stack[place] = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def cifar(images: Path, work: Path) -> dict[str, tuple[Tensor, Tensor, list[str]]]:
    """Bytes, labels and files of both parts, kept in the work folder."""
    names = sorted(folder.name for folder in (images / "train").iterdir())
    found = {}
    for part in ("train", "test"):
        files = sorted((images / part).glob("*/*.jpg"))
        kept = work / f"cifar-{part}.npy"
        if not kept.is_file():
            np.save(kept, pixels(files).numpy())
        labels = torch.tensor([names.index(file.parent.name) for file in files])
        found[part] = torch.from_numpy(np.load(kept)), labels, [str(file) for file in files]
    return found


def own_classes(half: bool, seed: int) -> list[int]:
    return sorted(np.random.default_rng(seed).permutation(10)[: 5 if half else 10].tolist())


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored at random, and shifted by up to two pixels, the same for all of a batch's sixteenth."""
    flipped = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    images = F.pad(torch.where(flipped, images.flip(3), images).float(), [SHIFT] * 4, "reflect")
    shifts = torch.randint(2 * SHIFT + 1, (16, 2), generator=generator).tolist()
    parts = zip(images.chunk(16), shifts, strict=False)
    return torch.cat([part[:, :, y : y + SIZE, x : x + SIZE] for part, (y, x) in parts])


def train(model: SmallResNet, images: Tensor, labels: Tensor, seed: int, file: Path, n_epochs: int) -> float:
    """Processor time in seconds; one file holds all that the next epoch needs."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
    n_steps = n_epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, n_steps, pct_start=WARM, anneal_strategy="linear", cycle_momentum=False, final_div_factor=1e3
    )
    generator, first, seconds = torch.Generator().manual_seed(seed), 0, 0.0
    if file.is_file():
        kept = torch.load(file)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        generator.set_state(kept["generator"])
        first, seconds = kept["epochs"], kept["seconds"]
    for epoch in range(first, n_epochs):
        since, total = time.process_time(), 0.0
        model.train()
        for rows in torch.randperm(len(images), generator=generator).split(BATCH)[: len(images) // BATCH]:
            loss = F.cross_entropy(model(augmented(images[rows], generator)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        seconds += time.process_time() - since
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        scratch = file.with_suffix(".part")
        torch.save({**state, "generator": generator.get_state(), "epochs": epoch + 1, "seconds": seconds}, scratch)
        scratch.replace(file)
        print(f"epoch {epoch + 1}: loss {total / len(images):.3f}, {seconds:.0f} s", flush=True)  # noqa: T201
    model.eval().requires_grad_(False)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    (options.work / "networks").mkdir(parents=True, exist_ok=True)
    parts, own = cifar(options.images, options.work), own_classes(options.half, options.seed)
    name = f"cifar10{'-half' if options.half else ''}-seed{options.seed}"
    torch.manual_seed(options.seed)
    model = SmallResNet(len(own)).to(memory_format=torch.channels_last)
    chosen = {part: torch.isin(labels, torch.tensor(own)) for part, (_, labels, _) in parts.items()}
    given = {
        part: (parts[part][0][rows], torch.searchsorted(torch.tensor(own), parts[part][1][rows]))
        for part, rows in chosen.items()
    }
    model.set_first_layer(given["train"][0][torch.randperm(len(given["train"][0]))])
    seconds = train(model, *given["train"], options.seed, options.work / "networks" / f"{name}.pt", options.epochs)
    images, labels = given["test"]
    right = torch.cat([model(part).argmax(1) for part in images.split(500)]) == labels
    described = {
        "accuracy": float(right.float().mean()),
        "classes": own,
        "epochs": options.epochs,
        "images": len(given["train"][0]),
    }
    text = json.dumps(described | {"seconds": round(seconds)})
    (options.work / "networks" / f"{name}.json").write_text(text + "\n")
    print(name, text)  # noqa: T201


if __name__ == "__main__":
    main()
