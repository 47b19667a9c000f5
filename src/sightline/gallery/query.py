"""The one way from queries to answers: search, refinement, metadata, the rejector's verdict, and what is withheld."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.errors import InputError, names
from sightline.gallery.filters import filter_names
from sightline.gallery.gallery import Gallery, Ranking, Value, image_path, labels_of
from sightline.models.encoder import Encoder, ImageInput
from sightline.ood.rejector import Rejector, Verdict, withholds
from sightline.ranking.nearest import top_k
from sightline.ranking.refine import NOTHING, RERANKERS, Refinement, weighted_sum
from sightline.ranking.similarity import unit

SAME = 0.999  # cosine from which on two vectors are of one image, as that of another encoding of its file
TRIES = 5
Ids = NDArray[np.object_]


@dataclass(frozen=True)
class Hit:
    """One item that was found: its id, similarity to the query, and what is known of it."""

    id: str
    score: float
    metadata: dict[str, Value]

    @property
    def path(self) -> Path | None:
        """Where its image is."""
        path = self.metadata.get("path")
        return None if path is None else Path(str(path))

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels, finest first."""
        return tuple(labels_of(self.metadata))


@dataclass(frozen=True)
class Answer:
    """What was found for one query.

    Attributes:
        query: its name.
        query_path: its image, if there is one.
        results: best first; none where the policy is ``reject`` and the query does not belong.
        policy: ``reject``, ``flag`` or ``ignore``; None where nobody was asked.
        verdict: what the rejector says of it.
        unknown: names in the condition that no item has, where nothing was found.
        generation: of the gallery that was searched.
        candidates: items that were ranked: those that meet the condition, or all.
    """

    query: str
    query_path: str | None
    results: list[Hit]
    policy: str | None = None
    verdict: Verdict | None = None
    unknown: tuple[str, ...] = ()
    generation: int = 0
    candidates: int = 0

    def remarks(self) -> list[str]:
        """What is to be said of the query besides its results: nothing where all is well, or is to be ignored."""
        found = []
        said = None if self.policy == "ignore" else self.verdict
        if said and not said.belongs:
            found.append(f"does not belong: energy {said.energy:.4g}, accepted up to {said.threshold:.4g}")
        if said and said.matched is False:
            found.append(f"no match: similarity {said.similarity:.4f}, a match from {said.similarity_threshold:.4f} on")
        if not self.results and (said is None or said.belongs):
            found.append(f"nothing found{': no item has ' + names(self.unknown) if self.unknown else ''}")
        return found


@dataclass(frozen=True)
class QueryOptions:
    """What is asked of a gallery; queries with equal options can be answered together.

    Attributes:
        k: results for each query.
        where: a condition that results meet; see :mod:`sightline.gallery.filters`.
        refinement: what to do after the first ranking.
        policy: what to do with queries that do not belong: ``reject`` gives them no results, ``flag`` says so, ``ignore``
            does not; None for the rejector's own.
        explain: where nothing is found, name what the condition asks for and no item has. Reads all items for each name.
    """

    k: int = 10
    where: str | None = None
    refinement: Refinement = NOTHING
    policy: str | None = None
    explain: bool = False


def query(
    gallery: Gallery,
    vectors: NDArray[np.floating[Any]],
    options: QueryOptions,
    *,
    own: Sequence[str | None] | None = None,
    rejector: Rejector | None = None,
) -> list[Answer]:
    """An answer to each query.

    The verdict is by a query's own vector and its best item of all, neither filtered, expanded nor re-ranked.

    Args:
        gallery: what to search.
        vectors: (Q, D) of the queries.
        options: what is asked.
        own: the id of each query that is an item, which does not find itself; None for one that is not.
        rejector: says which queries belong and have a match; None to ask nobody.
    """
    own = [None] * len(vectors) if own is None else list(own)
    generation, scores, ids, known = _found(gallery, vectors, options, own)
    policy = None if rejector is None else options.policy or rejector.policy
    verdicts: Sequence[Verdict | None] = [None] * len(vectors)
    if rejector is not None:
        verdicts = rejector.judge(vectors, *best_matches(gallery, vectors, own))
    asked = filter_names(options.where) if options.explain and options.where is not None and not known else []
    unknown = tuple(name for name in asked if not gallery.filter(f"metadata[{name!r}] != None"))
    candidates = gallery.count(options.where)
    answers = []
    for name, row_scores, row_ids, verdict in zip(own, scores, ids, verdicts, strict=True):
        pairs = [] if withholds(policy, verdict) else zip(row_ids, row_scores, strict=True)
        hits = [Hit(str(id_), float(score), known[id_]) for id_, score in pairs if id_ is not None]
        answers.append(Answer(name or "", None, hits, policy, verdict, unknown, generation, candidates))
    return answers


