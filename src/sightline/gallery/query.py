"""From queries to answers: search, refinement, metadata, and the rejector's verdict."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.errors import InputError, names
from sightline.gallery.filters import filter_names
from sightline.gallery.gallery import Gallery, Ranking, Value, checked_k, checked_vectors, image_path, labels_of, lists_of
from sightline.models.encoder import Encoder, ImageInput
from sightline.ood.rejector import Rejector, Verdict, withholds
from sightline.ranking.nearest import top_k
from sightline.ranking.refine import NOTHING, RERANKERS, Refinement, weighted_sum
from sightline.ranking.similarity import unit

SAME = 0.999  # two vectors with at least this cosine come from one image, perhaps from files in two formats
TRIES = 5
Ids = NDArray[np.object_]
Query = str | Path | Image.Image
Queries = Query | Sequence[Query]


@dataclass(frozen=True, repr=False)
class Hit:
    """One search result: id, similarity to the query, and metadata."""

    id: str
    score: float
    metadata: dict[str, Value]

    def __repr__(self) -> str:
        labels = f", labels {' < '.join(self.labels)!r}" if self.labels else ""
        return f"Hit({self.id!r}, score {self.score:.4f}{labels})"

    @property
    def path(self) -> Path | None:
        """The path of its image, or None."""
        path = self.metadata.get("path")
        return None if path is None else Path(str(path))

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels, finest first."""
        return tuple(labels_of(self.metadata))

    @property
    def lists(self) -> dict[str, list[str]]:
        """The lists in its metadata, such as its codes, by key."""
        return lists_of(self.metadata)


@dataclass(frozen=True, repr=False)
class Answer:
    """The results of one query.

    Attributes:
        query: its name.
        query_path: the path of its image, if it has one.
        results: best first; empty if the policy is ``reject`` and the query is out-of-distribution.
        policy: ``reject``, ``flag`` or ``ignore``; None without a rejector.
        verdict: the rejector's.
        unknown: names in the filter that no item has, if nothing was found.
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

    def __repr__(self) -> str:
        best = f", best {self.results[0].id!r} {self.results[0].score:.4f}" if self.results else ""
        remarks = "".join(f"; {remark}" for remark in self.remarks())
        return f"Answer({self.query!r}, {len(self.results)} results{best}{remarks})"

    def _repr_html_(self) -> str:
        from sightline.gallery.display import answer_html

        return answer_html(self)

    def remarks(self) -> list[str]:
        """What a user should know besides the results: out-of-distribution, no match, or nothing found."""
        found = []
        verdict = None if self.policy == "ignore" else self.verdict
        if verdict and not verdict.belongs:
            found.append(f"out-of-distribution: {verdict.typicality}")
        if verdict and verdict.matched is False:
            limit = verdict.similarity_threshold
            found.append(f"no match: similarity {verdict.similarity:.4f} is below the threshold {limit:.4f}")
        if not self.results and (verdict is None or verdict.belongs):
            found.append(f"nothing found{': no item has ' + names(self.unknown) if self.unknown else ''}")
        return found


@dataclass(frozen=True)
class QueryOptions:
    """The options of a query; queries with equal options can be answered together.

    Attributes:
        k: results for each query.
        where: a condition that results must meet; see :mod:`sightline.gallery.filters`.
        refinement: query expansion and re-ranking.
        policy: for out-of-distribution queries: ``reject`` returns no results, ``flag`` returns them with a remark,
            ``ignore`` without; None for the rejector's own policy.
        explain: if nothing is found, name the metadata in the condition that no item has. Reads all items for each name.
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
    inputs: Mapping[str, NDArray[np.floating[Any]]] | None = None,
) -> list[Answer]:
    """An answer to each query.

    The verdict is about the query's own vector and its best match in the whole gallery, before filters, expansion and
    re-ranking. If the rejector needs more than vectors, items of the gallery belong, without an energy.

    Args:
        gallery: what to search.
        vectors: (Q, D) of the queries.
        options: of the queries.
        own: the id of each query that is an item of the gallery, which does not find itself; None for one that is not.
        rejector: judges which queries are out-of-distribution and which have a match; None for no verdict.
        inputs: what the rejector needs besides vectors, of the queries that are no items, in their order.
    """
    vectors = checked_vectors(vectors, gallery.identity.dim, "dot")
    own = [None] * len(vectors) if own is None else list(own)
    generation, scores, ids, known = _found(gallery, vectors, options, own)
    policy = None if rejector is None else options.policy or rejector.policy
    verdicts: Sequence[Verdict | None] = [None] * len(vectors)
    if rejector is not None:
        verdicts = _verdicts(rejector, gallery, vectors, own, inputs or {})
    asked = filter_names(options.where) if options.explain and options.where is not None and not known else []
    unknown = tuple(name for name in asked if not gallery.filter(f"metadata[{name!r}] != None"))
    candidates = gallery.count(options.where)
    answers = []
    for name, row_scores, row_ids, verdict in zip(own, scores, ids, verdicts, strict=True):
        pairs = [] if withholds(policy, verdict) else zip(row_ids, row_scores, strict=True)
        hits = [Hit(str(id_), float(score), known[id_]) for id_, score in pairs if id_ is not None]
        answers.append(Answer(name or "", None, hits, policy, verdict, unknown, generation, candidates))
    return answers


