"""Between sites every algorithm trains the model that the simulation trains, and everybody's books agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from sordino import config
from sordino.config import Experiment
from sordino.engine import wire
from sordino.errors import DataError
from sordino.metrics import can_be
from sordino.receipts.verify import verify
from sordino.results import preparation_facts as preparation
from sordino.runs.run import start
from sordino.sites.serve import settled
from sordino.transport import message
from sordino.transport import sites as transport_sites
from sordino.transport.message import Arrived
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience
from tests.helpers.between_sites import BETWEEN_SITES, Federated, ledger_of, model_of
from tests.helpers.in_process import InProcess
from tests.laws.cases import BY_NAME, Case
from tests.laws.traces import Killed
from tests.laws.tried import AGAIN, tried_on


# one case of every way that a run may go, with a preparation and a ledger that charges; the slow tier tries all
@pytest.mark.slow
@tried_on(BETWEEN_SITES, AGAIN - {"slaug_fl", "gaussian_gdp"})
def test_sites_train_what_the_simulation_trains(case: Case, tmp_path: Path) -> None:
    start(case.experiment(), tmp_path / "loop")
    between = Federated(case.experiment(), tmp_path)
    between.play()
    assert not [note for note in between.notes if "are there" not in note]
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert ledger_of(between.folder) == ledger_of(tmp_path / "loop")
    told = {file.read_bytes() for file in tmp_path.glob("*/model.json")}
    assert len(told) == (case.name != "quadratic"), "server and sites know how the model is used, and say the same"


def test_a_broadcast_is_hashed_once_for_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = message.digest_of, list[bytes]()

    def digest_of(bodies: Sequence[bytes | memoryview]) -> str:
        seen.extend(body for body in bodies if isinstance(body, bytes))  # those of a sender: a reader has views
        return real(bodies)

    for place in (message, transport_sites):
        monkeypatch.setattr(place, "digest_of", digest_of)
    Federated(BY_NAME["fedavg"].experiment(), tmp_path).play()
    broadcasts = [body for body in seen if b'"sender":-1' in body[:1000]]
    assert len(broadcasts) == len(set(broadcasts)) == BY_NAME["fedavg"].experiment().rounds


def test_an_upload_in_a_signed_message_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server compares the digest that the site signed, which covers the seal inside the upload, too."""
    real, sealed, digests = wire._check_seal, list[bytes](), list[bytes]()

    def check_seal(view: memoryview) -> None:
        sealed.append(bytes(view[:1000]))
        real(view)

    def digest_of(bodies: Sequence[bytes | memoryview]) -> str:
        digests.extend(bytes(body[:1000]) for body in bodies if isinstance(body, memoryview))  # those of a reader
        return hashed(bodies)

    hashed = message.digest_of
    monkeypatch.setattr(wire, "_check_seal", check_seal)
    monkeypatch.setattr(message, "digest_of", digest_of)
    Federated(BY_NAME["fedavg"].experiment(), tmp_path).play()
    assert [head for head in sealed if b'"kind":"down"' in head], "sites look at the seals of broadcasts"
    assert not [head for head in sealed if b'"kind":"up"' in head]
    uploads = [head for head in digests if b'"kind":"up"' in head]
    assert len(uploads) == len(set(uploads)) > 0


def test_between_sites_every_round_has_a_checkpoint() -> None:
    """A site keeps its last three answers: a server may never have to go further back."""
    rare = config.load(None, ["engine.checkpoint_every=7"])
    assert settled(rare, rehearsal=True).engine.checkpoint_every == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian_gdp", "scaffold", "fedprox"])