def _found(
    gallery: Gallery, vectors: NDArray[np.floating[Any]], options: QueryOptions, own: Sequence[str | None]
) -> tuple[int, NDArray[np.float32], Ids, dict[str, dict[str, Value]]]:
    """The generation that was searched, scores, ids, and what is known of each item that was found."""
    tries_left = TRIES
    while True:
        generation, tries_left = gallery.generation, tries_left - 1
        try:
            scores, ids = refined_search(gallery, vectors, options.k, options.refinement, where=options.where, own=own)
            listed = sorted({str(id_) for id_ in ids.reshape(-1) if id_ is not None})
            return generation, scores, ids, dict(zip(listed, gallery.metadata(listed), strict=True))
        except InputError:  # an item may have been removed in between
            if not tries_left or gallery.generation == generation:
                raise


def ask(
    gallery: Gallery,
    queries: Sequence[str],
    options: QueryOptions,
    *,
    encoder: Encoder | None = None,
    rejector: Rejector | None = None,
    root: Path | None = None,
    n_workers: int = 0,
) -> list[Answer]:
    """Answer queries of any kind; see :func:`query`.

    Args:
        gallery: what to search.
        queries: image files, folders (each image below is a query), or ids of the gallery, which do not find themselves.
        options: what is asked.
        encoder: the gallery's; None for the one saved in it. Ids need none.
        rejector: says which queries belong and have a match; None to ask nobody.
        root: where to look for images that lay beside the gallery; see :func:`image_path`. Results have full paths.
        n_workers: processes that read images.
    """
    images, ids = _split_queries(queries)
    try:
        known = gallery.metadata(ids)
    except InputError as error:
        raise InputError(f"{error}; and there is no image or folder of that name") from error
    vectors = np.empty((0, gallery.identity.dim), np.float32)
    if images:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        vectors = encoder.encode(images, n_workers=n_workers)
    vectors = np.concatenate([vectors, gallery.vectors(ids)])
    answers = query(gallery, vectors, options, own=[*[None] * len(images), *ids], rejector=rejector)
    files = [*images, *(image_path(gallery.folder, row, root) for row in known)]

    def located(hit: Hit) -> Hit:
        file = image_path(gallery.folder, hit.metadata, root)
        return hit if file is None else replace(hit, metadata={**hit.metadata, "path": str(file)})

    return [
        replace(
            answer, query=name, query_path=None if file is None else str(file), results=list(map(located, answer.results))
        )
        for answer, name, file in zip(answers, [*map(str, images), *ids], files, strict=True)
    ]


