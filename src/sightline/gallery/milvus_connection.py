"""Where a collection of Milvus is, how to connect to it, and what Milvus calls things."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sightline.errors import InputError

DEFAULT_COLLECTION = "sightline"
SECONDS = 10.0  # to wait for an answer when connecting
URI = "'milvus+http://host:19530/collection', 'milvus+https://...' or 'milvus+file:path.db/collection'"


@dataclass(frozen=True)
class Address:
    """Where a collection is.

    Attributes:
        uri: what Milvus's client connects to.
        collection: its name.
        token: ``user:password``, or empty.
        shown: the whole as people may read it, without the password.
    """

    uri: str
    collection: str
    token: str
    shown: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file of Milvus Lite."""
        return not self.uri.startswith("http")

    @classmethod
    def read(cls, text: str) -> "Address":
        """The parts of an address.

        Example:
            >>> Address.read("milvus+http://me:secret@host:19530/birds").shown
            'milvus+http://me@host:19530/birds'
            >>> Address.read("milvus+file:/data/birds.db/birds").uri
            '/data/birds.db'
        """
        if file := re.fullmatch(r"(?:milvus\+file:(?://)?)?(.+?\.db)(?:/([^/]+))?", text):
            found = cls(file[1], file[2] or DEFAULT_COLLECTION, "", text)
        elif text.startswith(("milvus+http://", "milvus+https://")):
            parts = urlsplit(text.removeprefix("milvus+"))
            host, user = parts.netloc.rpartition("@")[2], parts.username or ""
            token = f"{user}:{parts.password}" if parts.password else user
            where = f"{parts.scheme}://{host}"
            shown = f"milvus+{parts.scheme}://{user + '@' if user else ''}{host}{parts.path}"
            found = cls(where, parts.path.strip("/") or DEFAULT_COLLECTION, token, shown)
        else:
            raise InputError(f"{text}: not an address of Milvus; what fits: {URI}")
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", found.collection, re.ASCII):
            raise InputError(f"{found.shown}: a collection's name is of letters, digits and _, found {found.collection!r}")
        return found


def index_type(text: str) -> tuple[str, dict[str, int]]:
    """Milvus's name for an index and its options.

    Example:
        >>> index_type("IVF1024,PQ64")
        ('IVF_PQ', {'nlist': 1024, 'm': 64, 'nbits': 8})
    """
    if text in ("auto", "exact"):
        return {"auto": "AUTOINDEX", "exact": "FLAT"}[text], {}
    if graph := re.fullmatch(r"HNSW(\d+)", text):
        return "HNSW", {"M": int(graph[1]), "efConstruction": 200}
    if lists := re.fullmatch(r"IVF(\d+),(?:(Flat)|(SQ8)|PQ(\d+))", text):
        n_lists = {"nlist": int(lists[1])}
        if lists[4]:
            return "IVF_PQ", {**n_lists, "m": int(lists[4]), "nbits": 8}
        return ("IVF_FLAT" if lists[2] else "IVF_SQ8"), n_lists
    raise InputError(f"index {text!r} is not one of Milvus: auto, exact, HNSW32, IVF1024,Flat, IVF1024,SQ8, IVF1024,PQ64")


def connected(address: Address, must_exist: bool = False) -> tuple[Any, Any]:
    """A client, and Milvus's data types; a file of Milvus Lite is made if it need not be there."""
    if address.is_file and not (Path(address.uri) if must_exist else Path(address.uri).parent).exists():
        raise InputError(f"{address.shown}: no such {'file' if must_exist else 'folder to put it in'}")
    try:
        from pymilvus import DataType, MilvusClient
    except ImportError as error:
        raise InputError("Milvus needs the package pymilvus: pip install 'sightline[cluster]'") from error
    with told(address.shown, " cannot be reached"):
        return MilvusClient(address.uri, token=address.token, timeout=SECONDS), DataType


def collection_is_at(text: str) -> bool:
    """Whether there is a collection at an address, made by Sightline or not."""
    address = Address.read(text)
    if address.is_file and not Path(address.uri).exists():
        return False
    client, _ = connected(address)
    try:
        with told(address.shown):
            return bool(client.has_collection(address.collection))
    finally:
        client.close()


def check_index(asked: str, built: Mapping[str, Any], shown: str) -> None:
    """Refuse another index than that of a collection, which is chosen when it is made.

    Args:
        asked: such as ``HNSW32``.
        built: what Milvus says of the index; Milvus Lite says nothing of its options, which are then not compared.
        shown: the collection's address.
    """
    kind, options = index_type(asked)
    told_of = {name: str(built[name]) for name in options if name in built}
    if built.get("index_type") != kind or any(value != str(options[name]) for name, value in told_of.items()):
        is_there = ", ".join([str(built.get("index_type")), *(f"{name} {value}" for name, value in told_of.items())])
        raise InputError(f"{shown}: its index is {is_there}, chosen when it was made; {asked!r} needs a new collection")


@contextmanager
def told(where: str, what: str = "") -> Iterator[None]:
    """Milvus's errors as ours, in one line, and without its own report of them on standard error."""
    from grpc import RpcError
    from pymilvus import MilvusException

    log = getLogger("pymilvus")
    level = log.level
    log.setLevel("CRITICAL")
    try:
        yield
    except (MilvusException, RpcError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise InputError(f"{where}:{what or ' Milvus says'}: {str(reason).splitlines()[0]}") from error
    finally:
        log.setLevel(level)
