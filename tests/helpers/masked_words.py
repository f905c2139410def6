"""What is under the masks of a secure sum, written down where a test may see it."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.secagg.mask_protocol import Aggregator, Participant

Words = dict[tuple[int, int], np.ndarray]  # by round and client


def written_down(monkeypatch: pytest.MonkeyPatch) -> Words:
    """The words of every client before they are masked."""
    seen: Words = {}
    masked = Participant.masked

    def watched(self: Participant, inbox: bytes, words: np.ndarray) -> bytes:
        assert seen.setdefault((self._session.round, self._who), words) is words, "words are masked twice"
        return masked(self, inbox, words)

    monkeypatch.setattr(Participant, "masked", watched)
    return seen


def watched_sums(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, tuple[int, ...]], np.ndarray]:
    """The words of every sum that the server opens, by round and by whose they are."""
    seen: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    opens = Aggregator.open

    def watched(self: Aggregator) -> np.ndarray:
        words = opens(self)
        seen[self._session.round, self.survivors] = words
        return words

    monkeypatch.setattr(Aggregator, "open", watched)
    return seen
