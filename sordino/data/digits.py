"""scikit-learn's handwritten digits (Alpaydin and Kaynak, UCI 1998): 1,797 real grey 8x8 images."""

from __future__ import annotations

import numpy as np

from sordino.data.dataset import Dataset, Split, pixel_stats, stratified


def load(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    from sklearn.datasets import load_digits  # here: it takes seconds

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]  # 17 grey levels, spread over a byte
    labels = bunch.target.astype(np.int64)
    train, test = (Split(images[rows], labels[rows]) for rows in stratified(labels, test_fraction, seed))
    mean, std = pixel_stats(train.x)
    return Dataset("digits", "image", 10, train, test, mean, std)
