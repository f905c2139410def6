"""Data sets that come with the package: handwritten digits, and two synthetic ones.

Quadratic clients have a known optimum: the test bed of client drift (Karimireddy et al., ICML 2020).

Client k holds f_k(w) = 1/2 sum_j a_kj (w_j - b_kj)^2. Its rows are [a_k, b_k] (width 2 dim), and the loss
that a task must use on a row is

    loss(w; row) = 0.5 * sum(a * (w - b)^2)

so that the mean over a client's rows is f_k, and the mean over all rows has its minimum, coordinate by
coordinate, at sum_k a_k b_k / sum_k a_k. The curvatures a_k differ between clients, so FedAvg's fixed
point is another one: with many local steps it tends to mean_k b_k.

synthetic(alpha, beta) has devices with a linear truth and inputs of their own (Li et al., MLSys 2020; after Shamir,
Srebro and Zhang, ICML 2014).

Device k: u_k ~ N(0, alpha), B_k ~ N(0, beta) (standard deviations, as in the authors' code); W_k and b_k ~ N(u_k, 1),
v_k ~ N(B_k, 1) entry by entry; x ~ N(v_k, diag(j^-1.2)), y = argmax(x W_k + b_k). alpha is how much local truths
differ, beta how much inputs differ; synthetic(0, 0) is still not IID. The IID set has one W, b ~ N(0, 1) for all and
v_k = 0. Sizes are 50 + floor(LogNormal(4, 2)).
"""

from __future__ import annotations

import gzip
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from sordino.data.dataset import STRATIFIED, Array, Dataset, DrawnRows, Split, pixel_stats, stratified

# digits ---------------------------------------------------------------------------------------------------------------

ROW = 8 * 8 + 1  # 64 grey levels from 0 to 16, and the label


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits (Alpaydin and Kaynak, UCI 1998, CC BY 4.0): 1,797 real grey 8x8 images in the package."""
    rows = np.frombuffer(gzip.decompress(files("sordino.data").joinpath("digits.bin.gz").read_bytes()), np.uint8)
    rows = rows.reshape(-1, ROW)
    images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # 17 levels, spread over a byte
    labels = rows[:, -1].astype(np.int64)
    train, test = (Split(images[part], labels[part]) for part in stratified(labels, test_fraction, seed))
    mean, std = pixel_stats(train.x)
    names = tuple("0123456789")
    return Dataset("digits", "image", 10, train, test, mean, std, names=names, taken_as_public=(STRATIFIED,))


# quadratic ------------------------------------------------------------------------------------------------------------


def quadratic_with_optimum(
    clients: int, dim: int, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1
) -> tuple[Dataset, Array]:
    """Random quadratic losses, one for each client, and the optimum of their sum; with heterogeneity = 0 all have the
    same minimiser. The test examples repeat the training examples."""
    rng = np.random.default_rng(seed)
    curvature = rng.uniform(0.5, 2.0, (clients, dim))
    minimiser = rng.normal(size=dim) + heterogeneity * rng.normal(size=(clients, dim))
    rows = np.hstack([curvature, minimiser]).astype(np.float32).repeat(examples, axis=0)
    split = Split(rows, np.zeros(len(rows), np.int64), np.arange(clients, dtype=np.int64).repeat(examples))

    a, b = np.hsplit(rows.astype(np.float64), 2)  # from the stored float32, so that the optimum is that of the data
    untouched = ((0.0,) * (2 * dim), (1.0,) * (2 * dim))  # standardising would change the problem
    return Dataset("quadratic", "table", 0, split, split, *untouched), (a * b).sum(0) / a.sum(0)


def quadratic(
    clients: int = 10, dim: int = 10, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1
) -> Dataset:
    """Random quadratic losses, one for each client, whose optimum is known in closed form: for tests of optimisers."""
    return quadratic_with_optimum(clients, dim, seed, heterogeneity, examples)[0]


# synthetic(alpha, beta) -----------------------------------------------------------------------------------------------

FEATURES, CLASSES = 60, 10
SPREAD = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations
HELD = 1 << 30  # bytes of training inputs that are kept in memory; more are drawn again when a device is asked for


class TrueModel(NamedTuple):
    """The model that labels the examples of one device."""

    w: Array  # [features, classes]
    b: Array
    v: Array  # the mean of its inputs


def truth(alpha: float, beta: float, rng: np.random.Generator) -> TrueModel:
    u, middle = rng.normal(0, alpha), rng.normal(0, beta)
    return TrueModel(rng.normal(u, 1, (FEATURES, CLASSES)), rng.normal(u, 1, CLASSES), rng.normal(middle, 1, FEATURES))


def device_examples(device: TrueModel, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The examples of one device: inputs with variances j^-1.2, and the labels that its model gives them."""
    x = rng.normal(device.v, SPREAD, (size, FEATURES)).astype(np.float32)
    return x, (x @ device.w + device.b).argmax(1)


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    iid: bool = False,
    largest: int | None = None,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Synthetic(alpha, beta) of FedProx: invented clients, each with a model of its own that labels its examples.
    `alpha`: how much these models differ between clients; `beta`: how much their inputs do; `iid`: the same for all.
    `largest` caps the sizes of clients, which are heavy-tailed; each client holds back test examples of its own."""
    rng = np.random.default_rng(seed)
    sizes = 50 + rng.lognormal(4, 2, clients).astype(np.int64)
    sizes = np.minimum(sizes, largest) if largest is not None else sizes
    shared = TrueModel(rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES), np.zeros(FEATURES))
    cuts = [max(1, int((1 - test_fraction) * size)) for size in sizes.tolist()]
    held = [np.array(cuts), sizes - np.array(cuts)]
    ends = [np.cumsum(many) for many in held]
    states = np.empty((clients, 2), np.uint64) if held[0].sum() * FEATURES * DrawnRows.dtype.itemsize > HELD else None

    def drawn(rng: np.random.Generator, k: int) -> tuple[Array, Array]:
        return device_examples(shared if iid else truth(alpha, beta, rng), int(sizes[k]), rng)

    def again(k: int) -> Array:
        assert states is not None
        repeated = np.random.default_rng(seed)
        told: Any = repeated.bit_generator.state
        told["state"]["state"] = int(states[k, 0]) << 64 | int(states[k, 1])
        repeated.bit_generator.state = told
        return drawn(repeated, k)[0][: cuts[k]]

    # every row has its place before it is drawn: of many devices two copies would not fit
    train, test = (
        Split(np.empty((rows, FEATURES), np.float32), np.empty(many.sum(), np.int64), np.repeat(range(clients), many))
        for many, rows in ((held[0], held[0].sum() if states is None else 0), (held[1], held[1].sum()))
    )
    for k, cut in enumerate(cuts):
        if states is not None:
            state: Any = rng.bit_generator.state
            states[k] = divmod(state["state"]["state"], 1 << 64)
        x, y = drawn(rng, k)
        for split, end, rows in ((train, ends[0][k], slice(cut)), (test, ends[1][k], slice(cut, None))):
            split.y[end - len(y[rows]) : end] = y[rows]
            if split is test or states is None:
                split.x[end - len(y[rows]) : end] = x[rows]
    if states is not None:
        inputs: Any = DrawnRows(again, ends[0], FEATURES)
        train = train._replace(x=inputs)
    untouched = (0.0,) * FEATURES, (1.0,) * FEATURES
    name = "synthetic(iid)" if iid else f"synthetic({alpha:g}, {beta:g})"
    return Dataset(name, "table", CLASSES, train, test, *untouched)
