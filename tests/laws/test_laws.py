"""The laws every algorithm obeys, whatever it computes. A new algorithm joins them by one row in `cases`.
order       the order in which clients are served changes nothing
processes   a client in another process says the same bytes
resume      a run killed and continued is the run that never stopped
seed        one seed one result, another seed another
ledger      it lists the exposures that happened, each published, none beyond a cap
silence     with next to no noise and a clip that never bites, the run is its non-private twin
receipt     every (unit, adversary) has a row, finite only where recorded events prove it; `verify` believes nothing
            else
absence     an upload that is not finite counts as an upload of zero
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from laws import warm
from laws.cases import BY_NAME, CASES, CLIENTS, ROUNDS, Case
from laws.traces import Trace, differences, finished, interrupted, killed_at, parts_of, started, trace
from sordino import keys, tree
from sordino.algorithms import ALGORITHMS
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.engine import processes
from sordino.engine.site import Site
from sordino.errors import LedgerError
from sordino.ledger.events import NonPrivate, leaves
from sordino.ledger.ledger import EVERYONE, State
from sordino.ledger.notes import parsed, read_notes
from sordino.runs.receipt import opened
from sordino.runs.run import Progress, resume, start
from sordino.runs.verify import verify
from sordino.types import Grant, Shard, Task, Terms

# compositions of parts whose laws other rows hold are for the slow tier; so are cases that others go the same way as,
# where a law runs them anew
LATER = {"dp_prox_published", "dp_fedavg", "prifedsync", "prifedsync_steps", "dp_scaffold", "dp_scaffold_published"}
LATER |= {f"pdp_prox_{name}" for name in ("local", "rates", "threshold", "published")} | {"udp_discount"}
LATER |= {"moon", "vhl", "fedgen", "fedprox", "udp", "noisy_steps", "gaussian_simple", "central_visible"}
LATER |= {"gaussian_sampled", "gaussian_sampled_published", "slaug_fl", "slaug_fl_rigorous_b"}
LATER |= {"lc_fl", "cdp_fl", "privunit"} | {
    f"cuag_pfl_{name}" for name in ("no_noise", "oracle", "local_client", "central_client", "local_sample")
}
AGAIN = LATER | {"pdp_prox_bounds", "gaussian_gdp", "gaussian_gdp_adaptive", "laplace", "dp_prox", "whole_update"}
AGAIN |= {"cuag_pfl_published"}


def tried_on(cases: list[Case], later: set[str]) -> pytest.MarkDecorator:
    rows = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in later)) for case in cases]
    return pytest.mark.parametrize("case", rows)


by_name, by_way = tried_on(CASES, LATER), tried_on(CASES, AGAIN)
Grants = dict[int, Grant]


class Base:
    """One finished run of every case, made when first asked for: its folder, its trace, and which clients computed in
    which round.
    """

    def __init__(self, where: Path) -> None:
        self._where = where
        self._served: dict[str, dict[int, list[int]]] = {}
        self._traces: dict[str, Trace] = {}

    def folder(self, case: Case) -> Path:
        folder = self._where / case.name
        if case.name not in self._traces:
            served: dict[int, list[int]] = {}
            whole = Site.__call__

            def counted(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
                served[t] = sorted(terms)
                return whole(self, t, down, terms)

            def keep_old_ledger(step: Progress) -> None:
                if step.round == 2:
                    old, new = sqlite3.connect(folder / "ledger.sqlite"), sqlite3.connect(folder / "ledger.old")
                    old.backup(new)
                    old.close()
                    new.close()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Site, "__call__", counted)
                start(case.experiment(), folder, keep_old_ledger)
            self._served[case.name], self._traces[case.name] = served, trace(folder)
        return folder

    def trace(self, case: Case) -> Trace:
        self.folder(case)
        return self._traces[case.name]

    def served(self, case: Case) -> dict[int, list[int]]:
        self.folder(case)
        return self._served[case.name]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base"))


# order ----------------------------------------------------------------------------------------------------------------


def shuffled(case: Case, folder: Path) -> Trace:
    """The run with the clients of every round served, and answering, in another order."""
    whole = Site.__call__

    def backwards(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        order = sorted(terms, key=lambda k: (k * 7 + t) % 5, reverse=True)
        served = dict(answer for k in order for answer in whole(self, t, down, {k: terms[k]}))
        yield from sorted(served.items())  # the server adds them up in the order of their ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "__call__", backwards)
        return finished(case.experiment(), folder)


@by_way
def test_the_order_of_clients_changes_nothing(case: Case, base: Base, tmp_path: Path) -> None:
    assert differences(base.trace(case), shuffled(case, tmp_path / "run")) == []


class Shared(FedAvg):
    """Broken twin: the clients share one generator, so what a client draws depends on who drew before."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: keys.Key) -> tuple[Up, Client]:
        up, state = super().local(task, down, c, shard, key)
        return Up(tree.scale(1 + torch.rand(()), up.delta)), state


