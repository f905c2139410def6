"""Handwritten digits (Alpaydin and Kaynak, UCI 1998, CC BY 4.0): 1,797 real grey 8x8 images in the package."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np

from sordino.data.dataset import STRATIFIED, Dataset, Split, pixel_stats, stratified

ROW = 8 * 8 + 1  # 64 grey levels from 0 to 16, and the label


def load(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    rows = np.frombuffer(gzip.decompress(files("sordino.data").joinpath("digits.bin.gz").read_bytes()), np.uint8)
    rows = rows.reshape(-1, ROW)
    images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # 17 levels, spread over a byte
    labels = rows[:, -1].astype(np.int64)
    train, test = (Split(images[part], labels[part]) for part in stratified(labels, test_fraction, seed))
    mean, std = pixel_stats(train.x)
    names = tuple("0123456789")
    return Dataset("digits", "image", 10, train, test, mean, std, names=names, taken_as_public=(STRATIFIED,))
