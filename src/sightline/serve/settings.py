"""What the service is given: settings from a TOML file, the environment and the command line; tokens and who has them."""

import hashlib
import hmac
import ipaddress
import os
import resource
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from sightline.errors import InputError, choose, names, raise_faults
from sightline.files import read_toml, replaced

PREFIX = "SIGHTLINE_SERVE_"
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP"]
SCOPES = {"read": frozenset({"read"}), "write": frozenset({"read", "write"})}
LONGEST = 512  # token or cookie


class ServeSettings(BaseModel):
    """Everything that can be set.

    Attributes:
        galleries: folders; each is served under its folder's name, the first by default.
        host: address to listen on.
        port: 0 takes a free one.
        workers: processes; each has its own encoder, all share the files of the galleries.
        token_file: written by `sightline token`; needed on any address but loopback, unless ``public_read``.
        public_read: who has no token may read.
        read_only: nobody may write.
        trust: import and run the module that a wrapped encoder of a gallery names.
        allowed_hosts: names that requests may call the service by; empty for loopback's on loopback, any elsewhere.
        trusted_proxies: addresses whose ``X-Forwarded-For`` and ``-Proto`` are believed.
        image_roots: folders whose images are shown, besides those in a gallery's own folder.
        upload_bytes: largest request.
        upload_seconds: longest time for a request to arrive, and for a client not to listen to its answer.
        upload_budget_bytes: of all requests that are not answered yet; beyond, the next ones are read when there is room.
        connections: open at once, at most a quarter of the files that the process may open; for one more, the one that has
            been idle the longest is closed.
        pixels: largest image, width times height.
        formats: of images that are taken.
        batch: images in one pass through the encoder, at most.
        batch_wait: seconds that a pass waits for more images.
        waiting: requests that are taken at once; those beyond get 429.
        threads: that decode images.
        rate: searches and writes a second, by token or address, in the long run; None (in files ``none``) for no
            limit. Reads count a tenth.
        burst: that may come at once.
        cache_bytes: of thumbnails kept in memory.
        shutdown_seconds: that accepted requests are given to end.
        session_seconds: that a page's cookie for images lasts.
        session_key: that such cookies are signed with; drawn at the start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    galleries: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    token_file: Path | None = None
    public_read: bool = False
    read_only: bool = False
    trust: bool = False
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    image_roots: tuple[Path, ...] = ()
    upload_bytes: int = Field(default=20_000_000, ge=1000)
    upload_seconds: float = Field(default=30.0, gt=0)
    upload_budget_bytes: int = Field(default=200_000_000, ge=1000)
    connections: int = Field(default=256, ge=2)
    pixels: int = Field(default=25_000_000, ge=1)
    formats: tuple[Format, ...] = get_args(Format)
    batch: int = Field(default=32, ge=1)
    batch_wait: float = Field(default=0.004, ge=0, le=1)
    waiting: int = Field(default=128, ge=1)
    threads: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    rate: float | None = Field(default=50.0, gt=0)
    burst: float = Field(default=200.0, ge=1)
    cache_bytes: int = Field(default=64_000_000, ge=0)
    shutdown_seconds: int = Field(default=30, ge=1)
    session_seconds: int = Field(default=900, ge=1)
    session_key: str = Field(default_factory=lambda: secrets.token_hex(32), min_length=32, repr=False)

    @field_validator("galleries", "allowed_hosts", "trusted_proxies", "image_roots", "formats", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Lists in the environment are separated by commas."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("rate", mode="before")
    @classmethod
    def _unlimited(cls, value: object) -> object:
        """Neither TOML nor the environment has a word for None."""
        return None if value == "none" else value

    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def open_scopes(self) -> frozenset[str]:
        """What may be done without a token."""
        if self.token_file is None and self.is_loopback():
            return SCOPES["write"]
        return SCOPES["read"] if self.public_read else frozenset()

    def known_hosts(self) -> frozenset[str] | None:
        """Names that requests may use; None for any. A page elsewhere cannot then pose as ours by its own name."""
        if self.allowed_hosts:
            return frozenset(host.lower() for host in self.allowed_hosts)
        return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower()}) if self.is_loopback() else None

    def most_connections(self) -> int:
        """``connections``, or a quarter of the files that the process may open: some are accepted before others close."""
        n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if n_files == resource.RLIM_INFINITY else max(1, min(self.connections, n_files // 4))


def read_settings(
    file: Path | None = None, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> ServeSettings:
    """Settings of a file, over which go ``SIGHTLINE_SERVE_...`` variables, over which goes what is given.

    Args:
        file: TOML; None for none.
        given: by name; None counts as not given.
        environ: the environment; None for the process's.

    Example:
        >>> read_settings(given={"galleries": ["shoes"]}, environ={"SIGHTLINE_SERVE_PORT": "80"}).port
        80
    """
    environ = os.environ if environ is None else environ
    values = {} if file is None else read_toml(file)
    variables = {name: environ.get(f"{PREFIX}{name.upper()}") for name in ServeSettings.model_fields}
    for source in (variables, given or {}):
        values |= {name: value for name, value in source.items() if value is not None}
    try:
        settings = ServeSettings.model_validate(values)
    except ValidationError as error:
        raise InputError(f"settings of the service: {fault_text(error.errors())}") from error
    counts = Counter(folder.resolve().name for folder in settings.galleries)
    twice = [name for name, count in counts.items() if count > 1]
    missing = [str(root) for root in settings.image_roots if not root.is_dir()]
    needs_token = settings.token_file is None and not settings.is_loopback() and not settings.public_read
    faults = {
        "no gallery to serve: name a folder made by `sightline index build`, or galleries in the settings": not counts,
        f"two galleries are named {names(twice)}; each is served under its folder's name": twice,
        f"image_roots (--images): no such folder: {', '.join(missing)}": missing,
        f"host {settings.host}: others can reach this address, so tokens are needed: make one with `sightline token` and "
        "give its file as --token-file, or let everybody read with --public-read": needs_token,
    }
    raise_faults("settings of the service", [message for message, is_wrong in faults.items() if is_wrong])
    return settings


def fault_text(faults: Iterable[Any]) -> str:
    """What pydantic found wrong, in one line; cut after 20 faults."""
    return "; ".join(f"{'.'.join(map(str, fault['loc']))[:200]}: {fault['msg']}" for fault in islice(faults, 20))


class Token(BaseModel):
    """One entry of a token file: a name for the logs, what it allows, and the token's SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    scope: Literal["read", "write"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


