"""Cache on disk of expensive results, keyed by the hash of everything that they depend on; and the manifest that every
source of candidates writes for its images.

Each file holds the SHA-256 of its content, then the content, and is written atomically. A damaged file is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.data.dataset import DISCLOSED, Array, Candidates, ImageNeeds
from sordino.errors import DataError
from sordino.ledger.files import atomic_write

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, hashlib.sha256(content).digest() + content)
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(
        f"the cache of candidates cannot use the directory {path}",
        why=str(error),
        fix="set engine.cache to a directory that has space and that you may write to",
        code="candidate-cache",
    )


PROXY = "proxy candidates - not text-to-image output"
PUBLIC = f"{PROXY}; uses labelled public data"


def spoken(name: str) -> str:
    """A class name in words: "pickup truck" for `pickup_truck`."""
    return " ".join(name.replace("_", " ").split())


def gathered(source: str, label: str, wanted: ImageNeeds, images: Sequence[Array], **more: object) -> Candidates:
    """Candidates from one array of images per class, with their manifest."""
    counts = [len(of_class) for of_class in images]
    x = np.concatenate([np.asarray(of_class, np.uint8).reshape(-1, *wanted.shape) for of_class in images])
    y = np.repeat(np.arange(len(images), dtype=np.int64), counts)
    different = {(int(of), hashlib.sha256(image.tobytes()).digest()) for image, of in zip(x, y, strict=True)}
    manifest = {
        "source": source,
        "label": label,
        "model": None,
        "shape": list(wanted.shape),
        "wanted": wanted.per_class,
        "counts": dict(zip(wanted.classes, counts, strict=True)),
        "duplicates": len(x) - len(different),  # images that equal another one of their class to the last bit
        "blanks": 0,
        "prompts": {},
        "calls": 0,
        DISCLOSED: [],
        "made": len(x),
        "cached": 0,
        **more,
    }
    return Candidates(x, y, manifest)
