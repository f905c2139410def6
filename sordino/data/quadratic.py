"""Quadratic clients with a known optimum: the test bed of client drift (Karimireddy et al., ICML 2020).

Client k holds f_k(w) = 1/2 sum_j a_kj (w_j - b_kj)^2. Its rows are [a_k, b_k] (width 2 dim), and the loss
that a task must use on a row is

    loss(w; row) = 0.5 * sum(a * (w - b)^2)

so that the mean over a client's rows is f_k, and the mean over all rows has its minimum, coordinate by
coordinate, at sum_k a_k b_k / sum_k a_k. The curvatures a_k differ between clients, so FedAvg's fixed
point is another one: with many local steps it tends to mean_k b_k.
"""

from __future__ import annotations

import numpy as np

from sordino.data.dataset import Array, Dataset, Split


def make(clients: int, dim: int, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1) -> tuple[Dataset, Array]:
    """The data set and its optimum; with heterogeneity = 0 all clients have the same minimiser. The test examples
    repeat the training examples.
    """
    rng = np.random.default_rng(seed)
    curvature = rng.uniform(0.5, 2.0, (clients, dim))
    minimiser = rng.normal(size=dim) + heterogeneity * rng.normal(size=(clients, dim))
    rows = np.hstack([curvature, minimiser]).astype(np.float32).repeat(examples, axis=0)
    split = Split(rows, np.zeros(len(rows), np.int64), np.arange(clients, dtype=np.int64).repeat(examples))

    a, b = np.hsplit(rows.astype(np.float64), 2)  # from the stored float32, so that the optimum is that of the data
    untouched = ((0.0,) * (2 * dim), (1.0,) * (2 * dim))  # standardising would change the problem
    return Dataset("quadratic", "table", 0, split, split, *untouched), (a * b).sum(0) / a.sum(0)


def load(clients: int = 10, dim: int = 10, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1) -> Dataset:
    """The data set without its optimum, with the same return type as other loaders."""
    return make(clients, dim, seed, heterogeneity, examples)[0]