def _verdicts(
    rejector: Rejector,
    gallery: Gallery,
    vectors: NDArray[np.float32],
    own: Sequence[str | None],
    inputs: Mapping[str, NDArray[np.floating[Any]]],
) -> list[Verdict]:
    scores, is_item = best_matches(gallery, vectors, own)
    if not rejector.needs_images:
        return rejector.judge(vectors, scores, is_item)
    shown = np.array([name is None for name in own], bool)
    judged = iter(
        rejector.judge({**inputs, "vectors": vectors[shown]}, scores[shown], is_item[shown]) if shown.any() else ()
    )
    return [next(judged) if by_image else rejector.of_item(float(scores[q])) for q, by_image in enumerate(shown)]


def _found(
    gallery: Gallery, vectors: NDArray[np.floating[Any]], options: QueryOptions, own: Sequence[str | None]
) -> tuple[int, NDArray[np.float32], Ids, dict[str, dict[str, Value]]]:
    """The generation that was searched, scores, ids, and the metadata of each result."""
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
    queries: Queries,
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
        queries: image files, folders (each image below is a query), PIL images, or ids of the gallery, which do not find
            themselves; one, or a list.
        options: of the queries.
        encoder: the gallery's; None for the one saved in it. Ids need none.
        rejector: judges which queries are out-of-distribution and which have a match; None for no verdict.
        root: where to look for images that were beside the gallery; see :func:`image_path`. Results have full paths.
        n_workers: processes that read images.
    """
    images, ids = _split_queries([queries] if isinstance(queries, str | Path | Image.Image) else queries)
    try:
        known = gallery.metadata(ids)
    except InputError as error:
        raise InputError(f"{error}; there is no image or folder of that name either") from error
    given = {"vectors": np.empty((0, gallery.identity.dim), np.float32)}
    if images:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        with_inputs = rejector is not None and rejector.needs_images
        encode = encoder.scorer_inputs if with_inputs else encoder.encode
        found = encode(images, n_workers=n_workers)
        given = found if isinstance(found, dict) else {"vectors": found}
    vectors = np.concatenate([given["vectors"], gallery.vectors(ids)])
    own = [*[None] * len(images), *ids]
    answers = query(gallery, vectors, options, own=own, rejector=rejector, inputs=given)
    files = [*map(_file_of, images), *(image_path(gallery.folder, row, root) for row in known)]

    def located(hit: Hit) -> Hit:
        file = image_path(gallery.folder, hit.metadata, root)
        return hit if file is None else replace(hit, metadata={**hit.metadata, "path": str(file)})

    return [
        replace(
            answer, query=name, query_path=None if file is None else str(file), results=list(map(located, answer.results))
        )
        for answer, name, file in zip(answers, [*map(_name_of, images), *ids], files, strict=True)
    ]


def _file_of(image: Path | Image.Image) -> str | Path | None:
    """The file of an image; None for one in memory."""
    return image if isinstance(image, Path) else getattr(image, "filename", None) or None


def _name_of(image: Path | Image.Image) -> str:
    return str(_file_of(image) or "image in memory")


def _split_queries(queries: Sequence[Query]) -> tuple[list[Path | Image.Image], list[str]]:
    """The queries that are images, those in folders included, and those that are ids."""
    if not isinstance(queries, Sequence) or not all(isinstance(query, Query) for query in queries):
        raise InputError(f"queries must be paths, PIL images or ids, got {type(queries).__name__}; search takes vectors")
    if not queries or not all(str(query) for query in queries):
        raise InputError("nothing to search for: give one or more images, folders or ids, none of them empty")
    images: list[Path | Image.Image] = []
    ids: list[str] = []
    for query in queries:
        if isinstance(query, Image.Image):
            images.append(query)
        elif os.path.isdir(query):  # False, unlike Path's, for an id too long to be a file's name
            images += read_manifest(Path(query), labelled=False).paths()
        elif os.path.isfile(query):
            images.append(Path(query))
        else:
            ids.append(str(query))
    return images, ids


def search_images(
    encoder: Encoder | Path | str,
    table: EmbeddingTable | Path | str,
    images: Query | Sequence[ImageInput],
    k: int = 10,
) -> list[list[Hit]]:
    """The k nearest images of an embedding table for each query image, best first.

    Args:
        encoder: the encoder of the table, or its folder; another one raises InputError.
        table: written by ``sightline embed``, or its file.
        images: paths, PIL images or uint8 arrays; one, or a list.
        k: results for each image, at least 1.
    """
    encoder = Encoder.from_pretrained(encoder) if isinstance(encoder, str | Path) else encoder
    table = EmbeddingTable.read(Path(table)) if isinstance(table, str | Path) else table
    if not isinstance(encoder, Encoder) or not isinstance(table, EmbeddingTable):
        given = f"{type(encoder).__name__} and {type(table).__name__}"
        raise InputError(f"search_images takes an Encoder and an EmbeddingTable, or their paths, got {given}")
    if encoder.fingerprint() != table.fingerprint:
        raise InputError(
            f"{table.manifest.source}: its vectors come from another encoder: "
            f"they have the fingerprint {table.fingerprint}, this one {encoder.fingerprint()}"
        )
    listed = [images] if isinstance(images, str | Path | Image.Image) else images
    if not isinstance(listed, Sequence):
        raise InputError(f"images must be a path, an image or a list of these, got {type(images).__name__}")
    scores, places = top_k(torch.from_numpy(encoder.encode(listed)), torch.from_numpy(table.vectors), checked_k(k))
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
    queries: ArrayLike,
    k: int = 10,
    refinement: Refinement = NOTHING,
    *,
    where: str | None = None,
    own: Sequence[str | None] | None = None,
) -> Ranking:
    """The k best items of each query after query expansion and re-ranking; without either, those of ``gallery.search``.

    Args:
        gallery: any kind.
        queries: (Q, D): a list, array or tensor.
        k: results for each query, at least 1.
        refinement: the steps.
        where: a condition that results must meet, also those that expand the query.
        own: the id of each query in the gallery, left out of its results and its expansion; None for one that is not there.

    Returns:
        (Q, K) scores, best first: cosines, or those of the re-ranking, which are not comparable between queries; and (Q, K)
        ids. A query with fewer results is padded with -inf and None.
    """
    vectors = checked_vectors(queries, gallery.identity.dim, "dot")
    k = checked_k(k)
    own = [None] * len(vectors) if own is None else list(own)
    if len(own) != len(vectors):
        raise InputError(f"own must have one id for each of {len(vectors)} queries, got {len(own)}")
    if refinement.expand:
        scores, ids = _search(gallery, vectors, refinement.expand, where, own)
        found = _vectors(gallery, ids, vectors.shape[1])
        # Not the gallery's scores: its metric may not be cosine.
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
    for length in np.unique(lengths[lengths > 0]):  # queries with equally many results are scored together
        rows = np.flatnonzero(lengths == length)
        rescored = rerank(torch.from_numpy(vectors[rows]), candidates[rows, :length], refinement.reciprocal)
        scores[rows, :length] = rescored.numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def best_matches(
    gallery: Gallery, queries: NDArray[np.floating[Any]], own: Sequence[str | None]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The similarity of each query to its best item, itself left out, and whether the query is an item of the gallery.

    Args:
        gallery: any kind.
        queries: (Q, D).
        own: the id of each query in the gallery; None for one that has none.

    Returns:
        (Q,) scores of the gallery's metric, -1 in an empty gallery; and (Q,) bool, True for a query that has an id or
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
    """(Q, K, D) the vectors of all results, each read once; zeros for padding."""
    known, place = np.unique([name for name in ids.flat if name is not None], return_inverse=True)
    table = np.zeros((len(known) + 1, dim), np.float32)
    if len(known):
        table[:-1] = gallery.vectors(known.tolist())
    places = np.full(ids.size, len(known))
    places[[name is not None for name in ids.flat]] = place
    return torch.from_numpy(table[places.reshape(ids.shape)])
