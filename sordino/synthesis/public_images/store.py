"""Cache on disk of expensive results, keyed by the hash of everything that they depend on.

Each file holds the SHA-256 of its content, then the content, and is written atomically. A damaged file is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from sordino.errors import DataError

DIGEST = hashlib.sha256().digest_size


def name(**depends: object) -> str:
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def place(cache: Path, kind: str, called: str) -> Path:
    return cache / kind / called[:2] / called


def get(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, error) from None
    content = stored[DIGEST:]
    return content if stored[:DIGEST] == hashlib.sha256(content).digest() else None


def put(path: Path, content: bytes) -> None:
    write(path, hashlib.sha256(content).digest() + content)


def write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # os.replace has moved it
                os.unlink(temporary)
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(
        f"the cache of candidates cannot use the directory {path}",
        why=str(error),
        fix="set engine.cache to a directory that has space and that you may write to",
        code="candidate-cache",
    )
