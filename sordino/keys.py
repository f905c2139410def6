"""Random keys: the same numbers whether clients are looped over, stacked, or in another process.

A key is a 64-bit integer (or an int64 tensor of them, one per stacked client). `fold` derives a child key, `uniform`
and `normal` draw from it: pure functions of (key, index), no hidden state, so a draw cannot depend on who drew before.
The mixer is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), applied twice. It is NOT cryptographic: keys serve
simulation, data order and initial weights; noise that protects people comes from `privacy.noise.sources.SystemNoise`.

>>> key = root(0)
>>> permutation(fold(key, "epoch", 0), 5).tolist() == permutation(fold(key, "epoch", 0), 5).tolist()
True
>>> fold(key, "client", 1) == fold(key, "client", 2)
False

A tensor of keys, one per stacked client, draws what each key draws on its own:

>>> clients = torch.tensor([signed(word(fold(key, "client", k))) for k in range(2)])
>>> torch.equal(uniform(clients, 3)[1], uniform(fold(key, "client", 1), 3))
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.device import here

if TYPE_CHECKING:
    from torch import Tensor


Key: TypeAlias = "int | Tensor"

_MASK = (1 << 64) - 1
_GAMMA, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signed(x: int) -> int:
    """The same 64 bits as a signed integer, which fits int64."""
    return x - (1 << 64) if x >> 63 else x


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MUL1) & _MASK
    x = ((x ^ (x >> 27)) * _MUL2) & _MASK
    return x ^ (x >> 31)


def _mix(x: Tensor) -> Tensor:
    # int64 multiplication wraps like uint64; a logical shift is an arithmetic one with the sign bits cleared
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * signed(_MUL1)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * signed(_MUL2)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _word(part: int | str) -> int:
    return _name(part) if isinstance(part, str) else part & _MASK


@lru_cache(maxsize=1024)
def _name(part: str) -> int:
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")


def root(seed: int) -> int:
    """The key of a whole run. Seed 0 is a seed like any other."""
    return _mix_int((seed + _GAMMA) & _MASK)


def fold(key: Key, *parts: int | str) -> Key:
    """A child key: fold(key, "noise", round, client)."""
    for part in parts:
        if isinstance(key, int):
            key = _mix_int(_mix_int((key + _GAMMA) & _MASK) ^ _mix_int((_word(part) + _GAMMA) & _MASK))
        else:
            key = _mix(_mix(key + signed(_GAMMA)) ^ signed(_mix_int((_word(part) + _GAMMA) & _MASK)))
    return key


def bits(key: Key, count: int) -> Tensor:
    """Independent 64-bit words, `count` for each key: one row for each key of a tensor."""
    if isinstance(key, int):
        return here(torch.from_numpy(words(key, count).view(np.int64)))
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=key.device) * signed(_GAMMA)
    return _mix(_mix(key.unsqueeze(-1) + counter))


def words(key: int | Sequence[int], count: int) -> NDArray[np.uint64]:
    """Unsigned 64-bit words, independent, `count` for each key: one row for each of several keys. It uses numpy, whose
    operations cost a tenth of torch's on a few words.
    """
    x = np.arange(1, count + 1, dtype=np.uint64)
    x *= np.uint64(_GAMMA)
    x = x + np.array(key, dtype=np.uint64)[..., None]
    for _ in range(2):
        for shift, factor in ((30, _MUL1), (27, _MUL2)):
            x ^= x >> np.uint64(shift)
            x *= np.uint64(factor)
        x ^= x >> np.uint64(31)
    return x


def uniform(key: Key, count: int) -> Tensor:
    """Uniform float64 numbers in (0, 1), `count` for each key: never 0 and never 1."""
    return (((bits(key, count) >> 12) & ((1 << 52) - 1)).double() + 0.5) * 2.0**-52


def at(key: Key, places: Sequence[int]) -> Tensor:
    """One key for each of these positions in a key's stream: uniform(at(key, [7]), 1)[0] is uniform(key, 8)[7:]."""
    return torch.tensor(places, dtype=torch.int64) * signed(_GAMMA) + signed(word(key))


def normal(key: Key, count: int) -> Tensor:
    """Standard normal numbers, `count` for each key."""
    drawn: Tensor = torch.special.ndtri(uniform(key, count))
    return drawn


def laplace(key: Key, count: int) -> Tensor:
    """Laplace numbers of scale 1 (standard deviation sqrt 2), `count` for each key."""
    u = uniform(key, count) - 0.5
    return -torch.sign(u) * torch.log1p(-2 * u.abs())


def integers(key: Key, count: int, below: int | Tensor) -> Tensor:
    """Random integers from 0 to `below` - 1, `count` for each key, uniform to within 2^-52 for sizes of data sets."""
    return (uniform(key, count) * below).long()


def order(key: int | Sequence[int], count: int) -> NDArray[np.int64]:
    """Random permutation of 0 to count - 1 by a key, or a row for each of several keys, computed with numpy alone."""
    return np.argsort(words(key, count).view(np.int64), kind="stable")


def permutation(key: Key, count: int) -> Tensor:
    if isinstance(key, int):
        return here(torch.from_numpy(order(key, count)))
    return torch.argsort(bits(key, count), dim=-1, stable=True)


def coin(key: Key, count: int, probability: float | Tensor) -> Tensor:
    return uniform(key, count) < probability


def generator(key: Key) -> torch.Generator:
    """A Mersenne Twister whose whole state is drawn from the key, for long vectors; seeding it would keep only 32 bits
    of the key.

    The layout (seed, counters, 624 words, a spare normal) is the one that `torch.Generator.get_state` gives; a test
    holds it against numpy's.
    """
    made, state = torch.Generator(), _fresh().copy()
    drawn = hashlib.shake_128(word(key).to_bytes(8, "little")).digest(4 * 624)
    state[3 : 3 + 624] = np.frombuffer(drawn, dtype="<u4")
    made.set_state(torch.from_numpy(state.view(np.uint8)))
    return made


@cache
def _fresh() -> NDArray[np.uint64]:
    """The state of a generator that has drawn nothing."""
    return torch.Generator().manual_seed(0).get_state().numpy().view(np.uint64)


def word(key: Key) -> int:
    """A single key as a plain integer, for generators that take an integer seed."""
    assert isinstance(key, int)
    return key
