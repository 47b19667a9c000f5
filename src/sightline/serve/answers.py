"""Bodies of answers, made from what was found."""

from dataclasses import asdict
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sightline.gallery.gallery import Value, labels_of
from sightline.gallery.query import Answer, QueryOptions
from sightline.ood.rejector import POLICIES
from sightline.ranking.refine import Refinement
from sightline.serve.collection import Collection, SearchJob
from sightline.serve.fields import relation
from sightline.serve.problems import Problem
from sightline.serve.schemas import (
    OF_THE_IMAGE,
    AnswerBody,
    GalleryBody,
    ItemBody,
    JudgedOptions,
    QueryBody,
    ResultBody,
    Took,
    VerdictBody,
)
from sightline.serve.service import Served

SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp"}


def item_body(collection: Collection, id_: str, metadata: dict[str, Value]) -> ItemBody:
    """An item as it is shown: without where its file lies, so that its metadata can be sent back."""
    start, end = f"/v1/items/{quote(id_, safe='')}", f"?gallery={quote(collection.name, safe='')}"
    has_image = bool(metadata.get("path"))
    return ItemBody(
        id=id_,
        labels=labels_of(metadata),
        metadata={key: value for key, value in metadata.items() if key not in OF_THE_IMAGE},
        image=f"{start}/image{end}" if has_image else None,
        thumbnail=f"{start}/thumbnail{end}" if has_image else None,
    )


def answer_body(
    collection: Collection, answer: Answer, took: dict[str, float], id_: str | None = None, labels: list[str] | None = None
) -> AnswerBody:
    """What was found for a query; its id and labels where it is an item."""
    results = []
    for hit in answer.results:
        item = item_body(collection, hit.id, hit.metadata)
        results.append(ResultBody(**item.model_dump(), score=hit.score, relation=relation(labels, item.labels)))
    verdict = None
    if answer.verdict is not None and answer.policy is not None:
        verdict = VerdictBody(**asdict(answer.verdict), policy=POLICIES[answer.policy])
    return AnswerBody(
        gallery=collection.name,
        generation=answer.generation,
        query=QueryBody(id=id_, labels=labels or None),
        verdict=verdict,
        results=results,
        took=Took(encode_ms=took.get("encode", 0.0), search_ms=took.get("search", 0.0)),
    )


def search_job(options: JudgedOptions, vector: NDArray[np.float32], own: str | None = None) -> SearchJob:
    """The query that some options and a vector make."""
    refinement = Refinement(expand=options.expand, alpha=options.alpha, rerank=options.rerank)
    return SearchJob(vector, QueryOptions(options.k, options.where, refinement, options.policy), own)


def checked_vector(values: list[float], dim: int) -> NDArray[np.float32]:
    """(D,) at length 1, as encoders give them."""
    if len(values) != dim:
        raise Problem(422, f"vector: {dim} numbers are needed, found {len(values)}")
    vector = np.asarray(values, np.float64)
    if not vector.any():
        raise Problem(422, "vector: its length is 0; it has no direction")
    vector = vector / np.abs(vector).max()  # so that no square is too small
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def gallery_body(served: Served, may_write: bool) -> GalleryBody:
    """A gallery as a page needs it; reads all items where they changed, so not for the event loop."""
    with served.collection.gallery() as gallery:
        identity = gallery.identity
        return GalleryBody(
            name=served.collection.name,
            items=len(gallery),
            dim=identity.dim,
            metric=gallery.metric,
            encoder=identity.name,
            fingerprint=identity.fingerprint,
            generation=gallery.generation,
            levels=served.fields.levels(gallery),
            fields=served.fields.of(gallery),
            rejector=served.collection.rejector() is not None,
            writable=served.collection.writable and may_write,
        )
