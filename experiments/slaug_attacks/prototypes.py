"""Was this image among those whose features were averaged? Membership inference on a class prototype, as SlaugFL's
devices send them (IEEE Transactions on Mobile Computing, 2024).

The attacker is the server: it knows the extractor, the prototype, its class, and a reference sample of the class from
elsewhere. It need not know how many images were averaged. One image moves a mean of n by 1/n of itself, in as many
directions as features vary in: whitened, members of d such directions lie sqrt(d/n) deviations from others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.attacks.methods.members import Separation, separation
from sordino.errors import DataError
from sordino.keys import Key

PrototypeRelease: TypeAlias = Callable[[Tensor, Key], Tensor]  # features [n, d] of whom it is about -> what is sent [d]


class Reference(NamedTuple):
    """The features of the class as they look elsewhere."""

    mean: Tensor
    inverse: Tensor  # of their covariance


def reference(z: Tensor) -> Reference:
    """The mean and covariance of features, shrunk towards a sphere as far as so few rows make a covariance uncertain
    (Ledoit and Wolf, Journal of Multivariate Analysis 2004).
    """
    if len(z) < 2:
        raise DataError(
            f"a reference with {len(z)} images",
            why="a covariance needs at least two images",
            fix="give more images of the class",
            code="reference-too-small",
        )
    mean = z.double().mean(0)
    x = z.double() - mean
    n, d = x.shape
    found = x.T @ x / n
    sphere = found.diagonal().mean() * torch.eye(d, dtype=x.dtype)
    far = float(((found - sphere) ** 2).sum())
    unsure = float(((x**2).sum(1) ** 2).mean() - (found**2).sum()) / n
    share = min(1.0, unsure / far) if far > 0 else 1.0
    return Reference(mean, torch.linalg.pinv((1 - share) * found + share * sphere, hermitian=True))


def near(z: Tensor, prototype: Tensor, seen: Reference) -> Tensor:
    far: Tensor = torch.linalg.vector_norm(z.double() - prototype.double(), dim=1)
    return -far


def alike(z: Tensor, prototype: Tensor, seen: Reference) -> Tensor:
    """The cosine of features and prototype, which is minus the cosine distance but for a constant."""
    return F.cosine_similarity(z.double(), prototype.double()[None], dim=1)


def whitened(z: Tensor, prototype: Tensor, seen: Reference) -> Tensor:
    """The inner product, in deviations of others' scores, so that one threshold serves all prototypes."""
    towards = prototype.double() - seen.mean
    turned: Tensor = seen.inverse @ towards
    return (z.double() - seen.mean) @ turned / (towards @ turned).clamp_min(1e-300).sqrt()


SCORES: Mapping[str, Callable[[Tensor, Tensor, Reference], Tensor]] = {
    "distance": near,
    "cosine": alike,
    "whitened": whitened,
}


def mean(z: Tensor, key: Key) -> Tensor:
    """A prototype as published: the mean of the features."""
    return z.double().mean(0)


def play(
    pool: Tensor, others: Tensor, seen: Reference, n: int, trials: int, key: Key, release: PrototypeRelease = mean
) -> dict[str, Separation]:
    """Releases n random rows of `pool` together in every trial, and scores these n and all `others`. Features are of
    one class, [rows, d] each.
    """
    if not 1 <= n <= len(pool):
        raise DataError(
            f"prototypes of {n} images each, from {len(pool)} images",
            why="a prototype is the mean of at least one image, and each image is used at most once",
            fix="use fewer images for each prototype, or give more images",
            code="prototype-of-too-many",
        )
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in SCORES}
    for trial in range(trials):
        mine = pool[keys.permutation(keys.fold(key, "members", trial), len(pool))[:n]]
        prototype = release(mine, keys.fold(key, "release", trial))
        for name, score in SCORES.items():
            found[name].append((score(mine, prototype, seen), score(others, prototype, seen)))
    sides = {name: [torch.stack(side) for side in zip(*rows, strict=True)] for name, rows in found.items()}
    return {name: separation(inside, outside) for name, (inside, outside) in sides.items()}
