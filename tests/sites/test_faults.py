"""Messages lost, late or twice there, sites and servers that die anywhere: the run ends as if nothing had been."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sordino.engine import checkpoint
from sordino.engine.commands import Round
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import DataError
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.sites.site_accounts import SiteAccounts
from sordino.transport.message import Arrived, Writes
from sordino.transport.request_handler import ReplyStore
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience
from tests.helpers.between_sites import Federated, ledger_of, model_of
from tests.helpers.in_process import InProcess
from tests.laws.cases import BY_NAME
from tests.laws.traces import Killed, killed_at

SLOW = pytest.mark.slow
STATEFUL = "scaffold"  # the one with the richest client state
PRIVATE = "gaussian_gdp"
PHASED = "slaug_fl_rigorous_b"


def simulated(name: str, place: Path) -> Path:
    start(BY_NAME[name].experiment(), place / "loop")
    return place / "loop"


def same(between: Federated, loop: Path) -> bool:
    return model_of(between.folder) == model_of(loop) and ledger_of(between.folder) == ledger_of(loop)


class Unreliable(InProcess):
    """Loses messages and answers until they are brought again, brings answers twice, and late, in another order."""

    def __init__(self, handlers: Mapping[str, Callable[[bytes], bytes]], seed: int = 0) -> None:
        super().__init__(handlers)
        self._chance, self._late = random.Random(seed), list[Arrived]()

    def came(self, seconds: float) -> Sequence[Arrived]:
        self._chance.shuffle(self._late)
        found = [self._late.pop()] if self._late and self._chance.random() < 0.5 else []
        waiting = dict(self._waiting)
        for arrived in super().came(seconds):
            fate = self._chance.choice(["lost", "late", "once", "twice"])
            found += [arrived] * {"lost": 0, "late": 0, "once": 1, "twice": 2}[fate]
            self._late += [arrived] * (fate == "late")
            if fate == "lost":
                self._waiting[arrived.ticket] = waiting[arrived.ticket]
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [STATEFUL, *(pytest.param(n, marks=SLOW) for n in (PRIVATE, PHASED))])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2))])
def test_an_unreliable_carrier_changes_nothing(name: str, seed: int, tmp_path: Path) -> None:
    loop = simulated(name, tmp_path)
    between = Federated(BY_NAME[name].experiment(), tmp_path, carried=lambda handlers: Unreliable(handlers, seed))
    between.play()
    assert same(between, loop)


# sites that die -------------------------------------------------------------------------------------------------------

MOMENTS: Mapping[str, tuple[Any, str]] = {
    "before paying": (SiteAccounts, "pay"),
    "paid": (FederatedServer, "reserve"),
    "computed": (Site, "obey"),
    "half shelved": (checkpoint, "save"),
    "shelved": (ReplyStore, "put"),
    "stored": (FederatedServer, "publish"),
    "answered": (SiteAccounts, "release"),
}


class Mortal(InProcess):
    """A site that is killed does not answer; it comes back, and its message is brought again."""

    def __init__(self, handlers: Mapping[str, Callable[[bytes], bytes]], between: Federated) -> None:
        super().__init__(handlers)
        self._between = between

    def came(self, seconds: float) -> Sequence[Arrived]:
        waiting = dict(self._waiting)
        try:
            return super().came(seconds)
        except Killed:
            self._waiting = waiting
            for site, member in list(self._between.members.items()):
                member.close()
                self._between.member(site)
            return []


@contextmanager
def dying(moment: str, before: bool, times: int, step: int) -> Iterator[list[int]]:
    """Whoever passes this moment for the n-th time, or is about to, is gone; so often at most."""
    owner, name = MOMENTS[moment]
    whole, passed, deaths = getattr(owner, name), [0], [0]

    def mortal(*arguments: Any, **named: Any) -> Any:
        in_server = isinstance(arguments[0], FederatedServer) and arguments[0].only is None
        in_server = in_server or (name == "save" and "replies" not in str(arguments[0]))
        passed[0] += not in_server
        dies = not in_server and passed[0] % step == 0 and deaths[0] < times
        deaths[0] += dies
        if dies and before:
            raise Killed
        found = whole(*arguments, **named)
        if name == "obey":
            found = iter(list(found))
        if dies:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, mortal)
        yield deaths


@pytest.mark.one_fast
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("before", [pytest.param(True, id="before", marks=SLOW), pytest.param(False, id="after")])
@pytest.mark.parametrize("name", [STATEFUL, *(pytest.param(n, marks=SLOW) for n in (PRIVATE, PHASED))])
def test_a_site_that_dies_anywhere_and_comes_back_changes_nothing(
    moment: str, before: bool, name: str, tmp_path: Path
) -> None:
    loop = simulated(name, tmp_path)
    between = Federated(BY_NAME[name].experiment(), tmp_path)
    between.carried = lambda handlers: Mortal(handlers, between)
    with dying(moment, before, times=3, step=2) as deaths:
        between.play()
    assert deaths == [3]
    assert same(between, loop)
    for site, which in between.agreed.sites.items():  # and nobody paid twice
        mine = {entry.op: entry.charges for entry in ledger_of(tmp_path / site)}
        for entry in ledger_of(between.folder):
            own = {str(k): entry.charges[str(k)] for k in which if str(k) in entry.charges}
            assert mine.get(entry.op, {}) == own


@pytest.mark.one_fast
@pytest.mark.parametrize("point", ["reserved", "computed", "kept", "published"])
@pytest.mark.parametrize("name", [PRIVATE, pytest.param(STATEFUL, marks=SLOW)])
def test_a_server_that_dies_and_comes_back_changes_nothing(point: str, name: str, tmp_path: Path) -> None:
    loop = simulated(name, tmp_path)
    between = Federated(BY_NAME[name].experiment(), tmp_path)
    with killed_at_server(point, 1):
        between.play()
    between.play()
    assert same(between, loop)


@contextmanager
def killed_at_server(point: str, round: int) -> Iterator[None]:
    """As `killed_at`, but for the books of sites."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("reserve", "publish"):
            whole = getattr(FederatedServer, name)

            def of_sites(self: FederatedServer, *rest: Any, whole: Any = whole, name: str = name) -> Any:
                return whole(self, *rest) if self.only is None else UNTOUCHED[name](self, *rest)

            patch.setattr(FederatedServer, name, of_sites)
        with killed_at(point, round):
            yield


