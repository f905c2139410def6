"""The laws every algorithm obeys, whatever it computes. A new algorithm joins them by one row in `cases`.
order       the order in which clients are served changes nothing: nor does how many threads serve them
processes   a client in another process says the same bytes
resume      a run killed and continued is the run that never stopped
seed        one seed one result, another seed another
ledger      it lists the participations that happened, each published, none beyond a cap
silence     with next to no noise and a clip that never bites, the run is its non-private twin
receipt     every (unit, adversary) has a row, finite only where recorded events prove it; `verify` believes nothing
            else
absence     an upload that is not finite counts as an upload of zero
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sordino import keys, tree
from sordino.accounting.composition import parsed
from sordino.algorithms import all_algorithms
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.engine.site import Site
from sordino.errors import LedgerError
from sordino.ledger.ledger import EVERYONE, State
from sordino.receipts.receipt import opened
from sordino.runs.run import resume, start
from sordino.transport import message
from sordino.types import Grant, Shard, Task, Terms
from tests.helpers.executors import answers_of
from tests.laws import warm
from tests.laws.cases import BY_NAME, CASES, CLIENTS, ROUNDS, Case
from tests.laws.traces import Trace, differences, finished, interrupted, killed_at, parts_of, started
from tests.laws.tried import AGAIN, Base, by_name, by_way, tried_on

Grants = dict[int, Grant]


# order ----------------------------------------------------------------------------------------------------------------
def shuffled(case: Case, folder: Path) -> Trace:
    """The run with the clients of every round served, and answering, in another order, and by one thread."""
    whole = Site.__call__

    def backwards(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        order = sorted(terms, key=lambda k: (k * 7 + t) % 5, reverse=True)
        served = dict(answer for k in order for answer in whole(self, t, down, {k: terms[k]}).uploads)
        yield from sorted(served.items())  # the server adds them up in the order of their ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "__call__", answers_of(backwards))
        return finished(case.experiment(), folder)


@pytest.mark.one_fast
@by_way
def test_the_order_of_clients_changes_nothing(case: Case, base: Base, tmp_path: Path) -> None:
    assert differences(base.trace(case), shuffled(case, tmp_path / "run")) == []


class Shared(FedAvg):
    """Broken twin: the clients share one generator, so what a client draws depends on who drew before."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: keys.Key) -> tuple[Up, Client]:
        up, state = super().local(task, down, c, shard, key)
        return Up(tree.scale(1 + torch.rand(()), up.delta)), state


def test_the_order_law_catches_shared_randomness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(all_algorithms(), "shared", Shared)
    case = Case("shared", {"name": "shared"})
    torch.manual_seed(0)
    straight = finished(case.experiment(), tmp_path / "straight")
    torch.manual_seed(0)
    assert "model" in differences(straight, shuffled(case, tmp_path / "shuffled"))


# processes ------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@by_way
def test_other_processes_say_the_same_bytes(
    case: Case, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    apart = finished(case.experiment(engine={"executor": "processes", "workers": 2}), tmp_path / "run")
    assert differences(base.trace(case), apart) == []


# resume ---------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@by_way
def test_resumed_is_uninterrupted(case: Case, base: Base, tmp_path: Path) -> None:
    assert differences(base.trace(case), interrupted(case.experiment(), tmp_path / "run")) == []


class Hoarding(FedAvg):
    """Broken twin: state outside of what is checkpointed."""

    calls = 0

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: keys.Key) -> tuple[Up, Client]:
        Hoarding.calls += 1
        up, state = super().local(task, down, c, shard, key)
        return Up(tree.scale(1 / Hoarding.calls, up.delta)), state


@pytest.mark.slow
def test_the_resume_law_catches_hidden_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(all_algorithms(), "hoarding", Hoarding)
    case = Case("hoarding", {"name": "hoarding"}, more={"engine": {"executor": "loop", "workers": 1}})
    straight = finished(case.experiment(), tmp_path / "straight")
    Hoarding.calls = 0
    assert {"model", "ledger"} <= set(differences(straight, interrupted(case.experiment(), tmp_path / "stopped")))
    # where rounds have to be played again it answers differently, which the ledger refuses: one operation is one
    # release
    Hoarding.calls = 0
    rare = case.experiment(engine={"checkpoint_every": 100, "workers": 1})
    with killed_at("published", 1):
        start(rare, tmp_path / "rare")
    with pytest.raises(LedgerError, match="another content"):
        resume(tmp_path / "rare")
    Hoarding.calls = 0
    assert differences(straight, finished(case.experiment(), tmp_path / "again")) == []


# seed -----------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@by_way
def test_another_seed_is_another_run(case: Case, base: Base, tmp_path: Path) -> None:
    other = finished(case.experiment(seed=1), tmp_path / "run")
    # a client state may be a count of participations and nothing else
    assert set(differences(base.trace(case), other)) >= set(Trace._fields) - {"clients"}


