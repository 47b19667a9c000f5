"""Scores between two sets of vectors, whole and in blocks."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sightline.errors import InputError
from sightline.kernels.row_loops import fill_across, is_looped, run_in_torch_threads

SHORTEST = 1e-12  # a vector shorter than this is not brought to length 1
EVEN_COLUMNS, EVEN_DOUBLES = 16, 48  # multiples of what a matrix product of float32 and of float64 computes side by side
BAND, TILE = 512, 256  # rows and columns of a table that are added to what lies across at once


def all_finite(*tables: Tensor) -> bool:
    """Whether tables of one device hold neither NaN nor infinity; asked once for all of them, as a GPU waits for it.

    True inside a graph of torch.compile, in which numbers cannot be looked at.
    """
    if torch.compiler.is_compiling():
        return True
    # The sums first: they are quick, and finite only where all are; if not, it may still be that one grew too large.
    total = torch.stack([table.detach().sum().float() for table in tables]).sum()
    return math.isfinite(total.item()) or all(bool(table.isfinite().all()) for table in tables)


def check_tensor(value: object, name: str) -> None:
    """Refuse anything but a torch tensor: a copy of an array or a list would carry no gradient."""
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise InputError(f"{name} must be a torch.Tensor, got {kind}")


def check_table(vectors: Tensor, name: str) -> None:
    """Refuse anything but a (B, D) floating point table."""
    check_tensor(vectors, name)
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise InputError(f"{name} must be a (B, D) floating point table, got {vectors.dtype} {tuple(vectors.shape)}")


def check_vectors(**tables: Tensor) -> None:
    """Refuse anything but (B, D) tables of finite numbers.

    Args:
        tables: those to check, by the name in the message; all on one device.
    """
    for name, vectors in tables.items():
        check_table(vectors, name)
    if all_finite(*tables.values()):
        return
    for name, vectors in tables.items():
        if rows := (~vectors.isfinite().all(1)).nonzero()[:, 0].tolist():
            shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
            raise InputError(f"{name}: {len(rows)} of {len(vectors)} rows hold NaN or infinity: {shown}")


def full_precision(vectors: Tensor) -> Tensor:
    """The vectors in float32, or as they are if that is float64.

    Half precision makes ties of scores that differ: near 1, float16 steps by 5e-4.
    """
    return vectors if vectors.dtype == torch.float64 else vectors.float()


def both_in_full_precision(embeddings: Tensor, ref_emb: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A batch in full precision and its reference set, which stays the batch where it is the same tensor."""
    check_table(embeddings, "embeddings")
    wide = full_precision(embeddings)
    return wide, wide if ref_emb is embeddings else ref_emb


class _Unit(torch.autograd.Function):
    """F.normalize with one pass over the vectors backwards; it takes ten, at a batch of 256 as long as a product."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        if is_looped(vectors) and not torch.compiler.is_compiling() and length.isfinite().all():
            scale = length.clamp_(min=SHORTEST).reciprocal_()
            scaled: Tensor = (vectors * scale).contiguous()
        else:  # the squares of some are too large to be held, or may be: a GPU would have to wait for the answer
            largest = vectors.abs().amax(1, keepdim=True).where(length.isinf(), 1)
            shrunk = vectors / largest
            scale = torch.linalg.vector_norm(shrunk, dim=1, keepdim=True).clamp_(min=SHORTEST).reciprocal_()
            scaled, scale = (shrunk * scale).contiguous(), scale / largest
        ctx.save_for_backward(scaled, scale)
        return scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        scaled, scale = ctx.saved_tensors
        if is_looped(scaled) and scaled.dtype == torch.float32 and not torch.compiler.is_compiling():
            across = torch.empty_like(scaled)
            arrays = gradients[0].contiguous().numpy(), scaled.numpy(), scale.numpy()
            run_in_torch_threads(fill_across, *arrays, across.numpy())
            return across
        along = torch.linalg.vecdot(gradients[0], scaled)[:, None]
        return torch.addcmul(gradients[0], scaled, along, value=-1).mul_(scale)


def unit(vectors: Tensor) -> Tensor:
    """(B, D) the vectors scaled to length 1, in float32 or float64; a zero vector stays zero."""
    return _Unit.apply(full_precision(vectors))  # type: ignore[no-any-return, no-untyped-call]


def n_filling(n_columns: int, dtype: torch.dtype) -> int:
    """Columns of zeros to add to a product for copies among the others to score the same; :func:`score_blocks` says why."""
    return -n_columns % (EVEN_DOUBLES if dtype == torch.float64 else EVEN_COLUMNS)


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """``rows @ columns.T``, in which copies among the columns score the same."""
    if n_more := n_filling(len(columns), columns.dtype):
        return (rows @ F.pad(columns, (0, 0, 0, n_more)).T)[:, : len(columns)]
    return rows @ columns.T


class _WithItself(torch.autograd.Function):
    """``rows @ rows.T`` with one product backwards, where autograd takes two."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return _products(rows, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return _times_both(gradients[0], rows)


def _times_both(table: Tensor, rows: Tensor) -> Tensor:
    """``(table + table.T) @ rows``; a CPU adds what lies across tile by tile, and never holds the whole sum."""
    n_items = len(rows)
    if table.device.type != "cpu" or n_items <= BAND:
        return (table + table.T) @ rows
    product, sums = torch.empty_like(rows), table.new_empty(BAND, n_items)
    for start in range(0, n_items, BAND):
        band = slice(start, start + BAND)
        both = sums[: n_items - start]
        for left in range(0, n_items, TILE):
            tile = slice(left, left + TILE)
            torch.add(table[band, tile], table[tile, band].T, out=both[:, tile])
        torch.mm(both, rows, out=product[band])
    return product


def cosine_scores(queries: Tensor, gallery: Tensor) -> Tensor:
    """Cosine of every query with every gallery item, in float32 at least, inside autocast too.

    Args:
        queries: (Q, D) of any floating type and length; the wider type of the two counts.
        gallery: (G, D) likewise.

    Returns:
        (Q, G) scores in [-1, 1], up to rounding.

    Example:
        >>> cosine_scores(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        tensor([[1., 0.]])
    """
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(f"vectors must have one size, got {queries.shape[1]} and {gallery.shape[1]} dimensions")
    wider = torch.promote_types(queries.dtype, gallery.dtype)
    with torch.autocast(queries.device.type, enabled=False):
        rows = unit(queries.to(wider))
        if gallery is not queries:
            return _products(rows, unit(gallery.to(wider)))
        return _WithItself.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


def score_blocks(queries: Tensor, gallery: Tensor, n_elements: int) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of every query with the whole gallery, some queries at a time; copies of a vector score the same.

    In float32, or float64 where either side is, inside autocast too.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        n_elements: scores to hold at once, but at least one query's.

    Yields:
        Which queries, and their (B, G) scores.
    """
    common = torch.promote_types(queries.dtype, gallery.dtype)
    # A matrix product sums the columns left over at its edge in another order: copies there would differ in the last bit,
    # and no longer tie. Zeros fill the edge and are cut off.
    rows = unit(queries.to(common))
    scaled = unit(gallery.to(common))
    columns = F.pad(scaled, (0, 0, 0, n_filling(len(scaled), scaled.dtype))).T
    n_rows = max(1, n_elements // max(1, len(gallery)))
    for start in range(0, len(rows), n_rows):
        block = slice(start, start + n_rows)
        with torch.autocast(rows.device.type, enabled=False):
            scores = rows[block] @ columns
        yield block, scores[:, : len(gallery)]
