"""Which items answer which query, where labels do not say it: a JSON file beside the manifest."""

from collections.abc import Sequence
from pathlib import Path

from sightline.errors import InputError, raise_faults
from sightline.files import read_json


def judgements_file(manifest: Path) -> Path:
    """Where the judgements of a manifest are.

    Example:
        >>> judgements_file(Path("sets/roxford5k.parquet")).as_posix()
        'sets/roxford5k.judgements.json'
    """
    return manifest.with_name(f"{manifest.stem}.judgements.json")


def read_judgements(
    file: Path, query_ids: Sequence[str], gallery_ids: Sequence[str], kinds: Sequence[str] = ("easy", "hard", "junk")
) -> list[list[list[int]]]:
    """The items of each kind for each query, as places in the gallery; ``evaluate_revisited`` takes the default three.

    Args:
        file: see :func:`judgements_file`.
        query_ids: the manifest's ids of the queries, in the order of their vectors.
        gallery_ids: of the items, in the order of theirs; distractors are among them.
        kinds: ``easy``, ``hard`` and ``junk``, or ``relevant`` for Google Landmarks v2.

    Returns:
        For each kind, a list for each query.
    """
    try:
        judged = read_json(Path(file))
    except OSError as error:
        raise InputError(f"{file}: not a file of judgements: {error}") from error
    if not isinstance(judged, dict) or not all(isinstance(lists, dict) for lists in judged.values()):
        raise InputError(f"{file}: not a file of judgements: a table of lists for each query is needed")
    place = {name: number for number, name in enumerate(gallery_ids)}
    faults = []
    for query in query_ids:
        for kind in kinds:
            if not isinstance(judged.get(query, {}).get(kind), list):
                faults.append(f"query {query!r}: no list {kind!r}")
            else:
                strange = [item for item in judged[query][kind] if not isinstance(item, str) or item not in place]
                faults += [f"query {query!r}: {item!r} is not in the gallery" for item in strange]
    raise_faults(file, faults)
    return [[[place[item] for item in judged[query][kind]] for query in query_ids] for kind in kinds]