# ledger ---------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@by_name
def test_the_ledger_lists_the_participations_that_happened(case: Case, base: Base) -> None:
    setup, federation = opened(base.folder(case))
    with federation.ledger as ledger:
        every = list(ledger.entries())
        spent = {k: ledger.spent(str(k)) for k in range(CLIENTS)}
    entries = [entry for entry in every if entry.op.rpartition("/")[0] == federation.run]
    assert {entry.op.rpartition("/")[0] for entry in every} - {federation.run} == set(federation.before)
    served = base.served(case)
    metrics = [json.loads(line) for line in (base.folder(case) / "metrics.jsonl").read_text().splitlines()]
    assert [entry.op for entry in entries] == [federation.op(t) for t in range(ROUNDS)]
    assert {entry.state for entry in every} == {State.PUBLISHED}
    assert all(entry.digest for entry in every)
    assert [row["answered"] for row in metrics] == [len(served[t]) for t in range(ROUNDS)]

    hidden, alike = setup.plan.everyone_pays, setup.plan.one_price
    priced = setup.plan.pricing is not None
    for t, entry in enumerate(entries):
        who = list(range(CLIENTS)) if hidden else served[t]
        paid = {EVERYONE} if alike else {str(k) for k in who} if priced else set()
        assert set(entry.charges) == paid
        named = [group["clients"] for group in parsed(entry.note).releases]
        assert named == ["*"] or sorted(k for group in named for k in group) == who
    for k in range(CLIENTS):
        times = ROUNDS if hidden else sum(k in served[t] for t in served)
        assert times <= setup.plan.participations[k]
        charges = [entry.charges.get(EVERYONE if alike else str(k)) for entry in entries]
        own = [charge for charge in charges if charge is not None]
        assert len(own) == (times if priced else 0)
        if priced:
            own += [entry.charges[str(k)] for entry in every if entry not in entries and str(k) in entry.charges]
        assert spent[k] == tuple(map(sum, zip(*own, strict=True))) or not own
        if (cap := setup.plan.cap_of(k)) is not None:
            assert setup.plan.currency.fits(spent[k], cap)
    # noise sized for one coordinate has no price; what a published cohort spends has one, though it proves nothing
    has_price = case.protects != "" and case.name != "cdp_fl"
    assert (has_price or case.name == "dp_prox_published") == priced


# silence --------------------------------------------------------------------------------------------------------------
def model_of(folder: Path) -> torch.Tensor:
    return tree.flat(safetensors.torch.load_file(folder / "model.safetensors")).double()


@pytest.mark.one_fast
@tried_on([case for case in CASES if case.silent is not None], AGAIN)
def test_without_noise_it_is_its_plain_twin(case: Case, base: Base, tmp_path: Path) -> None:
    assert case.silent is not None
    assert case.plain is not None
    start(case.experiment(**{"privacy": {}} | case.silent), tmp_path / "silent")
    start(case.experiment(**{"privacy": {}} | case.plain), tmp_path / "plain")
    silent, plain, noisy = (model_of(f) for f in (tmp_path / "silent", tmp_path / "plain", base.folder(case)))
    initial = tree.flat(started(parts_of(tmp_path / "plain"))).double()
    moved = (plain - initial).norm()
    assert moved > 0.1  # there was something to learn
    assert (silent - plain).norm() < 1e-4 * moved
    assert (noisy - plain).norm() > 1e-2 * moved  # negative control: the case itself is far from its twin


def test_every_noise_has_a_silent_twin() -> None:
    without = {case.name for case in CASES if case.protects and case.silent is None}
    # the textbook Gaussian has no multiplier of its own to type; others repeat a mechanism of a row that has a twin
    repeated = {"dp_fedavg"} | {name for name in BY_NAME if name.startswith("pdp_prox")}
    # episodes of cells are no others'; g moves by the participation that a hidden cohort shows
    repeated |= {"cuag_pfl_local_sample", "prifedsync_steps", "cuag_pfl_central_client"}
    repeated |= {"privunit", "slaug_fl_rigorous_b"}  # sends directions alone; lets no two phases type a multiplier
    assert without == {"gaussian_simple", "gaussian_gdp_adaptive", "central_visible"} | repeated


# absence --------------------------------------------------------------------------------------------------------------
bounded = [case for case in CASES if case.name in ("whole_update", "central", "central_visible")]


@pytest.mark.one_fast
@pytest.mark.parametrize("case", bounded, ids=lambda case: case.name)
def test_an_upload_that_is_not_finite_counts_as_zero(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the round is bit-identical, denominator included (only the digest of the experiment is shared by all
    three).
    """
    whole = FedAvg.local
    traces = {}
    for value in (0.0, float("nan"), float("inf"), 1.0):

        def bad(*arguments: Any, _value: float = value) -> tuple[Up, Client]:
            up, state = whole(*arguments)
            first = arguments[4].size % 2  # some of the clients, by a public number
            return (Up(tree.map(lambda leaf: torch.full_like(leaf, _value), up.delta)) if first else up), state

        monkeypatch.setattr(FedAvg, "local", bad)
        traces[value] = finished(case.experiment(), tmp_path / str(value))
    zero, nan, inf, one = traces.values()
    assert differences(zero, nan) == differences(zero, inf) == []
    assert "model" in differences(zero, one)  # negative control
