"""Random measurements: a layer in blocks of 512 numbers, each multiplied by one shared Gaussian or Bernoulli matrix
(Candes and Tao 2006; Baraniuk et al. 2008).

Both sides draw the matrix from the seed of the experiment, so it is never sent; its entries have variance 1/m. A dense
matrix for a whole layer would take gigabytes (614,400 weights at a rate of 0.3: 453 GB), which is why there are blocks.

Guarantees: the 2-norm grows by at most the largest singular value of the matrices used, which are public. Proof: blocks
are disjoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch

from sordino import keys
from sordino.errors import COUNT, check_range
from sordino.privacy.uplink.compression import LayerByLayer
from sordino.types import Bound, Tensor

Kind = Literal["gaussian", "bernoulli"]
Reconstruction = Literal["minnorm", "adjoint", "dct_ista", "dct_omp"]
STEPS = 80  # of the iterative shrinkage


@dataclass(frozen=True, eq=False)
class Matrix:
    """One shared measurement matrix, with what reconstructions compute from it once."""

    phi: Tensor  # [m, b]

    @cached_property
    def inverse(self) -> Tensor:
        found: Tensor = torch.linalg.pinv(self.phi)
        return found

    @cached_property
    def seen(self) -> Tensor:
        """The cosine waves after measurement: phi times the DCT basis."""
        return self.phi @ cosines(self.phi.shape[1])

    @cached_property
    def stretch(self) -> float:
        """The largest singular value of the matrix, rounded up."""
        return float(torch.linalg.matrix_norm(self.phi, 2)) * (1 + 1e-9)


def matrix(kind: Kind, rows: int, columns: int, seed: int) -> Matrix:
    """The measurement matrix of this kind, size and seed, on the device of this run."""
    return _matrix(kind, rows, columns, seed, torch.get_default_device())


@lru_cache(maxsize=1024)
def _matrix(kind: Kind, rows: int, columns: int, seed: int, device: torch.device) -> Matrix:
    key = keys.fold(keys.root(seed), "sensing", kind, rows, columns)
    drawn = keys.normal(key, rows * columns)
    return Matrix(((drawn if kind == "gaussian" else drawn.sign()) / math.sqrt(rows)).view(rows, columns))


def cosines(size: int) -> Tensor:
    """The orthonormal basis of the discrete cosine transform (DCT-II), one wave per column."""
    return _cosines(size, torch.get_default_device())


@lru_cache(maxsize=8)
def _cosines(size: int, device: torch.device) -> Tensor:
    n = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (n[:, None] + 0.5) * n[None, :]) * math.sqrt(2 / size)
    waves[:, 0] /= math.sqrt(2)
    return waves


def coherence(measuring: Tensor, basis: Tensor) -> float:
    """The largest absolute cosine between a row of `measuring` and a column of `basis`, times sqrt(a) for basis vectors
    of length a: from 1 to sqrt(a).
    """
    rows = measuring.to(basis.dtype)
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    columns = basis / torch.linalg.vector_norm(basis, dim=0, keepdim=True)
    return math.sqrt(basis.shape[0]) * float((rows.conj() @ columns).abs().max())


# reconstructions: from measurements [blocks, m] to blocks [blocks, b] -------------------------------------------------


def minnorm(y: Tensor, by: Matrix) -> Tensor:
    return y @ by.inverse.T


def adjoint(y: Tensor, by: Matrix) -> Tensor:
    return y @ by.phi


def dct_ista(y: Tensor, by: Matrix) -> Tensor:
    """The sparsest cosine waves that nearly explain y, by FISTA (Beck and Teboulle 2009) on 1/2 |y - phi psi s|^2 + tau
    |s|_1.
    """
    seen, step = by.seen, by.stretch**-2
    tau = 0.05 * (y @ seen).abs().amax(1, keepdim=True)
    s = ahead = y.new_zeros(len(y), seen.shape[1])
    speed = 1.0
    for _ in range(STEPS):
        walked = ahead + step * (y - ahead @ seen.T) @ seen
        found = torch.sign(walked) * (walked.abs() - step * tau).clamp_min(0)
        faster = (1 + math.sqrt(1 + 4 * speed**2)) / 2
        s, ahead, speed = found, found + (speed - 1) / faster * (found - s), faster
    return s @ cosines(seen.shape[1]).T


def dct_omp(y: Tensor, by: Matrix) -> Tensor:
    """Cosine waves by orthogonal matching pursuit (Tropp and Gilbert 2007), block by block: up to m/4 waves (at least
    one), chosen one after another as the one most similar to the residual.
    """
    return torch.stack([_pursuit(block, by.seen) for block in y]) @ cosines(by.seen.shape[1]).T


def _pursuit(y: Tensor, seen: Tensor) -> Tensor:
    s, left, chosen = y.new_zeros(seen.shape[1]), y, list[int]()
    for _ in range(max(1, seen.shape[0] // 4)):
        if float(left.norm()) <= 1e-12 * float(y.norm()):
            break
        chosen.append(int((left @ seen).abs().argmax()))
        weights = torch.linalg.lstsq(seen[:, chosen], y[:, None]).solution[:, 0]
        left = y - seen[:, chosen] @ weights
    if chosen:
        s[chosen] = weights
    return s


RECONSTRUCTIONS: dict[str, Callable[[Tensor, Matrix], Tensor]] = {
    "minnorm": minnorm,
    "adjoint": adjoint,
    "dct_ista": dct_ista,
    "dct_omp": dct_omp,
}


@dataclass(frozen=True)
class Sensing(LayerByLayer):
    """Compression by a random matrix. Put the clip after it, since the matrix may make vectors longer."""

    kind: Kind = "gaussian"
    reconstruct: Reconstruction = "minnorm"
    block: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("block", self.block, COUNT, "block-empty", fix="512 is a usual size")

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        if bound.l2 == math.inf:
            return Bound()
        # the last block of a layer may have any length, so all of them count, at every rate that a layer may have
        rates = [tenths / 10 for tenths in range(round(10 * self.least), round(10 * self.most) + 1)]
        used = rates if self.rate == "dynamic" else [self.rate]
        l2 = bound.l2 * _longest(self.kind, self.block, self.seed, tuple(used))
        return Bound(l1=l2 * math.sqrt(coordinates), l2=l2)

    def measured(self, layer: Tensor, rate: float) -> Tensor:
        parts = self._parts(layer)
        matrices = [self._matrix(part.shape[1], rate).phi.to(part.dtype) for part in parts]
        return torch.cat([(part @ phi.T).reshape(-1) for part, phi in zip(parts, matrices, strict=True)])

    def kept(self, layer: Tensor, rate: float) -> int:
        return sum(len(part) * _rows(part.shape[1], rate) for part in self._parts(layer))

    def rebuilt(self, y: Tensor, like: Tensor, rate: float) -> Tensor:
        rebuild, parts = RECONSTRUCTIONS[self.reconstruct], self._parts(like)
        pieces = torch.split(y.double(), [len(part) * _rows(part.shape[1], rate) for part in parts])
        found = [
            rebuild(piece.view(len(part), -1), self._matrix(part.shape[1], rate)).reshape(-1)
            for piece, part in zip(pieces, parts, strict=True)
        ]
        return torch.cat(found).view(like.shape).to(y.dtype)

    def _parts(self, leaf: Tensor) -> list[Tensor]:
        """Whole blocks as rows of a matrix, and the shorter rest of the layer."""
        flat = leaf.reshape(-1)
        whole = len(flat) // self.block * self.block
        parts = (flat[:whole].view(-1, self.block), flat[whole:][None])
        return [part for part in parts if part.numel()]

    def _matrix(self, columns: int, rate: float) -> Matrix:
        return matrix(self.kind, _rows(columns, rate), columns, self.seed)


@lru_cache(maxsize=64)
def _longest(kind: Kind, block: int, seed: int, rates: tuple[float, ...]) -> float:
    """The largest factor by which a measurement matrix increases the 2-norm of a block, whatever its length."""
    each = ((_rows(columns, rate), columns) for columns in range(1, block + 1) for rate in rates)
    return max(matrix(kind, rows, columns, seed).stretch for rows, columns in each)


def _rows(columns: int, rate: float) -> int:
    return max(1, math.floor(rate * columns + 1e-9))
