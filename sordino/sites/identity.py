"""Signing keys (Ed25519) of sites and server, and the list of public keys whose signatures are accepted.

    [sites]
    hospital-a = "<public key: 64 hexadecimal digits, or base64>"

    [revoked]
    hospital-b = [{ key = "<public key>", date = 2026-11-22 }]

A key that was revoked is on the list for ever, so that nobody allows it again by mistake, under this name or another.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from sordino.errors import ConfigError
from sordino.ledger.files import atomic_write

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
_NAME: TypeAdapter[str] = TypeAdapter(Name)
LENGTH = 32  # bytes of a public key
GROUP = 4  # characters that are read aloud together
TITLE = (
    "# Whose messages are believed. `sordino identity allow` and `revoke` write this file, and drop other comments.\n\n"
)


def check_name(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise ConfigError(
            f"{name!r} is not a site's name",
            why="it becomes the name of a file and of a certificate",
            fix="use at most 63 letters, digits, dots, dashes and underscores, the first one a letter or a digit",
            code="no-name",
        ) from None


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of a public key in groups of four, which two people compare on the phone."""
    text = hashlib.sha256(key.public_bytes_raw()).hexdigest()
    return " ".join(text[i : i + GROUP] for i in range(0, len(text), GROUP))


@dataclass(frozen=True)
class Revoked:
    """Key whose signatures are no longer accepted."""

    key: str
    date: date


@dataclass(frozen=True)
class KeysFile:
    """Contents of the list of allowed sites."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sites: dict[Name, str] = field(default_factory=dict)
    revoked: dict[str, list[Revoked]] = field(default_factory=dict)

    def keys_of_sites(self) -> dict[str, Ed25519PublicKey]:
        """Public keys of the allowed sites; a list with a revoked or a repeated key is refused."""
        found = {name: key_of(text) for name, text in self.sites.items()}
        gone = {key_of(old.key).public_bytes_raw() for several in self.revoked.values() for old in several}
        for name, key in found.items():
            if key.public_bytes_raw() in gone:
                raise ValueError(f"the key of {name} was revoked")
        if len({key.public_bytes_raw() for key in found.values()}) < len(found):
            raise ValueError("two sites have the same key, so one could sign as the other")
        return found


_FILE: TypeAdapter[KeysFile] = TypeAdapter(KeysFile)


class AllowList(Mapping[str, Ed25519PublicKey]):
    """Public keys of the allowed sites, as their file stands at each look-up. An unreadable file allows nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int, int], dict[str, Ed25519PublicKey]] | None = None
        self._now()

    def __getitem__(self, name: str) -> Ed25519PublicKey:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, Ed25519PublicKey]:
        try:
            about = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, str(error)) from None
        stamp = about.st_mtime_ns, about.st_size, about.st_ino
        if self._read is None or self._read[0] != stamp:
            self._read = None
            self._read = stamp, _opened(self._path)[1]
        return self._read[1]


def allow(path: Path, name: str, key: Ed25519PublicKey) -> None:
    """Put a site on a list; a new file is written where there is none."""
    check_name(name)
    listed, keys = _opened(path) if path.exists() else (KeysFile(), {})
    if name in keys and keys[name] != key:
        raise ConfigError(
            f"{name} is on the list with another key",
            fix=f"`sordino identity revoke {name}` first, if the other key must not be trusted any more",
            code="name-taken",
        )
    for old_name, several in listed.revoked.items():
        for old in several:
            if key_of(old.key) == key:
                raise ConfigError(
                    f"this key was revoked on {old.date} as that of {old_name}",
                    why="anyone with a copy of it could sign messages again",
                    fix=f"have {name} make a new one with `sordino identity new`",
                    code="revoked-key",
                )
    same = next((other for other, one in keys.items() if one == key and other != name), None)
    if same is not None:
        raise ConfigError(
            f"{same} has the same key",
            why="one of the two could sign as the other",
            fix="each site makes a key of its own with `sordino identity new`",
            code="same-key",
        )
    _store(path, KeysFile({**listed.sites, name: key.public_bytes_raw().hex()}, listed.revoked))


def revoke(path: Path, name: str, today: date | None = None) -> None:
    """Take a site off a list, and remember its key and the day."""
    listed, keys = _opened(path)
    if name not in keys:
        raise ConfigError(f"{name} is not on the list {path}", fix=f"on it are: {', '.join(keys)}", code="unknown-name")
    gone = Revoked(keys[name].public_bytes_raw().hex(), today or datetime.now(UTC).date())
    left = {other: text for other, text in listed.sites.items() if other != name}
    _store(path, KeysFile(left, {**listed.revoked, name: [*listed.revoked.get(name, []), gone]}))


def key_of(text: str) -> Ed25519PublicKey:
    """Public key from hexadecimal digits or base64."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    raw = base64.b64decode(text, validate=True)
    if len(raw) != LENGTH:
        raise ValueError(f"a public key has {LENGTH} bytes, {text[:80]!r} stands for {len(raw)}")
    return Ed25519PublicKey.from_public_bytes(raw)


def _opened(path: Path) -> tuple[KeysFile, dict[str, Ed25519PublicKey]]:
    try:
        listed = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        return listed, listed.keys_of_sites()
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None


def _store(path: Path, listed: KeysFile) -> None:
    told = {
        "sites": listed.sites,
        "revoked": {
            name: [{"key": old.key, "date": old.date} for old in several] for name, several in listed.revoked.items()
        },
    }
    atomic_write(path, (TITLE + tomli_w.dumps(told)).encode())


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a readable list of sites",
        why=why[:300],
        fix="`sordino identity allow NAME KEY.pub --list FILE` makes one; put a damaged one right by hand",
        code="no-list",
    )
