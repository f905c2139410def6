"""Sources of noise: a counter key in simulation, the operating system for real noise.

`Counter` draws from a counter key: reproducible, for simulation only, and named in every result that used it.
`SystemNoise` draws from the operating system's generator expanded by ChaCha20, and releases whole steps of an integer
grid, so that the low bits of a floating-point sampler cannot reveal the input (Mironov, CCS 2012).

Guarantees (`SystemNoise`): exactly those of the continuous mechanism. Proof: what is released is floor((x + noise) /
step), post-processing of it. Nothing about x is rounded before the noise: rounding a sum, unlike rounding its summands,
would move every coordinate by up to a step more than its sensitivity says. The noise is drawn in two parts, its whole
steps from a 64-bit table and then whether its fraction carries x over into the next step. Both together are within
TABLE_ERROR of the ideal law in total variation per coordinate; that is a part of delta. Constant time is not claimed.
"""

from __future__ import annotations

import hmac
import json
import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from sordino import keys
from sordino.accounting.claims import is_real
from sordino.device import here
from sordino.errors import Range, RunError, UnsoundGuarantee, check_range
from sordino.fast.factored import Product
from sordino.types import Drawable, NoiseSource, Tensor

GRID = 4096  # noise scale in grid steps: at least this, less than twice

BLOCK = 1 << 15  # numbers that are noised together, while a processor's cache holds them
SECRET = 32  # bytes from which clients draw what they draw once
DIGITS = 64  # binary ones, in which tables are computed
TABLE_ERROR = 1e-14  # total variation of one coordinate against the ideal law


@dataclass(frozen=True)
class Counter:
    """Noise from a seed, which can be drawn again. For simulation only."""

    key: int
    name: str = "counter"

    def child(self, *parts: int | str) -> NoiseSource:
        return Counter(keys.word(keys.fold(self.key, *parts)))

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        noise = law.standard(values.shape, values.dtype, keys.generator(self.key)).to(values.device)
        if isinstance(values, Product) and values.right is not None:
            return noise.addmm_(values.left.t(), values.right, beta=scale)
        return noise.mul_(scale).add_(values)

    def coins(self, count: int, probability: float) -> Tensor:
        return keys.coin(self.key, count, probability)

    def words(self, count: int) -> Tensor:
        return keys.bits(self.key, count)


class SystemNoise:
    """Noise that protects people: every source derived from it (for a round or a client) draws from fresh entropy of
    the operating system, which nobody can draw again.
    """

    name = "system"

    def __init__(self) -> None:
        self._process = -1

    def child(self, *parts: int | str) -> NoiseSource:
        return SystemNoise()

    def coins(self, count: int, probability: float) -> Tensor:
        threshold = min(int(probability * 2.0**64), 2**64 - 1)
        return (
            here(torch.from_numpy(self._words(count) < np.uint64(threshold)))
            if probability < 1
            else torch.ones(count, dtype=torch.bool)
        )

    def words(self, count: int) -> Tensor:
        return here(torch.from_numpy(self._words(count).view(np.int64).copy()))

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        check_range(
            "the noise scale",
            scale,
            Range(above=1e-290),
            "noise-scale-not-positive",
            error=UnsoundGuarantee,
            why="below this number a step of the noise's grid is too small for a float",
            fix="bound the input with a clip",
        )
        check_digits()
        from sordino.fast.row_sums import wide  # not before: who only prices noise adds nothing up

        step = grid_step(scale)
        noise = law.in_steps(math.ceil(scale / step * 1e9) / 1e9)  # a short number, not below the scale that is priced
        x = wide(values).cpu().reshape(-1)
        noisy = torch.empty(len(x), dtype=x.dtype if x.is_floating_point() else torch.float64)
        for start in range(0, len(x), BLOCK):  # exact: each number is computed from its own two words
            block = slice(start, start + BLOCK)
            fraction = x[block].double().numpy() / step
            steps = np.floor(fraction)
            fraction -= steps
            words, more = self._words(2 * len(steps)).reshape(2, -1)
            steps += noise(words, more, fraction)
            steps *= step
            noisy[block] = torch.from_numpy(steps)
        return noisy.reshape(values.shape).to(values.device)

    def _words(self, count: int) -> NDArray[np.uint64]:
        if self._process != os.getpid():  # first use, or a fork: two processes must never share a stream
            self._process = os.getpid()
            # from its first block on: from a random one the counter could run over in the middle of a draw
            self._stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


class RepeatedNoise(SystemNoise):
    """Noise from a client's own secret, the same whenever it is drawn: for data that a client randomises once in a run,
    such as its images, and must repeat exactly after a crash.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()

    def child(self, *parts: int | str) -> NoiseSource:
        return RepeatedNoise(hmac.digest(self._secret, json.dumps(parts).encode(), "sha256"))

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


def check_digits() -> None:
    """Refuses real noise where numpy's longest floats are too short for its tables, as on Windows and on ARM Macs."""
    if (digits := np.finfo(np.longdouble).nmant + 1) < DIGITS:
        raise UnsoundGuarantee(
            "real noise on this machine",
            why=f"its tables need numbers of {DIGITS} binary digits, and numpy's longest have {digits} here: the noise "
            "would be some hundred times further from its law than delta counts",
            fix='run it on Linux; privacy.noise = "counter" simulates, and protects nobody',
            code="noise-needs-long-numbers",
        )


def grid_step(scale: float) -> float:
    """The largest power of two that leaves at least GRID steps per unit of noise scale."""
    return 2.0 ** math.floor(math.log2(scale / GRID))


def for_round(name: str, key: int, t: int) -> NoiseSource:
    """The source of one round's noise: `counter` or `system`."""
    return SystemNoise() if is_real(name) else Counter(keys.word(keys.fold(key, "noise", t)))


def for_client(of_round: NoiseSource, client: int) -> NoiseSource:
    """The source of one client's noise in the round of `of_round`."""
    return of_round.child("client", client)


def for_run(name: str, key: int, secret: bytes | None, client: int) -> NoiseSource:
    """Source of the noise that a client draws once in a run, such as for its images, and must repeat exactly after a
    crash. With `system` noise it needs the clients' secret.
    """
    if not is_real(name):
        return Counter(keys.word(keys.fold(key, "once"))).child("one of", client)
    if secret is None or len(secret) < SECRET:
        raise RunError(
            "the clients' secret is missing",
            why="a client draws its random response once in a run; without the secret it would draw a second one, or "
            "one from the public seed",
            fix="put private/clients.secret back from your copy, or start a new run",
            code="no-secret",
        )
    return RepeatedNoise(secret).child("one of", client)
