"""What the service is told: one frozen model, read from a TOML file, the environment and the command line."""

import ipaddress
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sightline.errors import InputError
from sightline.files import read_toml

PREFIX = "SIGHTLINE_SERVE_"
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP"]
FORMATS: tuple[Format, ...] = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


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

    galleries: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    token_file: Path | None = None
    public_read: bool = False
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    image_roots: tuple[Path, ...] = ()
    upload_bytes: int = Field(default=20_000_000, ge=1000)
    upload_seconds: float = Field(default=30.0, gt=0)
    upload_budget_bytes: int = Field(default=200_000_000, ge=1000)
    connections: int = Field(default=256, ge=2)
    pixels: int = Field(default=25_000_000, ge=1)
    formats: tuple[Format, ...] = FORMATS
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
            return frozenset({"read", "write"})
        return frozenset({"read"}) if self.public_read else frozenset()

    def known_hosts(self) -> frozenset[str] | None:
        """Names that requests may use; None for any. A page elsewhere cannot then pose as ours by its own name."""
        if self.allowed_hosts:
            return frozenset(host.lower() for host in self.allowed_hosts)
        return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower()}) if self.is_loopback() else None


def read_settings(
    file: Path | None = None, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> ServeSettings:
    """Settings from a TOML file, over it the environment (``SIGHTLINE_SERVE_PORT``), over it what is given.

    Args:
        file: with keys of :class:`ServeSettings`.
        given: by name; None means not given.
        environ: None for the process's.

    Example:
        >>> read_settings(given={"galleries": ["shoes"]}, environ={"SIGHTLINE_SERVE_PORT": "80"}).port
        80
    """
    values: dict[str, Any] = {}
    if file is not None:
        values = read_toml(file)
    environ = os.environ if environ is None else environ
    for name in ServeSettings.model_fields:
        if (value := environ.get(f"{PREFIX}{name.upper()}")) is not None:
            values[name] = value
    values |= {name: value for name, value in (given or {}).items() if value is not None}
    if not values.get("galleries"):
        raise InputError("no gallery to serve: name a folder made by `sightline index build`, or galleries in the settings")
    try:
        settings = ServeSettings.model_validate(values)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise InputError("settings of the service: " + "; ".join(faults)) from error
    names = [folder.resolve().name for folder in settings.galleries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two galleries are named {twice[0]!r}; each is served under its folder's name")
    if missing := [root for root in settings.image_roots if not root.is_dir()]:
        raise InputError(f"image_roots (--images): {missing[0]}: no such folder")
    if settings.token_file is None and not settings.is_loopback() and not settings.public_read:
        raise InputError(
            f"host {settings.host}: others can reach this address, so tokens are needed: make one with `sightline token` "
            "and give its file as --token-file, or let everybody read with --public-read"
        )
    return settings