def test_with_default_executors_it_is_the_same_model_to_rounding(name: str, tmp_path: Path) -> None:
    """A simulation computes several clients in one go, a site has its own alone: the same numbers are added in another
    order. The books are equal to the bit, whatever computes.
    """
    made = BY_NAME[name].experiment(engine={"precision": "fp32"})
    assert made.engine.executor == "auto"
    start(made, tmp_path / "run")
    between = Federated(made, tmp_path)
    between.play()
    one, other = (safetensors.torch.load(model_of(place)) for place in (between.folder, tmp_path / "run"))
    assert one.keys() == other.keys()
    for tensor in one:
        torch.testing.assert_close(one[tensor], other[tensor], rtol=0, atol=1e-6)
    charges = [
        [(entry.op, entry.charges) for entry in ledger_of(place)] for place in (between.folder, tmp_path / "run")
    ]
    assert charges[0] == charges[1]


@pytest.mark.slow
def test_a_server_tells_what_came_before_round_one_without_any_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = Federated(BY_NAME["slaug_fl_rigorous_b"].experiment(rounds=1), tmp_path)
    between.play()

    def nowhere(experiment: Experiment) -> None:
        raise DataError("the rows are at the sites")

    monkeypatch.setattr(preparation, "simulated", nowhere)
    found = preparation.gather(between.folder, pictures=False)
    assert found is not None
    assert sum(one.kept for one in found.classes) > 0


class Lonely(InProcess):
    """One site goes for good when the second round has been asked for."""

    gone = ""

    def peers(self) -> frozenset[str]:
        return super().peers() - {self.gone}

    def came(self, seconds: float) -> Sequence[Arrived]:
        self._waiting = {ticket: one for ticket, one in self._waiting.items() if one[0] != self.gone}
        return super().came(seconds)


@pytest.mark.slow
def test_with_a_smaller_minimum_a_round_that_waits_goes_on_where_it_stood(tmp_path: Path) -> None:
    """What the others have answered counts: nobody pays a round twice, and none is lost."""
    case, roads, stopped = BY_NAME["gaussian_gdp"], list[Lonely](), [Killed]
    privacy = case.privacy | {"noise": "system"}
    real = case.experiment(privacy=privacy, rounds=3, cohort={"name": "everyone"})

    def carried(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Lonely:
        roads.append(Lonely(handlers))
        roads[-1].gone = "site-2" if roads[1:] else ""
        return roads[-1]

    def hears(event: RunEvent) -> None:
        if event.event == "asked" and event.round == 2:
            roads[-1].gone = "site-2"
        if event.event == "waiting" and roads[-1].gone and stopped:
            raise stopped.pop()

    between = Federated(real, tmp_path, patience=Patience(0.1, 5), carried=carried, hears=hears)
    with pytest.raises(Killed):
        between.play()
    between.patience = Patience(0.1, 4)
    assert [row.answered for row in between.play().metrics] == [5, 4, 4]
    assert verify(between.folder) == []
    paid = [len([entry for entry in ledger_of(tmp_path / site) if entry.charges]) for site in between.agreed.sites]
    assert paid == [3, 3, 1, 3, 3]


def test_a_site_cannot_make_scores_that_are_none(tmp_path: Path) -> None:
    """A share above 1, NaN, or a loss whose mean is no number any more is left out, as of a site that says nothing."""
    between = Federated(BY_NAME["fedavg"].experiment(), tmp_path, shares_scores=True)
    evaluate = between.half(between.carried({})).evaluation()
    server, honest = SimpleNamespace(x={}), {0: [0.5, 1.0], 1: [0.25, 2.0]}
    for forged in ([5.0, 1.0], [-0.1, 1.0], [0.5, -1e308], [0.5, math.inf], [math.nan, 1.0], [0.5], [0.5, 1.0, 1.0]):
        told = {**honest, 2: forged}
        assert evaluate(0, server, lambda *_, told=told: told) == evaluate(0, server, lambda *_: honest)
    assert not can_be("accuracy_of_all_outputs", 1.1)
    everybody = {**honest, 2: [1.0, -3.0]}  # one's own loss may be below 0
    assert evaluate(0, server, lambda *_: everybody) != evaluate(0, server, lambda *_: honest)
