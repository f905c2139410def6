"""Free text as numbers: each word is a place in a declared list, or falls into one of a declared number of buckets. No
row has a say in which.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np

from sordino.data.dataset import Array
from sordino.data.schema import TextColumn

WORD = re.compile(r"\w+")
NOTHING = 0  # behind the last word of a short text
UNKNOWN = 1  # a word that is not in the list


def tokens(texts: Sequence[str], said: TextColumn) -> Array:
    """float32 [n, length], the first words of each text."""
    places = {word.lower(): place for place, word in enumerate(said.words, start=2)}
    found = np.full((len(texts), said.length), NOTHING, np.float32)
    for row, text in enumerate(texts):
        for at, word in enumerate(WORD.findall(text.lower())[: said.length]):
            found[row, at] = places.get(word, UNKNOWN) if places else 1 + _bucket(word, said.buckets)
    return found


def _bucket(word: str, buckets: int) -> int:
    """The same everywhere and always: Python's own hash is another one in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") % buckets