def test_the_order_law_catches_shared_randomness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "shared", Shared)
    case = Case("shared", {"name": "shared"})
    torch.manual_seed(0)
    straight = finished(case.experiment(), tmp_path / "straight")
    torch.manual_seed(0)
    assert "model" in differences(straight, shuffled(case, tmp_path / "shuffled"))


# processes ------------------------------------------------------------------------------------------------------------


@by_way
def test_other_processes_say_the_same_bytes(
    case: Case, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "subprocess", warm.stand_in())
    apart = finished(case.experiment(engine={"executor": "processes", "workers": 2}), tmp_path / "run")
    assert differences(base.trace(case), apart) == []


# resume ---------------------------------------------------------------------------------------------------------------


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


def test_the_resume_law_catches_hidden_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "hoarding", Hoarding)
    case = Case("hoarding", {"name": "hoarding"})
    straight = finished(case.experiment(), tmp_path / "straight")
    Hoarding.calls = 0
    assert {"model", "ledger"} <= set(differences(straight, interrupted(case.experiment(), tmp_path / "stopped")))
    # where rounds have to be played again it answers differently, which the ledger refuses: one operation is one
    # release
    Hoarding.calls = 0
    rare = case.experiment(engine={"checkpoint_every": 100})
    with killed_at("stored", 1):
        start(rare, tmp_path / "rare")
    with pytest.raises(LedgerError, match="another content"):
        resume(tmp_path / "rare")
    Hoarding.calls = 0
    assert differences(straight, finished(case.experiment(), tmp_path / "again")) == []


# seed -----------------------------------------------------------------------------------------------------------------


@by_way
def test_another_seed_is_another_run(case: Case, base: Base, tmp_path: Path) -> None:
    other = finished(case.experiment(seed=1), tmp_path / "run")
    # a client state may be a count of participations and nothing else
    assert set(differences(base.trace(case), other)) >= set(Trace._fields) - {"clients"}


# ledger ---------------------------------------------------------------------------------------------------------------


@by_name
def test_the_ledger_lists_the_exposures_that_happened(case: Case, base: Base) -> None:
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

    hidden = setup.plan.offer is not None and setup.plan.offer.everyone_pays
    alike = hidden and not setup.plan.individual  # one price for everybody
    priced = setup.plan.pricing is not None
    for t, entry in enumerate(entries):
        who = list(range(CLIENTS)) if hidden else served[t]
        paid = {EVERYONE} if alike else {str(k) for k in who} if priced else set()
        assert set(entry.charges) == paid
        named = [group["clients"] for group in parsed(entry.note).releases]
        assert named == ["*"] or sorted(k for group in named for k in group) == who
    for k in range(CLIENTS):
        times = ROUNDS if hidden else sum(k in served[t] for t in served)
        assert times <= setup.plan.exposures[k]
        charges = [entry.charges.get(EVERYONE if alike else str(k)) for entry in entries]
        own = [charge for charge in charges if charge is not None]
        assert len(own) == (times if priced else 0)
        if priced:
            own += [entry.charges[str(k)] for entry in every if entry not in entries and str(k) in entry.charges]
        assert spent[k] == tuple(map(sum, zip(*own, strict=True))) or not own
        if (cap := setup.plan.cap_of(k)) is not None:
            assert setup.plan.currency.fits(spent[k], cap)
    assert (case.protects != "" and case.name != "cdp_fl") == priced  # noise sized for one coordinate has no price


# silence --------------------------------------------------------------------------------------------------------------


def model_of(folder: Path) -> torch.Tensor:
    return tree.flat(safetensors.torch.load_file(folder / "model.safetensors")).double()


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
    repeated = {"dp_prox_published", "dp_fedavg"} | {name for name in BY_NAME if name.startswith("pdp_prox")}
    # episodes of cells are no others'; g moves by the participation that a hidden cohort shows
    repeated |= {"cuag_pfl_local_sample", "prifedsync_steps", "cuag_pfl_central_client"}
    repeated |= {"privunit", "slaug_fl_rigorous_b"}  # sends directions alone; lets no two phases type a multiplier
    assert without == {"gaussian_simple", "gaussian_gdp_adaptive", "central_visible"} | repeated


# receipt --------------------------------------------------------------------------------------------------------------


