"""Rankings and judgements for other tools: TREC's run and qrels files, and ranx objects.

A run is ``{query id: {item id: score}}``, higher is better; judgements are ``{query id: {item id: level}}``, without the
irrelevant items. Both are what ranx, pytrec_eval and ir_measures take. Other tools order equal scores as they please, where
ours count against the query.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, names, raise_faults
from sightline.files import replaced
from sightline.ranking.levels import shared_known_levels
from sightline.ranking.relevance import check_labels
from sightline.search.exact import top_k

Run = dict[str, dict[str, float]]
Judgements = dict[str, dict[str, int]]
Number = TypeVar("Number", int, float)

BLOCK_ELEMENTS = 1 << 22  # pairs judged at once


def rankings(
    queries: Tensor | NDArray[Any],
    gallery: Tensor | NDArray[Any],
    query_ids: Sequence[str],
    gallery_ids: Sequence[str],
    k: int | None = None,
) -> Run:
    """The nearest items of each query by cosine, best first; the item with the query's own id is left out.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        query_ids: Q different names.
        gallery_ids: G different names.
        k: items to keep for each query; None for all.

    Example:
        >>> import torch
        >>> rankings(torch.eye(2), torch.eye(2), ["a", "b"], ["a", "b"])
        {'a': {'b': 0.0}, 'b': {'a': 0.0}}
    """
    _check_ids(query_ids, len(queries), "query_ids")
    _check_ids(gallery_ids, len(gallery), "gallery_ids")
    if k is not None and k < 1:
        raise InputError(f"k is {k}; at least 1 is needed, or None for all")
    kept = len(gallery) if k is None else k
    scores, places = top_k(
        torch.as_tensor(queries), torch.as_tensor(gallery), kept + 1
    )  # one more: the query itself may be among them
    run: Run = {}
    for query, row, found in zip(query_ids, scores.tolist(), places.tolist(), strict=True):
        items = [(gallery_ids[place], score) for place, score in zip(found, row, strict=True)]
        run[query] = dict([item for item in items if item[0] != query][:kept])
    return run


def judgements(
    labels: Tensor | NDArray[Any],
    gallery_labels: Tensor | NDArray[Any],
    query_ids: Sequence[str],
    gallery_ids: Sequence[str],
) -> Judgements:
    """The relevant items of each query with the number of label levels they share; itself, by its id, left out.

    A query without a relevant item is absent, so that other tools leave it out of their means as well.

    Args:
        labels: (Q,) or (Q, L) whole numbers, finest level first. One column judges relevant or not. -1 is shared by none.
        gallery_labels: (G,) or (G, L).
        query_ids: Q different names.
        gallery_ids: G different names.

    Example:
        >>> import torch
        >>> judgements(torch.tensor([[1, 5]]), torch.tensor([[1, 5], [2, 5], [3, 6]]), ["q"], ["x", "y", "z"])
        {'q': {'x': 2, 'y': 1}}
    """
    labels = check_labels(torch.as_tensor(labels), len(query_ids), "labels")
    gallery_labels = check_labels(torch.as_tensor(gallery_labels), len(gallery_ids), "gallery_labels")
    _check_ids(query_ids, len(labels), "query_ids")
    _check_ids(gallery_ids, len(gallery_labels), "gallery_ids")
    judged: Judgements = {}
    n_rows = max(1, BLOCK_ELEMENTS // max(1, len(gallery_ids)))
    for first, block in zip(range(0, len(labels), n_rows), labels.split(n_rows), strict=False):
        shared = shared_known_levels(block, gallery_labels)
        rows, places = shared.nonzero(as_tuple=True)
        for row, place, level in zip(rows.tolist(), places.tolist(), shared[rows, places].tolist(), strict=True):
            query, item = query_ids[first + row], gallery_ids[place]
            if item != query:
                judged.setdefault(query, {})[item] = level
    return judged


def write_run(file: Path, run: Mapping[str, Mapping[str, float]], name: str = "sightline") -> Path:
    """Write lines of ``query Q0 item rank score name``, best first; scores keep every digit.

    Args:
        file: to write.
        run: scores by query and item; ids without white space, which separates the columns.
        name: of the run, in the last column.
    """
    _check_words(file, [name, *_ids(run)])
    ranked = {query: sorted(items.items(), key=lambda item: -item[1]) for query, items in run.items()}
    return _write(
        file,
        (
            f"{query} Q0 {item} {rank} {float(score)!r} {name}"
            for query, items in ranked.items()
            for rank, (item, score) in enumerate(items, start=1)
        ),
    )


def write_qrels(file: Path, judged: Mapping[str, Mapping[str, int]]) -> Path:
    """Write lines of ``query 0 item level``; ids without white space, which separates the columns."""
    _check_words(file, _ids(judged))
    return _write(file, (f"{query} 0 {item} {level}" for query, items in judged.items() for item, level in items.items()))


def read_run(file: Path) -> Run:
    """The run in a TREC file; its scores count, not its ranks. All faults are told at once."""
    return _read(file, "query Q0 item rank score name", 4, float)


def read_qrels(file: Path) -> Judgements:
    """The judgements in a TREC file. All faults are told at once."""
    return _read(file, "query 0 item level", 3, int)


def ranx_run(run: Mapping[str, Mapping[str, float]], name: str = "sightline") -> Any:
    """The run as a ``ranx.Run``; ranx is installed apart."""
    return _ranx().Run({query: dict(items) for query, items in run.items()}, name=name)


def ranx_qrels(judged: Mapping[str, Mapping[str, int]]) -> Any:
    """The judgements as a ``ranx.Qrels``; ranx is installed apart."""
    return _ranx().Qrels({query: dict(items) for query, items in judged.items()})


def _ranx() -> Any:
    try:
        import ranx
    except ImportError as error:
        raise InputError("ranx is not installed: pip install ranx") from error
    return ranx


def _check_ids(ids: Sequence[str], n: int, name: str) -> None:
    if len(ids) != n:
        raise InputError(f"{name}: one for each of {n} is needed, found {len(ids)}")
    if len(set(ids)) < n:
        seen: set[str] = set()
        twice = list(dict.fromkeys(i for i in ids if i in seen or seen.add(i)))  # type: ignore[func-returns-value]
        raise InputError(f"{name}: {len(twice)} occur more than once, such as {names(twice[:3])}")


def _ids(nested: Mapping[str, Mapping[str, object]]) -> Iterable[str]:
    return dict.fromkeys([*nested, *(item for items in nested.values() for item in items)])


def _check_words(file: Path, words: Iterable[str]) -> None:
    if broken := [word for word in words if len(word.split()) != 1 or word != word.strip()]:
        raise InputError(f"{file}: TREC files take no empty names and no white space in them, found {names(broken[:3])}")


def _write(file: Path, lines: Iterable[str]) -> Path:
    with replaced(Path(file)) as scratch, scratch.open("w", encoding="utf-8") as text:
        text.writelines(f"{line}\n" for line in lines)
    return Path(file)


def _read(file: Path, columns: str, place: int, number: Callable[[str], Number]) -> dict[str, dict[str, Number]]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a TREC file: {error}") from error
    found: dict[str, dict[str, Number]] = {}
    faults = []
    for line, words in ((line, text.split()) for line, text in enumerate(lines, start=1) if text.strip()):
        if len(words) != len(columns.split()):
            faults.append(f"line {line}: {len(words)} columns, not {columns!r}")
        elif words[2] in found.get(words[0], {}):
            faults.append(f"line {line}: query {words[0]!r} has item {words[2]!r} twice")
        else:
            try:
                value = number(words[place])
                if value != value:
                    raise ValueError
                found.setdefault(words[0], {})[words[2]] = value
            except ValueError:
                faults.append(f"line {line}: {columns.split()[place]} is {words[place]!r}, not a number")
    raise_faults(file, faults)
    return found
