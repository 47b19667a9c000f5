"""Settings of the service, from a TOML file, the environment and the command line; tokens."""

import hashlib
import hmac
import ipaddress
import os
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
from sightline.models.inference import BackendName

PREFIX = "SIGHTLINE_SERVE_"
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP"]
SCOPES = {"read": frozenset({"read"}), "write": frozenset({"read", "write"})}
LONGEST = 512  # token or cookie


class ServeSettings(BaseModel):
    """Settings of the service.

    Attributes:
        galleries: folders; each is served under its folder's name, the first is the default.
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        workers: worker processes; each has its own encoder, all share the gallery files.
        token_file: written by `sightline token`; required on any address but loopback, unless ``public_read``.
        public_read: allow reading without a token.
        read_only: refuse all writes.
        backend: what runs the encoders; see :func:`~sightline.models.inference.open_backend`.
        trust: import and run the module that a wrapped encoder of a gallery names.
        allowed_hosts: host names that requests may use; empty allows the loopback names on loopback and any name elsewhere.
        trusted_proxies: addresses of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted.
        image_roots: folders whose images are shown, besides those in a gallery's own folder.
        upload_bytes: largest request.
        upload_seconds: time limit for a request to arrive, and for a client that does not read its answer.
        upload_budget_bytes: memory for unanswered requests; beyond it, further ones are read as space becomes free.
        connections: open connections, at most a quarter of the process's file limit; beyond it, the longest idle one is
            closed.
        pixels: largest image, width times height.
        formats: accepted image formats.
        batch: largest number of images in one pass through the encoder.
        batch_wait: seconds that a pass waits for more images.
        waiting: requests accepted at once; further ones get 429.
        threads: threads that decode images.
        rate: sustained searches and writes per second, by token or address; reads count a tenth; None (``none`` in files)
            for no limit.
        burst: searches and writes that may come at once.
        cache_bytes: memory for cached thumbnails.
        shutdown_seconds: time for accepted requests to finish at shutdown.
        session_seconds: lifetime of the page's cookie for images.
        session_key: key that signs those cookies; random at startup by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    galleries: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    token_file: Path | None = None
    public_read: bool = False
    read_only: bool = False
    backend: BackendName = "auto"
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
        """TOML and environment variables have no None."""
        return None if value == "none" else value

    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def open_scopes(self) -> frozenset[str]:
        """Scopes that need no token."""
        if self.token_file is None and self.is_loopback():
            return SCOPES["write"]
        return SCOPES["read"] if self.public_read else frozenset()

    def known_hosts(self) -> frozenset[str] | None:
        """Host names that requests may use, lower case; None for any. Guards against DNS rebinding."""
        if self.allowed_hosts:
            return frozenset(host.lower() for host in self.allowed_hosts)
        return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower()}) if self.is_loopback() else None

    def most_connections(self) -> int:
        """``connections``, at most a quarter of the process's file limit: some are accepted before others close."""
        try:
            import resource
        except ModuleNotFoundError:  # on Windows, which has no such limit
            return self.connections
        n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if n_files == resource.RLIM_INFINITY else max(1, min(self.connections, n_files // 4))


def read_settings(
    file: Path | None = None, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> ServeSettings:
    """Settings from a file, overridden by ``SIGHTLINE_SERVE_...`` variables, overridden by ``given``.

    Args:
        file: TOML file; None for no file.
        given: values by name; None counts as not given.
        environ: environment variables; None for those of the process.

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
        raise InputError(f"service settings: {fault_text(error.errors())}") from error
    counts = Counter(folder.resolve().name for folder in settings.galleries)
    twice = [name for name, count in counts.items() if count > 1]
    missing = [str(root) for root in settings.image_roots if not root.is_dir()]
    needs_token = settings.token_file is None and not settings.is_loopback() and not settings.public_read
    faults = {
        "galleries: at least one is required: name a folder made by `sightline index build`": not counts,
        f"galleries: names must be unique, got two folders named {names(twice)}": twice,
        f"image_roots (--images): no such folder: {', '.join(missing)}": missing,
        f"host {settings.host}: an address that others can reach requires a token: make one with `sightline token` and "
        "pass its file as --token-file, or allow everybody to read with --public-read": needs_token,
    }
    raise_faults("service settings", [message for message, is_wrong in faults.items() if is_wrong])
    return settings


def fault_text(faults: Iterable[Any]) -> str:
    """Pydantic's errors in one line; at most 20 of them."""
    return "; ".join(f"{'.'.join(map(str, fault['loc']))[:200]}: {fault['msg']}" for fault in islice(faults, 20))


class Token(BaseModel):
    """One entry of a token file: a name for the logs, the scope, and the token's SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    scope: Literal["read", "write"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


TOKEN_FILE = TypeAdapter(
    Annotated[dict[Literal["token"], Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)]
)


def add_token(file: Path, name: str, scope: str) -> str:
    """Generate a random 256-bit token, add its hash to the file, and return the token, which is stored nowhere.

    A plain hash is enough: 2^256 tokens cannot be tried, however fast the hash.
    """
    choose(SCOPES, scope, "scope")
    if not name.isprintable() or not 0 < len(name) <= 100 or {*name} & {*'"\\'}:
        raise InputError(f"name must be 1 to 100 printable characters without quotes and backslashes, got {name!r}")
    known = read_tokens(file) if file.exists() else []
    if name in {token.name for token in known}:
        raise InputError(f"{file}: a token named {name!r} already exists")
    drawn = secrets.token_urlsafe(32)
    added = Token.model_validate({"name": name, "scope": scope, "sha256": _digest(drawn)})
    entries = [
        f'[[token]]\nname = "{token.name}"\nscope = "{token.scope}"\nsha256 = "{token.sha256}"\n'
        for token in [*known, added]
    ]
    with replaced(file) as scratch:
        os.close(os.open(scratch, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        if file.exists():
            shutil.copymode(file, scratch)  # whoever could read the old file can read the new one
        scratch.write_text("\n".join(entries), encoding="utf-8")
    return drawn


def read_tokens(file: Path) -> list[Token]:
    """The entries of a token file."""
    if not os.path.lexists(file):
        raise InputError(f"{file}: no such file; create one with `sightline token`")
    try:
        return TOKEN_FILE.validate_python(read_toml(file))["token"]
    except ValidationError as error:
        raise InputError(f"{file}: not a token file: {fault_text(error.errors())}") from error


def file_stamp(file: Path) -> tuple[int, int] | None:
    """Modification time and inode of a file, which change with its content; None if it cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class Tokens:
    """The tokens of a file, read again when it changes, so that a token can be revoked while serving."""

    def __init__(self, file: Path | None, session_key: str, session_seconds: int) -> None:
        self._file = file
        self._key = session_key.encode()
        self._seconds = session_seconds
        self._stamp = None if file is None else file_stamp(file)
        self._tokens = [] if file is None else read_tokens(file)

    def _current(self) -> list[Token]:
        if self._file is not None and (stamp := file_stamp(self._file)) != self._stamp:
            self._tokens, self._stamp = [], stamp  # an unreadable file grants access to nobody
            with suppress(InputError, OSError):
                self._tokens = read_tokens(self._file)
        return self._tokens

    def find(self, given: str) -> Token | None:
        """The entry of a token, in constant time; None if there is none."""
        digest = _digest(given[:LONGEST])
        found = [token for token in self._current() if hmac.compare_digest(token.sha256, digest)]
        return found[0] if found and len(given) <= LONGEST else None

    def session(self, token: Token) -> str:
        """A cookie value that grants reading for a limited time."""
        content = f"{int(time.time()) + self._seconds}.{token.sha256[:16]}"
        return f"{content}.{self._signature(content)}"

    def find_session(self, value: str) -> Token | None:
        """The entry that a cookie value was made for, if both are still valid."""
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
