"""What secure sums send: as many bytes as the messages that were added, and as long as computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import config
from sordino.engine import wire
from sordino.errors import EmptyClient, SecureError
from sordino.privacy.uplink.channels import Stopwatch
from sordino.privacy.uplink.fixed_point import Ints, Layout
from sordino.privacy.uplink.secure_stages import (
    Aggregated,
    Encrypted,
)
from sordino.runs.run import start
from sordino.secagg.encrypted import Adder, Ciphertexts, PeersHere
from sordino.secagg.mask_protocol import Aggregator
from sordino.secagg.masked import Masks
from tests.stories.secure_sums.sums import CLIENTS, TEST_KEY, Watched, key_for_tests, made


# ---------------------------------------------------------------- how much travels
@pytest.mark.one_fast
@pytest.mark.parametrize("stage", ["bfv", "ckks", TEST_KEY], ids=["bfv", "ckks", "paillier"])
def test_bytes_up_are_the_messages_that_were_added(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    take = Adder.take

    def counted(self: Adder, message: bytes, expected: Any) -> None:
        sent.append(len(message))
        take(self, message, expected)

    monkeypatch.setattr(Adder, "take", counted)
    for _, outcome in Watched(made("weigh", stage)).rounds(2):
        assert outcome.bytes_up == sum(sent[-CLIENTS:])
        assert outcome.payload == sent[-1]
    assert len(sent) == 2 * CLIENTS


def test_bytes_up_of_masks_are_all_that_clients_send(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    receive = Aggregator.receive

    def counted(self: Aggregator, data: bytes) -> None:
        sent.append(len(data))
        receive(self, data)

    monkeypatch.setattr(Aggregator, "receive", counted)
    for _, outcome in Watched(made("weigh", "secagg")).rounds(1):
        assert outcome.bytes_up == sum(sent)
        assert len(sent) == 4 * CLIENTS  # advert, shares, upload, answer


@pytest.mark.slow
@pytest.mark.parametrize("keys_", ["shared", "authority"])
def test_who_holds_a_key_is_sent_the_sum(keys_: str) -> None:
    """The first model is everybody's; then it is the sum of the round before, or the model that an authority opened."""
    watched = Watched(made("weigh", {**TEST_KEY, "keys": keys_, "at_least": 2}))
    for t, (before, outcome) in enumerate(watched.rounds(3)):
        down = watched.parts.setup.algorithm.broadcast(before)
        plain = CLIENTS * wire.size(watched.federation.inbox.header(t, -1), wire.schema(down))
        assert outcome.bytes_down == (CLIENTS * outcome.payload if t and keys_ == "shared" else plain)


@pytest.mark.slow
def test_packed_paillier_is_twice_as_long_as_the_model() -> None:
    """28,938 parameters under 3,072 bits: 308 ciphertexts of 768 bytes."""
    size, layout = 28_938, Layout()
    channel = Ciphertexts(Encrypted(mode="probe"), layout)
    values = np.arange(size) - size // 2
    found = channel.sum(0, ((k, values) for k in range(3)), range(3), size, None)
    assert np.array_equal(found.total, 3 * values)
    header = found.payload - 308 * 768
    assert 0 < header < 200
    assert found.bytes_up == 3 * found.payload
    assert found.payload / (4 * size) <= 2.1


def test_masked_uploads_are_as_long_as_the_model() -> None:
    """Four bytes a value, and a guard; peers and headers cost the same whatever the size."""
    layout, cost = Layout(), {}
    for size in (1000, 5000):
        zeros = np.zeros(size, np.int64)
        found = Masks(Aggregated(), layout, "run").sum(0, ((k, zeros) for k in range(4)), range(4), size, None)
        cost[size] = found.payload
    assert cost[5000] - cost[1000] == 4 * 4000


@pytest.mark.parametrize("count", [0, 2, 256])
@pytest.mark.parametrize("noise", [None, np.array([5, -6, 7])], ids=["exact", "noised"])
def test_a_message_counts_as_one_upload_whatever_it_says(noise: Ints | None, count: int) -> None:
    """The server's noise takes all the room that uploads leave: one that says it is two left none, and ended the run
    of all.
    """
    stage, layout, gone = Encrypted("paillier", 2048, testing=True), Layout(), dict[int, str]()
    holder = key_for_tests()

    class Peers(PeersHere):
        def uploads(self) -> Iterator[tuple[int, bytes | None]]:
            for k, values in self.integers:
                said = count if k == 1 else 1
                yield k, holder.public.encrypt(values, self.t, self.layout, count=said).pack()

        def absent(self, client: int, error: SecureError) -> None:
            gone[client] = error.code

    uploads = [(k, np.full(3, k - 1)) for k in range(3)]
    peers = Peers(stage, layout, holder, 0, uploads, np.zeros(3, np.int64), Stopwatch())
    found = Ciphertexts(stage, layout).add(0, holder.public, peers, 3, 3, noise)
    assert (found.who, gone) == ([0, 2], {1: "ciphertext-count"})
    assert found.total.tolist() == ([0] * 3 if noise is None else noise.tolist())


def test_a_client_without_examples_is_refused_before_the_run(tmp_path: Path) -> None:
    few = {"scheme": "dirichlet", "clients": 60, "alpha": 0.01, "min_size": 0}
    with pytest.raises(EmptyClient) as refusal:
        start(config.validate({"partition": few, "algorithm": {"name": "secagg_fl"}, "privacy": {}}), tmp_path / "run")
    assert refusal.value.code == "empty-client"
    assert "client" in refusal.value.what
    assert not (tmp_path / "run").exists()