@by_name
def test_the_receipt_has_a_row_for_everybody_and_promises_only_what_events_prove(case: Case, base: Base) -> None:
    receipt = json.loads((base.folder(case) / "privacy.json").read_text())
    rows = {(row["unit"], row["adversary"]): row for row in receipt["guarantees"]}
    units = ("example", "client", *(["cell"] if case.protects == "cell" else []), *(["pixel", "image"] * case.answers))
    assert set(rows) == {(u, a) for u in units for a in ("server", "participants", "public")}
    assert len(receipt["guarantees"]) == len(rows)
    finite = {subject for subject, row in rows.items() if row["epsilon"] != "inf"}
    assert finite == case.finite()
    granted = case.privacy.get("epsilon", 0.0)
    budget = granted["linspace"][1] if isinstance(granted, dict) else granted  # the largest, where budgets are personal
    _, federation = opened(base.folder(case))
    with federation.ledger as ledger:
        claims = read_notes((entry.note for entry in ledger.entries()), CLIENTS)
    spoken = {c for releases in claims.values() for release in releases for c in release}
    for subject, row in rows.items():
        by = next((r.split()[3] for r in row["because"] if r.startswith("implied by the")), row["unit"])
        about = [c for c in spoken if (c.unit, c.adversary) == (by, row["adversary"])]
        bare = any(isinstance(leaf, NonPrivate) for c in about for leaf in leaves(c.event))
        assert (subject in finite) == (not bare)
        empty = "nominal" if row["unit"] == case.printed else "none"
        assert row["status"] == (case.status if subject in finite else empty)
        assert ("nominal_epsilon" in row) == (row["status"] == "nominal")
        assert row["because"] or subject in finite  # an infinity says why
        if f"implied by the {by} row (group privacy)" in row["because"]:
            assert row["epsilon"] > 2 * rows[by, row["adversary"]]["epsilon"]  # two steps, at a smaller delta
        elif subject in finite and case.status == "proved":
            assert 0 < row["epsilon"] <= (budget or math.inf) * (1 + 1e-9)  # where noise is typed, nothing was granted
    if case.status == "nominal":
        assert all(rows[subject]["epsilon"] > budget for subject in finite)  # the printed budget was not what it cost


@by_name
def test_an_untouched_receipt_verifies(case: Case, base: Base) -> None:
    assert verify(base.folder(case)) == []
    assert differences(base.trace(case), trace(base.folder(case))) == []  # looking changes nothing


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    receipt = json.loads((folder / "privacy.json").read_text())
    change(receipt)
    (folder / "privacy.json").write_text(json.dumps(receipt))


def edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def put_back(folder: Path) -> None:
    for part in folder.glob("ledger.sqlite*"):
        part.unlink()
    shutil.copy(folder / "ledger.old", folder / "ledger.sqlite")


def write_in_ledger(folder: Path) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE record SET body = replace(CAST(body AS TEXT), 'charges', 'Charges') WHERE sequence = 1")
    db.close()


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "epsilon": lambda f: edit(f, lambda r: r["guarantees"][-1].update(epsilon=0.1)),
    "status": lambda f: edit(f, lambda r: r["guarantees"][-1].update(status="conditional")),
    "delta": lambda f: edit(f, lambda r: r["guarantees"][0].update(delta=1e-12)),
    "neighbours": lambda f: edit(f, lambda r: r["guarantees"][0].update(neighbours="something")),
    "reasons": lambda f: edit(f, lambda r: r["guarantees"][-1].update(because=["nothing to see"])),
    "row gone": lambda f: edit(f, lambda r: r["guarantees"].pop()),
    "row twice": lambda f: edit(f, lambda r: r["guarantees"].append({**r["guarantees"][-1], "epsilon": 0.1})),
    "not simulated": lambda f: edit(f, lambda r: r.update(simulated=False)),
    "assumption gone": lambda f: edit(f, lambda r: r["assumptions"].pop(0)),
    "rounds": lambda f: edit(f, lambda r: r.update(rounds=r["rounds"] - 1)),
    "a number nobody printed": lambda f: edit(f, lambda r: r["guarantees"][0].update(nominal_epsilon=0.001)),
    "words nobody said": lambda f: edit(f, lambda r: r.update(seal="approved")),
    "other head": lambda f: edit(f, lambda r: r.update(ledger_head="00" * 32)),
    "ledger rolled back": put_back,
    "ledger edited": write_in_ledger,
    "step size edited": lambda f: edit_text(f / "experiment.toml", "lr = ", "lr = 1"),
    "seed edited": lambda f: edit_text(f / "experiment.toml", "seed = 0", "seed = 3"),
    "another run": lambda f: edit_text(f / "environment.json", '"run": "', '"run": "0'),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
@pytest.mark.parametrize(
    "name", ["gaussian_gdp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "central"))]
)
def test_a_tampered_receipt_does_not(name: str, tampering: str, base: Base, tmp_path: Path) -> None:
    folder = shutil.copytree(base.folder(BY_NAME[name]), tmp_path / "run")
    if tampering == "step size edited" and "lr = " not in (folder / "experiment.toml").read_text():
        edit_text(folder / "experiment.toml", "[algorithm]", "[algorithm]\nlr = 0.7")
    else:
        TAMPERINGS[tampering](folder)
    try:
        wrong = verify(folder)
    except LedgerError as error:
        wrong = [error.code]
    assert wrong


# absence --------------------------------------------------------------------------------------------------------------

bounded = [case for case in CASES if case.name in ("whole_update", "central", "central_visible")]


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
