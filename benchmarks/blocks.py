"""A rank loss on a batch of 16,384 images in blocks of queries: time, memory, and the gradient of a smaller batch.

``python benchmarks/blocks.py`` prints one line each; docs/tutorials/large-batches.md has what came out.
"""

import resource
import time
from typing import Annotated

import torch
import typer

from sightline.losses import create_loss
from sightline.losses.blocks import loss_in_blocks


def batch(n_items: int, dim: int, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors around their class's mean, and classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_items) // per_class
    means = torch.randn(n_items // per_class, dim, generator=generator)
    return (means[labels] + 1.5 * torch.randn(n_items, dim, generator=generator)).requires_grad_(), labels


def main(
    n_items: Annotated[int, typer.Option(help="Images of the large batch.")] = 16_384,
    n_small: Annotated[int, typer.Option(help="Images of the batch that is computed both ways.")] = 2048,
    dim: int = 512,
    at_once: Annotated[int, typer.Option(help="Queries whose scores are held.")] = 512,
    loss: str = "sup_ap",
) -> None:
    module = create_loss(loss)
    embeddings, labels = batch(n_small, dim, 4)
    (whole,) = torch.autograd.grad(module(embeddings, labels), embeddings)
    (parts,) = torch.autograd.grad(loss_in_blocks(module, embeddings, labels, at_once)[0], embeddings)
    typer.echo(f"{n_small} images: gradients differ by {((parts - whole).norm() / whole.norm()).item():.1e} of their norm")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    embeddings, labels = batch(n_items, dim, 4)
    loss_in_blocks(module, embeddings, labels, at_once)[0].backward()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - start
    typer.echo(
        f"{n_items} images: {seconds:.0f} s of processor time, {after / 1e6:.2f} GB at most, {before / 1e6:.2f} before"
    )


if __name__ == "__main__":
    typer.run(main)
