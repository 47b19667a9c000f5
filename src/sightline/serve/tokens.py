"""Bearer tokens: who may read, who may write. Files hold hashes of them; the cookie of a page is signed."""

import hashlib
import hmac
import os
import secrets
import shutil
import time
from dataclasses import dataclass, fields
from pathlib import Path

from sightline.errors import InputError, choose, names
from sightline.files import read_toml, replaced

SCOPES = {"read": frozenset({"read"}), "write": frozenset({"read", "write"})}
LONGEST = 512


@dataclass(frozen=True)
class Token:
    """One entry of a token file: a name for the logs, what it allows, and the token's SHA-256."""

    name: str
    scope: str
    sha256: str

    @property
    def scopes(self) -> frozenset[str]:
        """What may be done with it."""
        return SCOPES[self.scope]


def add_token(file: Path, name: str, scope: str) -> str:
    """Draw a token of 256 bits, add its hash to the file, and give the token itself, which is kept nowhere.

    A plain hash is enough: nobody can try 2^256 tokens, slowly or not.
    """
    choose(SCOPES, scope, "scope")
    if not name or not name.isprintable() or any(letter in name for letter in '"\\') or len(name) > 100:
        raise InputError(f"the name {name!r} does not fit: up to 100 printable letters without quotes and backslashes")
    known = read_tokens(file) if file.exists() else []
    if name in {token.name for token in known}:
        raise InputError(f"{file}: has a token named {name!r} already")
    drawn = secrets.token_urlsafe(32)
    lines = [
        f'[[token]]\nname = "{token.name}"\nscope = "{token.scope}"\nsha256 = "{token.sha256}"\n'
        for token in [*known, Token(name, scope, _digest(drawn))]
    ]
    with replaced(file) as scratch:
        os.close(os.open(scratch, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        if file.exists():
            shutil.copymode(file, scratch)  # who could read it can read it still
        scratch.write_text("\n".join(lines), encoding="utf-8")
    return drawn


def read_tokens(file: Path) -> list[Token]:
    """The entries of a token file."""
    if not os.path.lexists(file):
        raise InputError(f"{file}: no such file; `sightline token` makes one")
    read = read_toml(file)
    entries = read.pop("token", [])
    if read:
        raise InputError(f"{file}: unknown keys {names(sorted(read)[:10])}; only [[token]] tables fit")
    tokens = [_checked(entry, file) for entry in entries] if isinstance(entries, list) else []
    if not tokens:
        raise InputError(f"{file}: has no token; `sightline token` adds one")
    return tokens


def _checked(entry: object, file: Path) -> Token:
    """The entry, if it has the three texts of a token and nothing else."""
    keys = [field.name for field in fields(Token)]
    if not isinstance(entry, dict) or entry.keys() != {*keys} or not all(isinstance(text, str) for text in entry.values()):
        raise InputError(f"{file}: each [[token]] needs the texts {names(keys)} and nothing else")
    token = Token(**entry)
    choose(SCOPES, token.scope, f"scope of token {token.name!r} in {file}")
    if len(token.sha256) != 64 or set(token.sha256) - set("0123456789abcdef"):
        raise InputError(f"{file}: token {token.name!r}: sha256 is not 64 hexadecimal digits")
    return token


class Tokens:
    """The tokens of a file, read again when it changes, so that a token can be withdrawn while serving."""

    def __init__(self, file: Path | None, session_key: str, session_seconds: int) -> None:
        self._file = file
        self._key = session_key.encode()
        self._seconds = session_seconds
        self._stamp = self._stamped()
        self._tokens = [] if file is None else read_tokens(file)

    def _stamped(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _current(self) -> list[Token]:
        stamp = self._stamped()
        if self._file is not None and stamp != self._stamp:
            try:
                self._tokens = read_tokens(self._file)
            except (InputError, OSError):
                self._tokens = []  # a file that cannot be read lets nobody in
            self._stamp = stamp
        return self._tokens

    def find(self, given: str) -> Token | None:
        """The entry of a token; takes as long for a wrong one as for a right one."""
        if not 0 < len(given) <= LONGEST:
            return None
        digest = _digest(given)
        found = None
        for token in self._current():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def session(self, token: Token) -> str:
        """A value for a cookie that stands for the right to read, for a while."""
        said = f"{int(time.time()) + self._seconds}.{token.sha256[:16]}"
        return f"{said}.{self._signed(said)}"

    def find_session(self, value: str) -> Token | None:
        """The entry that such a value was made for, if it is still valid and the entry is still there."""
        said, _, signature = value.rpartition(".")
        if len(value) > LONGEST or not value.isascii() or not hmac.compare_digest(self._signed(said), signature):
            return None
        until, _, start = said.partition(".")
        if int(until) < time.time():
            return None
        return next((token for token in self._current() if token.sha256.startswith(start)), None)

    def _signed(self, said: str) -> str:
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
