"""What a site answers is checked before it counts: a bad answer is an absent client, and the rest of the round is as it
would have been."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino import tree
from sordino.engine import commands, wire
from sordino.engine.commands import BEGIN_FIRST, Accepted, Answered, Begin, Done, Refused
from sordino.engine.server import FederatedServer
from sordino.runs.simulation import Simulation, simulated
from sordino.sampling.draws import Turnout
from sordino.sites import remote_sites
from sordino.sites.remote_sites import RemoteSites
from sordino.transport.message import Arrived, Carrier, Signer, Writes
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience
from sordino.tree import Tree
from tests.helpers.in_process import InProcess
from tests.helpers.scripted_messages import stopped_clock
from tests.laws.cases import BY_NAME

KEYS = {name: Ed25519PrivateKey.generate() for name in ("server", "good", "bad", "stranger")}
KNOWN = {name: key.public_key() for name, key in KEYS.items() if name != "stranger"}
DIGEST = "0" * 64


class Round:
    """Round 1 of two sites: the good one holds clients 0 and 1, the other one client 2, and may say anything."""

    def __init__(self) -> None:
        self.simulation: Simulation = simulated(BY_NAME["fedavg"].experiment())
        setup = self.simulation.setup
        self.federation: FederatedServer = self.simulation.federation(":memory:", "run")
        self.site, self.down = self.simulation.site("run"), setup.algorithm.broadcast(setup.state("server"))
        self.terms = {k: self.federation.terms(k, None) for k in range(3)}
        self.header = setup.header("run")
        self.bodies = {k: wire.encode(self.header(0, k), up) for k, up in self.site.each(0, self.down, self.terms)}

    def signer(self, name: str) -> Signer:
        return Signer(name, "run", DIGEST, DIGEST, KEYS[name], KNOWN)

    def good(self, message: bytes) -> bytes:
        return self.signer("good").write("server", 0, asdict(Answered([0, 1])), [self.bodies[0], self.bodies[1]])

    def sites(self, carrier: Carrier, patience: Patience) -> RemoteSites:
        """Both sites, which have accepted before."""
        head, members = self.signer("server"), {"good": [0, 1], "bad": [2]}
        made = RemoteSites(carrier, head, 0, members, lambda t: self.header(t, -1), patience=patience, secure=None)
        made._ready.update(members)
        return made

    def heard(self, bad: Callable[[bytes], bytes]) -> list[tuple[int, Tree]]:
        """The uploads that count when the other site says this."""
        sites = self.sites(InProcess({"good": self.good, "bad": bad}), Patience(timeout=5.0))
        sites.gather()
        turnout = Turnout([0, 1, 2], frozenset(), {})
        answers = sites(0, self.down, self.terms).uploads
        return list(self.federation.inbox.open(0, answers, turnout, self.down))


@pytest.fixture(scope="module")
def once() -> Iterator[Round]:
    made = Round()
    with made.federation.ledger:
        yield made


def bad_messages(once: Round, seed: int) -> dict[str, bytes]:
    """One message of every class of bad answers."""
    chance = random.Random(seed)
    own, body = once.signer("bad"), once.bodies[2]
    whole = own.write("server", 0, asdict(Answered([2])), [body])

    def said(told: Any, bodies: Sequence[bytes] = (body,), **changes: Any) -> bytes:
        return replace(once.signer("bad"), **changes).write("server", 0, told, list(bodies))

    def flipped(data: bytes, begin: int = 0) -> bytes:
        place = chance.randrange(begin, len(data))
        return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]

    def message(change: Callable[[Tree], Tree], t: int = 0, sender: int = 2) -> bytes:
        zero = once.simulation.setup.algorithm.zero(once.simulation.setup.task, once.down)
        return wire.encode(once.header(t, sender), change(zero))

    header = json.dumps({"__metadata__": {}}).encode()
    return {
        "nothing": b"",
        "a few bytes": chance.randbytes(chance.randrange(1, 64)),
        "a long length": (2**32 - 1).to_bytes(4, "little") + chance.randbytes(200),
        "a flipped bit": flipped(whole),
        "a flipped bit of the body": flipped(whole, len(whole) - len(body)),
        "cut": whole[: chance.randrange(len(whole))],
        "longer": whole + chance.randbytes(chance.randrange(1, 99)),
        "twice": whole + whole,
        "unsigned": said(asdict(Answered([2])), key=None),
        "signed by a stranger": said(asdict(Answered([2])), key=KEYS["stranger"]),
        "signed by the other site": said(asdict(Answered([2])), key=KEYS["good"]),
        "in the name of the other site": once.signer("good").write("server", 0, asdict(Answered([2])), [body]),
        "in the name of nobody": said(asdict(Answered([2])), name="nobody"),
        "another run": said(asdict(Answered([2])), run="other"),
        "another experiment": said(asdict(Answered([2])), config="1" * 64),
        "another agreement": said(asdict(Answered([2])), agreement="1" * 64),
        "to somebody else": own.write("good", 0, asdict(Answered([2])), [body]),
        "of another phase": own.write("server", 1, asdict(Answered([2])), [body]),
        "another kind": said({"do": "done"}),
        "an accepting kind": said({"do": "accepted", "clients": [2]}),
        "no kind": said({}),
        "a kind that is none": said({"do": chance.choice(["eval", "__import__", "round", ""])}),
        "a refusal": said({"do": "refused", "what": "no", "own": True}, ()),
        "a class for a text": said({"do": "refused", "what": {"$class": "os.system"}}, ()),
        "clients that are no list": said({"do": "answered", "clients": "2"}),
        "clients that are no numbers": said({"do": "answered", "clients": [None]}),
        "somebody else's client": said(asdict(Answered([0]))),
        "no clients": said(asdict(Answered([]))),
        "more clients than bodies": said(asdict(Answered([2, 0]))),
        "more bodies than clients": said(asdict(Answered([2])), [body, body]),
        "no body": said(asdict(Answered([2])), []),
        "an empty body": said(asdict(Answered([2])), [b""]),
        "another client's body": said(asdict(Answered([2])), [once.bodies[0]]),
        "a body of another round": said(asdict(Answered([2])), [message(lambda zero: zero, t=7)]),
        "a body of the server": said(asdict(Answered([2])), [wire.encode(once.header(0, -1), once.down)]),
        "a body with a flipped bit": said(asdict(Answered([2])), [flipped(body)]),
        "a body that is cut": said(asdict(Answered([2])), [body[: chance.randrange(len(body))]]),
        "a body that is longer": said(asdict(Answered([2])), [body + b"\0"]),
        "numbers of another kind": said(asdict(Answered([2])), [message(lambda z: tree.map(torch.Tensor.double, z))]),
        "numbers of another shape": said(
            asdict(Answered([2])), [message(lambda z: tree.map(lambda leaf: leaf.reshape(-1)[:1], z))]
        ),
        "a file of tensors": said(asdict(Answered([2])), [len(header).to_bytes(8, "little") + header]),
    }


@pytest.mark.parametrize("seed", [0, pytest.param(None, marks=pytest.mark.slow)])
def test_a_bad_answer_is_an_absent_client(once: Round, seed: int | None) -> None:
    """40 classes: once in the fast tier, 25 times in the slow one."""
    whole = once.heard(lambda message: once.signer("bad").write("server", 0, asdict(Answered([2])), [once.bodies[2]]))
    assert [k for k, _ in whole] == [0, 1, 2]  # the control: a good answer counts
    tried = 0
    for one in [seed] if seed is not None else range(1, 26):
        for what, message in bad_messages(once, one).items():
            found = once.heard(lambda _, message=message: message)
            assert [k for k, _ in found] == [0, 1], what
            for (_, a), (_, b) in zip(found, whole, strict=False):
                assert all(map(torch.equal, tree.leaves(a), tree.leaves(b))), what
            tried += 1
    assert tried >= (40 if seed is not None else 1000)


class Leaving(InProcess):
    """A road on which nobody sees some of the sites, though messages reach them."""

    unseen: frozenset[str] = frozenset()

    def peers(self) -> frozenset[str]:
        return super().peers() - self.unseen


def test_who_has_gone_since_a_round_began_is_asked_and_waited_for(once: Round) -> None:
    """A minimum of all clients is kept, at whatever moment a site is killed and started again."""
    own = once.signer("bad")
    whole = own.write("server", 0, asdict(Answered([2])), [once.bodies[2]])
    road = Leaving({"good": once.good, "bad": lambda message: whole})
    sites = once.sites(road, Patience(timeout=5.0, minimum=3))
    sites.gather()
    road.unseen = frozenset({"bad"})
    assert sites.away(2)  # a round that may choose chooses somebody else
    assert [k for k, _ in sites.collected(0, once.down, once.terms)] == [0, 1, 2]
    later = once.sites(road, Patience(timeout=5.0, minimum=2))  # the control: who was not there is not asked
    later.patience = Patience(timeout=0.0, minimum=2)
    later.gather()
    assert [k for k, _ in later.collected(0, once.down, once.terms)] == [0, 1]


def test_everybody_is_told_the_end_and_nobody_is_waited_for_without_end(once: Round) -> None:
    """A server that is started again may have told all before it was killed: then nobody comes."""
    told: list[str] = []
    road = Leaving({name: lambda message, name=name: self_told(name) for name in ("good", "bad")})

    def self_told(name: str) -> bytes:
        told.append(name)
        road.unseen -= {"good"}  # one comes when another was told
        return once.signer(name).write("server", 0, asdict(Done()), [])

    cases = (({"good", "bad"}, 0.01, []), ({"good"}, 60.0, ["bad", "good"]), (set(), 60.0, ["good", "bad"]))
    for gone, timeout, heard in cases:
        road.unseen = frozenset(gone)
        sites = once.sites(road, Patience(timeout=timeout, minimum=3))
        sites._ready.clear()  # it was started again
        sites.part(None)
        assert told == heard
        told.clear()


def test_a_site_that_refuses_is_asked_again_where_too_few_are_left(
    once: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is never made of fewer answers than the minimum, however a site fails to answer."""
    monkeypatch.setattr(remote_sites, "AGAIN", 0.0)
    own, asked = once.signer("bad"), list[bytes]()

    def bad(message: bytes) -> bytes:
        asked.append(message)
        if len(asked) < 3:
            return own.write("server", 0, {"do": "refused", "what": "the disk is full", "own": True}, [])
        return own.write("server", 0, asdict(Answered([2])), [once.bodies[2]])

    for minimum, who, messages in ((3, [0, 1, 2], 3), (2, [0, 1], 1)):  # the second is the control
        sites = once.sites(InProcess({"good": once.good, "bad": bad}), Patience(timeout=5.0, minimum=minimum))
        sites.gather()
        assert [k for k, _ in sites.collected(0, once.down, once.terms)] == who
        assert len(asked) == messages
        asked.clear()