TOKEN_FILE = TypeAdapter(
    Annotated[dict[Literal["token"], Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)]
)


def add_token(file: Path, name: str, scope: str) -> str:
    """Draw a token of 256 bits, add its hash to the file, and return the token itself, which is stored nowhere.

    A plain hash is enough: nobody can try 2^256 tokens, slowly or not.
    """
    choose(SCOPES, scope, "scope")
    if not name.isprintable() or not 0 < len(name) <= 100 or {*name} & {*'"\\'}:
        raise InputError(f"the name {name!r} does not fit: up to 100 printable letters without quotes and backslashes")
    known = read_tokens(file) if file.exists() else []
    if name in {token.name for token in known}:
        raise InputError(f"{file}: has a token named {name!r} already")
    drawn = secrets.token_urlsafe(32)
    added = Token.model_validate({"name": name, "scope": scope, "sha256": _digest(drawn)})
    entries = [
        f'[[token]]\nname = "{token.name}"\nscope = "{token.scope}"\nsha256 = "{token.sha256}"\n'
        for token in [*known, added]
    ]
    with replaced(file) as scratch:
        os.close(os.open(scratch, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        if file.exists():
            shutil.copymode(file, scratch)  # who could read it can read it still
        scratch.write_text("\n".join(entries), encoding="utf-8")
    return drawn


def read_tokens(file: Path) -> list[Token]:
    """The entries of a token file."""
    if not os.path.lexists(file):
        raise InputError(f"{file}: no such file; `sightline token` makes one")
    try:
        return TOKEN_FILE.validate_python(read_toml(file))["token"]
    except ValidationError as error:
        raise InputError(f"{file}: not a file of `sightline token`: {fault_text(error.errors())}") from error


def file_stamp(file: Path) -> tuple[int, int] | None:
    """Time of change and number of a file, which change when its content does; None where it cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class Tokens:
    """The tokens of a file, read again when it changes, so that a token can be withdrawn while serving."""

    def __init__(self, file: Path | None, session_key: str, session_seconds: int) -> None:
        self._file = file
        self._key = session_key.encode()
        self._seconds = session_seconds
        self._stamp = None if file is None else file_stamp(file)
        self._tokens = [] if file is None else read_tokens(file)

    def _current(self) -> list[Token]:
        if self._file is not None and (stamp := file_stamp(self._file)) != self._stamp:
            self._tokens, self._stamp = [], stamp  # a file that cannot be read lets nobody in
            with suppress(InputError, OSError):
                self._tokens = read_tokens(self._file)
        return self._tokens

    def find(self, given: str) -> Token | None:
        """The entry of a token; takes as long for a wrong one as for a right one."""
        digest = _digest(given[:LONGEST])
        found = [token for token in self._current() if hmac.compare_digest(token.sha256, digest)]
        return found[0] if found and len(given) <= LONGEST else None

    def session(self, token: Token) -> str:
        """A value for a cookie that stands for the right to read, for a while."""
        content = f"{int(time.time()) + self._seconds}.{token.sha256[:16]}"
        return f"{content}.{self._signature(content)}"

    def find_session(self, value: str) -> Token | None:
        """The entry that such a value was made for, if it is still valid and the entry is still there."""
        content, _, signature = value.rpartition(".")
        if len(value) > LONGEST or not value.isascii() or not hmac.compare_digest(self._signature(content), signature):
            return None
        until, _, start = content.partition(".")
        tokens = self._current() if int(until) >= time.time() else []
        return next((token for token in tokens if token.sha256.startswith(start)), None)

    def _signature(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