def _split_queries(queries: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The queries that are images, those in folders included, and those that are ids."""
    if not queries or not all(queries):
        raise InputError("nothing to search for: each query is an image, a folder or an id, and none is empty")
    images: list[Path] = []
    ids: list[str] = []
    for query in queries:
        if os.path.isdir(query):  # False, unlike Path's, for an id too long to be a file's name
            images += read_manifest(Path(query), labelled=False).paths()
        elif os.path.isfile(query):
            images.append(Path(query))
        else:
            ids.append(query)
    return images, ids


def search_images(encoder: Encoder, table: EmbeddingTable, images: Sequence[ImageInput], k: int) -> list[list[Hit]]:
    """The k nearest images of the table for each query image, best first; refused if another encoder made the table."""
    if encoder.fingerprint() != table.fingerprint:
        raise InputError(
            f"{table.manifest.source}: its vectors are of another encoder: "
            f"they have the fingerprint {table.fingerprint}, this one {encoder.fingerprint()}"
        )
    scores, places = top_k(torch.from_numpy(encoder.encode(images)), torch.from_numpy(table.vectors), k)
    rows, paths = table.manifest.table, table.manifest.paths()
    return [
        [
            Hit(rows["id"][place], score, {**rows.row(place, named=True), "path": str(paths[place])})
            for place, score in zip(row_places, row_scores, strict=True)
        ]
        for row_places, row_scores in zip(places.tolist(), scores.tolist(), strict=True)
    ]


def refined_search(
    gallery: Gallery,
    queries: NDArray[np.floating[Any]],
    k: int = 10,
    refinement: Refinement = NOTHING,
    *,
    where: str | None = None,
    own: Sequence[str | None] | None = None,
) -> Ranking:
    """The k best items of each query after all steps; without steps, what ``gallery.search`` gives.

    Args:
        gallery: any that can search and give vectors.
        queries: (Q, D).
        k: results for each query, at least 1.
        refinement: the steps.
        where: metadata that results must have; queries are expanded by such items too.
        own: the id of each query in the gallery, left out of its results and its expansion; None for one that is not there.

    Returns:
        (Q, K) scores, best first: cosines, or those of the re-ranking, which are not comparable between queries; and (Q, K)
        ids. Where a query has fewer results than another, -inf and None fill its row.
    """
    vectors = np.ascontiguousarray(queries, np.float32)
    own = [None] * len(vectors) if own is None else list(own)
    if len(own) != len(vectors):
        raise InputError(f"own: one id for each of {len(vectors)} queries is needed, found {len(own)}")
    if refinement.expand:
        scores, ids = _search(gallery, vectors, refinement.expand, where, own)
        found = _vectors(gallery, ids, vectors.shape[1])
        # Not the gallery's scores: it may rank by another measure.
        near = (unit(torch.from_numpy(vectors))[:, None] @ unit(found.flatten(0, 1)).view_as(found).mT)[:, 0]
        near = near.masked_fill(torch.from_numpy(scores) == -np.inf, -torch.inf)
        vectors = weighted_sum(torch.from_numpy(vectors), near, found, refinement.alpha).numpy()
    if refinement.rerank is None:
        return _search(gallery, vectors, k, where, own)
    scores, ids = _search(gallery, vectors, max(k, refinement.depth), where, own)
    if not ids.size:
        return scores, ids
    candidates = _vectors(gallery, ids, vectors.shape[1])
    rerank = RERANKERS[refinement.rerank]
    scores = np.full(ids.shape, -np.inf, np.float32)
    lengths = (ids != None).sum(1)  # noqa: E711 -- elementwise
    for length in np.unique(lengths[lengths > 0]):  # queries with as many results as each other are scored together
        rows = np.flatnonzero(lengths == length)
        rescored = rerank(torch.from_numpy(vectors[rows]), candidates[rows, :length], refinement.reciprocal)
        scores[rows, :length] = rescored.numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def best_matches(
    gallery: Gallery, queries: NDArray[np.floating[Any]], own: Sequence[str | None]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How near the best item of all is to each query, as it is and itself left out, and whether the query is an item.

    Args:
        gallery: any that can search and give vectors.
        queries: (Q, D).
        own: the id of each query in the gallery; None for one that is not there by id.

    Returns:
        (Q,) scores of the gallery's measure, -1 where there is no item; and (Q,) bool, True for a query that has an id or
        whose cosine to its best item is at least ``SAME``.
    """
    vectors = np.ascontiguousarray(queries, np.float32)
    scores, ids = refined_search(gallery, vectors, 1, own=own)
    has_id = np.array([id_ is not None for id_ in own], bool)
    if not ids.shape[1]:
        return np.full(len(vectors), -1.0), has_id
    cosines = scores[:, 0]
    if gallery.metric != "cosine":
        best = unit(_vectors(gallery, ids, vectors.shape[1])[:, 0])
        cosines = (unit(torch.from_numpy(vectors)) * best).sum(1).numpy()
    return np.where(np.isfinite(scores[:, 0]), scores[:, 0], -1.0).astype(np.float64), (cosines >= SAME) | has_id


def _search(gallery: Gallery, queries: NDArray[np.float32], k: int, where: str | None, own: list[str | None]) -> Ranking:
    """The k nearest of each query, itself left out."""
    if all(name is None for name in own):
        return gallery.search(queries, k, where=where)
    scores, ids = gallery.search(queries, k + 1, where=where)
    hidden = ids == np.array(own, object)[:, None]
    hidden &= ids != None  # noqa: E711 -- elementwise
    scores, ids = np.where(hidden, np.float32(-np.inf), scores), ids.copy()
    ids[hidden] = None
    order = np.argsort(hidden, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def _vectors(gallery: Gallery, ids: Ids, dim: int) -> Tensor:
    """(Q, K, D) of all results, each read once; zeros where there is none."""
    known, place = np.unique([name for name in ids.flat if name is not None], return_inverse=True)
    table = np.zeros((len(known) + 1, dim), np.float32)
    if len(known):
        table[:-1] = gallery.vectors(known.tolist())
    places = np.full(ids.size, len(known))
    places[[name is not None for name in ids.flat]] = place
    return torch.from_numpy(table[places.reshape(ids.shape)])
