"""Manifest of candidates, which every source writes for its images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from sordino.data.candidates import DISCLOSED, Candidates, Wanted
from sordino.data.dataset import Array

PROXY = "proxy candidates - not text-to-image output"
PUBLIC = f"{PROXY}; uses labelled public data"


def spoken(name: str) -> str:
    """A class name in words: "pickup truck" for `pickup_truck`."""
    return " ".join(name.replace("_", " ").split())


def gathered(source: str, label: str, wanted: Wanted, images: Sequence[Array], **more: object) -> Candidates:
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