UNTOUCHED = {name: getattr(FederatedServer, name) for name in ("reserve", "publish")}


# sites that are not there ---------------------------------------------------------------------------------------------


class Away(InProcess):
    """One site is cut off for some rounds."""

    gone: str = ""

    def peers(self) -> frozenset[str]:
        return super().peers() - {self.gone}

    def send(self, to: str, message: Writes) -> int:
        assert to != self.gone
        return super().send(to, message)


@pytest.mark.slow
@pytest.mark.parametrize("name", [STATEFUL, PRIVATE, pytest.param("gaussian_gdp_adaptive", marks=SLOW)])
def test_who_is_cut_off_misses_its_rounds_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    """And everybody's receipt holds, though the experiment plans that nobody is away."""
    carriers: list[Away] = []

    def carried(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Away:
        carriers.append(Away(handlers))
        return carriers[0]

    everyone = {"cohort": {"name": "everyone"}}
    between = Federated(BY_NAME[name].experiment(**everyone), tmp_path, carried=carried, patience=Patience(5.0, 2))
    whole = FederatedServer.publish

    def publish(self: FederatedServer, t: int, digest: bytes) -> None:
        whole(self, t, digest)
        if self.only is None:
            carriers[0].gone = "site-2" if t < 2 else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "publish", publish)
        ended = between.play()
    assert [row.answered for row in ended.metrics] == [5, 4, 4, 5]
    assert verify(between.folder) == []
    for site in between.agreed.sites:
        member = between.member(site)
        assert member.receipt().rounds == (2 if site == "site-2" else 4)
        between.stop(site)
        assert verify(between.place / site) == []


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("site-2", ""), ("", "site-2")])
def test_a_round_that_was_reserved_is_played_by_whom_it_was_reserved_for(
    before: str, after: str, tmp_path: Path
) -> None:
    """Whoever can be reached when the server is started again: the plan of that round does not change."""
    carriers: list[Away] = []

    def carried(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Away:
        carriers.append(Away(handlers))
        carriers[-1].gone = after if carriers[1:] else before
        return carriers[-1]

    four = BY_NAME[PRIVATE].experiment(cohort={"name": "random", "size": 4})  # so somebody is left to take a place
    patience = Patience(1, 2)  # seconds that a busy machine needs
    between = Federated(four, tmp_path, carried=carried, patience=patience)
    with killed_at_server("reserved", 0):
        between.play()
    (reserved,) = ledger_of(between.folder)
    assert ("2" in reserved.charges) == (before != "site-2"), "the client of site-2 is drawn, if it is there"
    ended = between.play()
    assert ledger_of(between.folder)[0].charges == reserved.charges
    assert ended.metrics[0].answered == (3 if after else 4)  # who was drawn and is away is not replaced any more
    assert ended.metrics[1].answered == 4
    assert verify(between.folder) == []


@pytest.mark.slow
def test_a_round_goes_on_with_who_comes_when_others_have_gone(tmp_path: Path) -> None:
    """One site is away when a round begins, another goes for good in the middle of it, and the first comes: there are
    enough, and none is waited for that cannot come. Everybody's books hold, and each pays for what it has answered.
    """
    carriers, waited = list[Away](), list[RunEvent]()

    class Losing(Away):
        lost: str = ""

        def send(self, to: str, message: Writes) -> int:
            ticket = super().send(to, message)
            if to == self.lost:
                self.cancel(ticket)
            return ticket

        def came(self, seconds: float) -> Sequence[Arrived]:
            time.sleep(0 if self._waiting else min(seconds, 0.02))
            return super().came(seconds)

    def carried(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Away:
        carriers.append(Losing(handlers))
        carriers[0].gone = "site-2"
        return carriers[0]

    def hears(event: RunEvent) -> None:
        if event.event == "gathering" and event.count == 4:
            carriers[0].lost = "site-1"  # type: ignore[attr-defined]
        if event.event == "waiting":
            waited.append(event)
            assert len(waited) < 20, "it has come, and the round waits again and again"
            carriers[0].gone = ""

    everyone = BY_NAME[PRIVATE].experiment(cohort={"name": "everyone"}, rounds=2)
    between = Federated(everyone, tmp_path, carried=carried, patience=Patience(0.5, 4), hears=hears)
    ended = between.play()
    assert [row.answered for row in ended.metrics] == [4, 4]
    assert verify(between.folder) == []
    paid = {site: len([e for e in ledger_of(tmp_path / site) if e.charges]) for site in between.agreed.sites}
    assert paid == {"site-0": 2, "site-1": 0, "site-2": 2, "site-3": 2, "site-4": 2}


@pytest.mark.slow
def test_what_goes_wrong_at_a_site_is_told_to_nobody_else(tmp_path: Path) -> None:
    """The words of an error may repeat what stands in a row. The control: the site itself is told."""
    everyone = BY_NAME["fedavg"].experiment(cohort={"name": "everyone"})
    between = Federated(everyone, tmp_path, patience=Patience(1e-6, 4))
    told, sent = list[RunEvent](), list[bytes]()

    class Reading(InProcess):
        def came(self, seconds: float) -> Sequence[Arrived]:
            found = super().came(seconds)
            sent.extend(bytes(one.message) for one in found)
            return found

    whole = Site.obey

    def obey(self: Site, command: Any, messages: Any) -> Any:
        if isinstance(command, Round) and 0 in command.terms:
            raise DataError("row 17 holds 'HIV-positive'", why="its name is Alice", fix="-", code="secret-row")
        return whole(self, command, messages)

    between.carried = Reading
    between.member("site-0").note = told.append
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "obey", obey)
        ended = between.play()
    assert {row.answered for row in ended.metrics} == {4}
    failures = [event.why for event in told if event.event == "failed"]
    assert set(failures) == {"row 17 holds 'HIV-positive' its name is Alice"}
    assert any(b"failed-at-site" in message for message in sent)
    for word in (b"HIV", b"Alice", b"row 17", b"secret-row"):
        assert not any(word in message for message in sent)
        assert not any(word.decode() in note for note in between.notes)


@pytest.mark.slow
def test_a_round_with_too_few_waits_and_says_so(tmp_path: Path) -> None:
    """Silence is no empty round: the server waits until enough have answered."""
    between = Federated(BY_NAME["fedavg"].experiment(cohort={"name": "everyone"}), tmp_path, patience=Patience(0.01, 5))
    between.carried = lambda handlers: Unreliable(handlers, 3)
    ended = between.play()
    assert [row.answered for row in ended.metrics] == [5] * 4
    assert [note for note in between.notes if "waits" in note and "5 are needed" in note]


# noise that is drawn once ---------------------------------------------------------------------------------------------


class Dying(InProcess):
    """The server dies when this many answers to rounds have come."""

    left = 5

    def came(self, seconds: float) -> Sequence[Arrived]:
        found = super().came(seconds)
        self.left -= len(found)
        if self.left < 0:
            self.left = 10**9
            raise Killed
        return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["half of the answers are there", "computed"])
def test_a_round_of_real_noise_is_lost_only_after_all_answers_have_come(moment: str, tmp_path: Path) -> None:
    """Sites send what they have sent: until the server draws its own noise, nothing is drawn twice by going on."""
    everyone, real = {"cohort": {"name": "everyone"}}, {**BY_NAME[PRIVATE].privacy, "noise": "system"}
    between = Federated(BY_NAME[PRIVATE].experiment(privacy=real, rounds=3, **everyone), tmp_path)
    if moment == "computed":
        with killed_at_server("computed", 1):
            between.play()
    else:
        sites = len(between.agreed.sites)
        between.carried = lambda handlers: Dying(handlers)
        Dying.left = 2 * sites + sites + sites // 2  # the prelude has a message or two for each
        with pytest.raises(Killed):
            between.play()
        between.carried = InProcess
    between.play()
    rows = [json.loads(line) for line in (between.folder / "metrics.jsonl").read_text().splitlines()]
    lost = [row["round"] for row in rows if row.get("lost")]
    assert lost == ([2] if moment == "computed" else [])
    assert verify(between.folder) == []
    for site in between.agreed.sites:  # one answer, one payment
        assert len([entry for entry in ledger_of(tmp_path / site) if entry.charges]) == 3
