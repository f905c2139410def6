"""A bad client is an absent one: through a clipped uplink its message counts as zero, and nothing else in the round
changes by a bit.

The executor is a double that lets real clients answer and then spoils the message of one of them on its way.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import config, tree
from sordino.accounting.composition import parsed
from sordino.engine import checkpoint, wire
from sordino.engine.executor import Answers
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import RunError
from sordino.ledger.ledger import State
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.round import Outcome, one_round
from sordino.runs import run
from sordino.runs.simulation import Simulation, simulated
from sordino.types import Grant, Terms
from tests.helpers.executors import Doing
from tests.privacy.doubles import messages

NAME = "clinic {}"  # what a client is called, who has a name
BAD = 2  # the client that misbehaves
Table = dict[str, Any]
Spoil = Callable[[Tensor], Tensor]
RADIUS = 0.5

CLIP, NOISE = {"name": "clip", "radius": RADIUS}, {"name": "noise"}
UPLINKS: dict[str, Table] = {
    "clipped": {"client": [CLIP, {"name": "weigh"}]},
    "clipped in the 1-norm": {"client": [{**CLIP, "order": 1}]},
    "clipped and noised": {"client": [CLIP, NOISE, {"name": "weigh"}]},
    "central": {"client": [CLIP, {"name": "weigh"}], "server": [{**NOISE, "neighbours": "zero_out"}]},
}
SPOILED: dict[str, Spoil] = {
    "nan": lambda x: x * math.nan,
    "one nan": lambda x: x.index_fill(0, torch.tensor([0]), math.nan),
    "inf": lambda x: x * 0 + math.inf,
    "minus inf": lambda x: x * 0 - math.inf,
    "huge": lambda x: x * 0 + 1e300,
    "huge and opposite": lambda x: x * 0 - 1e30,
    "just outside": lambda x: x * 0 + 1.01 * RADIUS,
}


def parts_of(uplink: Table | None, **more: Any) -> Simulation:
    table: Table = {
        "rounds": 3,
        "data": {"source": "quadratic", "clients": 6, "dim": 3},
        "partition": {"scheme": "natural"},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": "full"},
        "privacy": {"epsilon": 2.0, "delta": 1e-3} if uplink and "noise" in str(uplink) else {},
    }
    return simulated(config.validate(table | ({"uplink": uplink} if uplink else {}) | more))


def play(
    parts: Simulation, corrupt: Callable[[bytes, FederatedServer], bytes] | None
) -> tuple[Outcome, FederatedServer]:
    """One round in which the message of one client is corrupted on its way."""
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    federation.called = NAME.format

    def execute(t: int, down: Any, terms: Mapping[int, Terms]) -> Iterable[tuple[int, bytes]]:
        assert federation.ledger.state(federation.op(t)) is State.RESERVED  # before any data are read
        sent = messages(clients, federation, t, down, terms)
        if corrupt is not None:
            sent[BAD] = corrupt(sent[BAD], federation)
        return sent.items()

    return one_round(federation, parts.setup.state("server"), 0, Doing(execute)), federation


def values(parts: Simulation, spoil: Spoil) -> Callable[[bytes, FederatedServer], bytes]:
    """A well-formed message with other numbers in it."""

    def corrupt(message: bytes, federation: FederatedServer) -> bytes:
        a = parts.setup.algorithm
        zero = a.zero(parts.setup.task, a.broadcast(parts.setup.state("server")))
        header, sent = wire.decode(message, federation.inbox.header(0, BAD), a.uplink.shape(zero))
        return wire.encode(header, tree.map(spoil, sent))

    return corrupt


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


# behind its own noise a client may send any number; only that it is one can be asked for
NO_NUMBERS = {"nan", "one nan", "inf", "minus inf"}
CASES = [(u, s) for u in UPLINKS for s in SPOILED if s in NO_NUMBERS or u != "clipped and noised"]


@pytest.mark.one_fast
@pytest.mark.parametrize(("uplink", "spoiled"), CASES)
def test_spoiled_values_count_as_zero_and_change_nothing_else(uplink: str, spoiled: str) -> None:
    parts = parts_of(UPLINKS[uplink])
    zeros, _ = play(parts, values(parts, torch.zeros_like))
    bad, _ = play(parts, values(parts, SPOILED[spoiled]))
    assert same(bad.server, zeros.server)
    assert tree.finite(bad.server)
    honest, _ = play(parts, None)
    assert not same(honest.server, zeros.server)  # the client mattered


def test_behind_its_own_noise_nobody_can_tell_that_a_client_has_not_clipped() -> None:
    """What the threat model calls possible: only the clip that the server can look at again bounds a liar."""
    far, zero = {"w": torch.full((3,), 1e6)}, {"w": torch.zeros(3)}
    for noise, moved in (((), 0.0), ((Noise(GaussianNoise(), "replace", 1.0),), 5e5)):
        uplink = Uplink((Clip(1.0), *noise))
        mean = uplink.receive({0: far, 1: zero}, zero, [1.0, 1.0], 2.0, None, None).mean["w"]
        assert mean.tolist() == [moved] * 3


def test_an_honest_upload_at_the_bound_passes_bit_for_bit() -> None:
    # what the server checks again must not touch what the clip has left at the edge of the ball
    parts = parts_of({"client": [{**CLIP, "radius": 1e-3}]})
    uplink = parts.setup.algorithm.uplink
    for seed in range(200):
        rng = torch.Generator().manual_seed(seed)
        big = {"w": torch.randn(50, generator=rng), "b": torch.randn(3, 4, generator=rng)}
        sent = uplink.encode(big, Grant(0, 1, 1, None))  # type: ignore[arg-type]
        zero = tree.zeros_like(big)
        assert same(uplink.receive({0: sent}, zero, [1.0], 1.0, None, None).mean, sent)


def test_the_denominator_counts_the_bad_client() -> None:
    uploads = {k: {"w": torch.tensor([0.3])} for k in range(3)}
    uploads[1] = {"w": torch.tensor([math.nan])}
    uplink = parts_of(UPLINKS["clipped"]).setup.algorithm.uplink
    mean = uplink.receive(uploads, {"w": torch.zeros(1)}, [1.0] * 3, 3.0, None, None).mean
    assert float(mean["w"]) == pytest.approx(0.2)


def test_a_client_that_cannot_pay_is_not_asked() -> None:
    parts = parts_of(UPLINKS["clipped and noised"])
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    assert parts.setup.plan.cap is not None
    federation.ledger.reserve("an older run/0", {str(BAD): parts.setup.plan.cap}, b"plan")
    outcome = one_round(federation, parts.setup.state("server"), 0, clients)
    assert outcome.answered == [k for k in range(6) if k != BAD]
    assert BAD not in clients.states  # its data were not touched


def test_central_noise_is_as_large_as_every_clients_claim_says() -> None:
    # four of six clients in each of two rounds: some pay for two participations, some for one, and all get one noise
    parts = parts_of(UPLINKS["central"], cohort={"name": "round_robin", "size": 4}, rounds=2)
    federation, server = parts.federation(":memory:", "run"), parts.setup.state("server")
    zero = parts.setup.algorithm.zero(parts.setup.task, parts.setup.algorithm.broadcast(server))

    def execute(t: int, down: Any, terms: Mapping[int, Terms]) -> Iterable[tuple[int, Any]]:
        return [(k, zero) for k in terms]

    outcome = one_round(federation, server, 0, Doing(execute))
    drawn = (
        federation.source(0)
        .child("server")
        .child("delta/w")
        .noisy(GaussianNoise(), torch.zeros(3, dtype=torch.float64), 1.0)
    )
    used = outcome.received.mean.delta["w"] * 4 / drawn / RADIUS  # noise / sensitivity, as it was released
    (entry,) = federation.ledger.entries()
    claimed = {
        claim["event"]["noise_multiplier"]
        for group in parsed(entry.note).releases
        for claim in group["claims"]
        if claim["event"]["kind"] == "gaussian"
    }
    assert len(claimed) == 2
    assert float(used.min()) >= max(claimed) * (1 - 1e-9)


def test_the_sum_is_taken_in_the_order_of_clients_whatever_came_first() -> None:
    """In floating point the order shows: (1e20 - 1e20) + 1 is 1, (1e20 + 1) - 1e20 is 0."""
    uplink, zero = parts_of(None).setup.algorithm.uplink, {"w": torch.zeros(1, dtype=torch.float64)}
    sent = {k: {"w": torch.tensor([x], dtype=torch.float64)} for k, x in enumerate((1e20, -1e20, 1.0))}
    for order in itertools.permutations(range(3)):
        assert float(uplink.sum({k: sent[k] for k in order}, zero).total["w"]) == 1.0
    unordered = uplink.sum(((k, sent[k]) for k in (0, 2, 1)), zero)  # who yields them answers for their order
    assert float(unordered.total["w"]) == 0.0


def test_clients_answer_in_the_order_of_their_ids() -> None:
    parts = parts_of(None)
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    down = parts.setup.algorithm.broadcast(parts.setup.state("server"))
    terms = {k: federation.terms(k, None) for k in (4, 1, 5, 0)}
    assert [k for k, _ in clients.each(0, down, terms)] == [0, 1, 4, 5]


# ---------------------------------------------------------------- messages that are none


def another(message: bytes, federation: FederatedServer, **changes: Any) -> bytes:
    payload = {"delta": {"w": torch.zeros(3, dtype=torch.float64)}}
    return wire.encode(wire.Header(**(vars(federation.inbox.header(0, BAD)) | changes)), payload)


MALFORMED: dict[str, Callable[[bytes, FederatedServer], bytes]] = {
    "empty": lambda m, f: b"",
    "cut": lambda m, f: m[:-1],
    "longer": lambda m, f: m + b"\0",
    "a flipped bit": lambda m, f: m[:60] + bytes([m[60] ^ 1]) + m[61:],
    "no message at all": lambda m, f: b"GET / HTTP/1.1\r\n" * 40,
    "a length of 4 GiB": lambda m, f: m[:6] + struct.pack("<I", 2**32 - 1) + m[10:],
    "another dtype": lambda m, f: wire.encode(f.inbox.header(0, BAD), {"delta": {"w": torch.zeros(3)}}),
    "another shape": lambda m, f: wire.encode(
        f.inbox.header(0, BAD), {"delta": {"w": torch.zeros(1, dtype=torch.float64)}}
    ),
    "another name": lambda m, f: wire.encode(
        f.inbox.header(0, BAD), {"delta": {"v": torch.zeros(3, dtype=torch.float64)}}
    ),
    "a field more": lambda m, f: wire.encode(
        f.inbox.header(0, BAD), {"delta": {"w": torch.zeros(3, dtype=torch.float64), "v": torch.zeros(1)}}
    ),
    "nothing inside": lambda m, f: wire.encode(f.inbox.header(0, BAD), {"delta": {"w": torch.zeros(0)}}),
    "another round": lambda m, f: another(m, f, round=1),
    "another run": lambda m, f: another(m, f, run="elsewhere"),
    "another client's name": lambda m, f: another(m, f, sender=BAD + 1),
    "another experiment": lambda m, f: another(m, f, config="ab" * 32),
    "a broadcast sent back": lambda m, f: another(m, f, kind="down"),
}


def absent(parts: Simulation) -> Outcome:
    """The round in which nothing came from the bad client."""
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")

    def execute(t: int, down: Any, terms: Mapping[int, Terms]) -> Iterable[tuple[int, bytes]]:
        sent = messages(clients, federation, t, down, terms)
        return ((k, message) for k, message in sent.items() if k != BAD)

    return one_round(federation, parts.setup.state("server"), 0, Doing(execute))


@pytest.mark.one_fast
@pytest.mark.parametrize("uplink", ["central", "clipped"])
@pytest.mark.parametrize("how", MALFORMED)
def test_a_client_whose_message_is_none_is_an_absent_one_that_has_paid(how: str, uplink: str) -> None:
    parts = parts_of(UPLINKS[uplink])
    played, federation = play(parts, MALFORMED[how])
    without = absent(parts)
    assert same(played.server, without.server)
    assert played.answered == without.answered == [k for k in range(6) if k != BAD]
    assert [
        remark.startswith(f"round 1: client {NAME.format(BAD)} counts as absent: ")
        for remark in federation.inbox.remarks
    ] == [True]
    honest, undisturbed = play(parts, None)
    assert undisturbed.inbox.remarks == []
    assert not same(played.server, honest.server)  # the client mattered
    if uplink == "central":
        assert federation.ledger.spent(str(BAD)) == federation.ledger.spent("0") != parts.setup.plan.currency.zero()


def test_what_was_no_message_is_part_of_what_the_server_saw() -> None:
    """Two rounds that differ in it alone are two releases; under central noise single answers are not seen at all."""
    for uplink, seen in (("clipped", True), ("central", False)):
        releases = []
        for garbage in (b"", b"a", b"b"):
            _, federation = play(parts_of(UPLINKS[uplink]), lambda message, f, garbage=garbage: garbage)  # type: ignore[misc]
            releases.append(federation.ledger.entry("run/0").digest)
        assert len(set(releases)) == (3 if seen else 1)


@pytest.mark.slow
def test_random_bytes_are_never_more_than_an_absent_client() -> None:
    parts, rng = parts_of(UPLINKS["clipped"]), random.Random(4)
    without = absent(parts)

    def noise(message: bytes, federation: FederatedServer) -> bytes:
        spoiled = bytearray(message)
        for _ in range(rng.choice((1, 3, 50))):
            spoiled[rng.randrange(len(spoiled))] ^= rng.randrange(1, 256)
        return bytes(spoiled)

    for _ in range(60):
        played, federation = play(parts, noise)
        assert same(played.server, without.server)
        assert len(federation.inbox.remarks) == 1


# ---------------------------------------------------------------- without a clip nothing is promised, and the run says
# so


def test_a_nan_through_an_open_uplink_stops_the_run_at_the_last_good_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoiling(Site):
        def __call__(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Answers:
            return Answers(
                (k, tree.scale(math.nan, upload) if t == 2 and k == BAD else upload)
                for k, upload in self.each(t, down, terms)
            )

    made = Simulation.site

    def clients(self: Simulation, *arguments: Any, **named: Any) -> Site:
        return Spoiling(**vars(made(self, *arguments, **named)))

    monkeypatch.setattr(Simulation, "site", clients)
    parts = parts_of(None)
    with pytest.raises(RunError) as error:
        run.start(parts.setup.experiment, tmp_path / "run")
    assert error.value.code == "model-not-finite"
    assert error.value.what == f"the update of client {BAD} is not finite in round 3"
    assert "checkpoints" in error.value.fix
    kept = checkpoint.load(tmp_path / "run" / "checkpoints", parts.setup.state)
    assert kept is not None
    assert kept.step == 2
    assert tree.finite(kept.trees["server"])