def test_a_site_that_does_not_take_part_is_not_asked_a_hundred_times(once: Round) -> None:
    """And all have answered: nobody is waited for."""
    asked: list[bytes] = []

    def bad(message: bytes) -> bytes:
        asked.append(message)
        return once.signer("bad").write("server", 0, {"do": "refused", "what": "no", "own": True}, [])

    sites = once.sites(InProcess({"good": once.good, "bad": bad}), Patience(timeout=5.0, minimum=2))
    sites._ready.discard("bad")
    sites.prelude = [(Begin(), ())]
    sites.gather()
    assert len(asked) == 1
    assert sites._here == {"good"}


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("takes_part", [True, False])
def test_a_site_that_was_started_again_is_asked_to_begin_and_then_for_the_round(
    once: Round, restarts: int, takes_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as it is started again; what it refuses then stands, and the round goes on without it."""
    own, asked, notes = once.signer("bad"), list[str](), list[RunEvent]()

    def bad(message: bytes) -> bytes:
        asked.append(str(own.read(message).head.said["do"]))
        if asked[-1] == "begin":
            said: dict[str, Any] = asdict(Accepted([2]) if takes_part else Refused("no"))
        elif asked.count("round") <= restarts or ("begin" in asked and not takes_part):
            said = asdict(Refused("it was started again", code=BEGIN_FIRST))
        else:
            said = asdict(Answered([2]))
        return own.write("server", 0, said, [once.bodies[2]] if said["do"] == "answered" else [])

    class Clocked(InProcess):
        def came(self, seconds: float) -> Sequence[Arrived]:
            clock[0] += 0 if self._waiting else seconds
            return super().came(0.0)

    clock = stopped_clock(monkeypatch)
    sites = once.sites(Clocked({"good": once.good, "bad": bad}), Patience(timeout=60.0, minimum=2))
    sites.prelude, sites.note = [(Begin(), ())], notes.append
    sites.gather()
    there = takes_part or not restarts
    assert [k for k, _ in sites.collected(0, once.down, once.terms)] == ([0, 1, 2] if there else [0, 1])
    assert asked == ["round", *["begin", "round"] * (restarts if takes_part else min(1, restarts))]
    assert ("bad" in sites._ready) == there
    assert [event.why for event in notes if event.event == "refused"] == ([] if there else ["bad refused (no)"])


def test_who_waits_too_long_stops_at_once_when_asked(once: Round) -> None:
    """Not at the next deadline. The control: in the middle of a round it plays that round to its end."""
    sites = once.sites(InProcess({}), Patience(timeout=600.0, minimum=3))
    sites.stopped = lambda: True
    sites._wait(time.monotonic() + 600)
    sites.stopped = lambda: False
    assert not sites.suffices(0, 2, 3)
    sites.stopped = lambda: True
    with pytest.raises(KeyboardInterrupt):
        sites._wait(time.monotonic() + 600)


class Silent(Leaving):
    """A road that loses what is sent to some."""

    lost: frozenset[str] = frozenset()

    def send(self, to: str, message: Writes) -> int:
        ticket = super().send(to, message)
        if to in self.lost:
            self.cancel(ticket)
        return ticket

    def came(self, seconds: float) -> Sequence[Arrived]:
        time.sleep(0 if self._waiting else min(seconds, 0.01))
        return super().came(seconds)


@pytest.mark.slow
def test_who_comes_when_others_are_gone_is_asked_beyond_the_deadline(once: Round) -> None:
    """Whoever was away when a round began was never asked in it, and the round waited for ever for those who had gone
    since. The control: before the deadline, and with enough answers, nobody else is asked.
    """
    whole = once.signer("bad").write("server", 0, asdict(Answered([2])), [once.bodies[2]])
    for lost, minimum, who in (({"good"}, 1, [2]), ((), 2, [0, 1])):
        road = Silent({"good": once.good, "bad": lambda message: whole})
        road.unseen, road.lost = frozenset({"bad"}), frozenset(lost)
        sites, notes = once.sites(road, Patience(timeout=0.1, minimum=2)), list[RunEvent]()
        sites.note, sites.stopped = notes.append, iter([False] * 400).__next__
        sites.gather()
        sites.patience, road.unseen = Patience(timeout=0.1, minimum=minimum), frozenset()  # one has come back
        assert sorted(k for k, _ in sites.collected(0, once.down, once.terms)) == who
        asked = [event.sites for event in notes if event.event == "asked"]
        assert asked == [("good",), ("bad",)][: 1 + (2 in who)]


@pytest.mark.slow
def test_who_has_refused_once_is_asked_again_when_others_are_gone(once: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_sites, "AGAIN", 0.0)
    own, asked = once.signer("bad"), list[bytes]()

    def bad(message: bytes) -> bytes:
        asked.append(message)
        if len(asked) == 1:
            return own.write("server", 0, {"do": "refused", "what": "the disk is full", "own": True}, [])
        return own.write("server", 0, asdict(Answered([2])), [once.bodies[2]])

    road = Silent({"good": once.good, "bad": bad})
    sites = once.sites(road, Patience(timeout=0.1, minimum=1))
    road.lost, sites.stopped = frozenset({"good"}), iter([False] * 400).__next__
    sites.gather()
    assert [k for k, _ in sites.collected(0, once.down, once.terms)] == [2]
    assert len(asked) == 2


def test_what_a_round_waits_for_says_who_is_revoked_and_what_to_do(once: Round) -> None:
    road = Silent({"good": once.good, "bad": lambda message: b""})
    road.shut_out = lambda: frozenset({"bad"})  # type: ignore[method-assign]
    road.rate = lambda peer: 1000.0  # type: ignore[method-assign]
    sites, notes = once.sites(road, Patience(timeout=0.05, minimum=3)), list[RunEvent]()
    road.lost, sites.note, sites.stopped = frozenset({"bad"}), notes.append, iter([False] * 9 + [True] * 9).__next__
    sites.gather()
    with pytest.raises(KeyboardInterrupt):
        list(sites.collected(0, once.down, once.terms))
    told = next(event.words for event in notes if event.event == "waiting")
    assert told.startswith(
        "round 1 waits: 2 of 3 clients have answered, 3 are needed; no answer from bad; the line of bad"
    )
    assert " carries 1 kB/s, and " in told
    assert "s: the deadline of 0.05 s is too short for it; revoked: bad; " in told
    assert told.endswith("stop here and give the same command with a smaller --minimum (such as --minimum 2)")


def test_what_a_site_is_sent_is_encoded_once_when_it_is_sent(once: Round) -> None:
    sites, encoded = once.sites(Silent({}), Patience()), iter([b"part"])  # there is no second one
    write = sites._writer("good", commands.Round(0, once.terms, True), lambda: [next(encoded)])
    assert len(write()) == sites._there


@pytest.mark.parametrize(
    ("repeats", "minimum", "ends"),
    [(True, 2, "closes"), (True, 3, "stops"), (False, 2, "waits"), (False, 3, "waits")],
)
def test_a_stop_leaves_a_silent_site_a_moment_and_no_deadline(
    once: Round, repeats: bool, minimum: int, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With enough answers the round ends; without them it is left as it is, where it can be played again. Where it
    cannot, it is waited for as before.
    """
    clock = stopped_clock(monkeypatch)

    class Slow(Silent):
        def came(self, seconds: float) -> Sequence[Arrived]:
            clock[0] += 0 if self._waiting else seconds
            return super().came(0.0)

    road = Slow({"good": once.good, "bad": lambda message: b""})
    sites, notes = once.sites(road, Patience(timeout=600.0, minimum=minimum)), list[RunEvent]()
    sites.gather()
    road.lost, sites.repeats, sites.note, sites.stopped = frozenset({"bad"}), repeats, notes.append, lambda: True
    if minimum == 3:
        with pytest.raises(KeyboardInterrupt):
            list(sites.collected(0, once.down, once.terms))
    else:
        assert [k for k, _ in sites.collected(0, once.down, once.terms)] == [0, 1]
    assert (clock[0] < 15) == (ends != "waits")
    assert ([event.event for event in notes if event.event in ("closing", "deadline")]) == {
        "closes": ["closing"],
        "stops": [],
        "waits": ["deadline"] * (minimum == 2),
    }[ends]
