"""Experiments that are unsafe or impossible do not start, and the nearest safe ones do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sordino import config
from sordino.accounting import accountants, events
from sordino.errors import SordinoError
from sordino.runs import run
from sordino.runs.simulation import simulated
from tests.privacy.unsafe_experiments import EXPERIMENTS
from tests.privacy.unsafe_parts import (
    CENTRAL,
    CLIP,
    MEDIAN,
    NOISE,
    POISSON,
    QUADRATICS,
    QUICK,
    Table,
    budget,
    fedavg,
    gdp,
    helpful,
    read,
    up,
)

DIGITS: Table = {"rounds": 2, "partition": {"scheme": "iid", "clients": 3}, "privacy": {"epsilon": 2.0}}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_unsafe_experiment_does_not_start(name: str, tmp_path: Path) -> None:
    code, changes = EXPERIMENTS[name]
    table = QUADRATICS | changes
    table["privacy"] = {**table["privacy"], "ledger": str(tmp_path / "shared.sqlite")}
    with pytest.raises(SordinoError) as refusal:
        run.start(config.validate(table), tmp_path / "run")
    helpful(refusal.value, code)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if re.search("add_remove|replace|personal clips", name)])
def test_a_relation_that_is_refused_is_refused_before_any_data_are_read(name: str, tmp_path: Path) -> None:
    code, changes = EXPERIMENTS[name]
    nowhere = {"source": "tabular", "path": str(tmp_path / "gone.csv"), "label": "y"}
    with pytest.raises(SordinoError) as refusal:
        run.start(config.validate(QUADRATICS | changes | {"data": nowhere, "model": {"name": "mlp"}}), tmp_path / "run")
    assert refusal.value.code == code


def test_batch_norm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mixing.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SordinoError) as refusal:
        run.start(config.validate({**DIGITS, "model": {"name": "mixing:Net"}}), tmp_path / "run")
    helpful(refusal.value, "batch-norm")
    assert not (tmp_path / "run").exists()


def test_a_private_table_learns_nothing_from_its_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,who\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(60)))
    numbers, label = "x = {kind = 'number', range = [0, 60]}", "y = {kind = 'label', classes = [0, 1]}"
    columns = f"[columns]\n{numbers}\n{label}\nwho = {{kind = 'group'}}\n"
    (tmp_path / "schema.toml").write_text(columns)
    (tmp_path / "draft.toml").write_text("draft = true\n" + columns)
    data = {"source": "tabular", "path": str(tmp_path / "t.csv"), "label": "y", "group": "who"}
    dealt = {"partition": {"scheme": "dirichlet", "clients": 2, "alpha": 5.0}}
    cases: list[tuple[str, str, Table]] = [
        ("draft.toml", "schema-is-a-draft", {}),
        ("schema.toml", "partition-from-labels", dealt),
    ]
    private = QUADRATICS | {"privacy": {"epsilon": 2.0, "delta": 1e-3, "noise": "system"}}
    for name, code, more in cases:
        named = {"data": {**data, "schema": str(tmp_path / name)}}
        with pytest.raises(SordinoError) as refusal:
            run.start(config.validate(private | named | more), tmp_path / "run")
        helpful(refusal.value, code)
        assert not (tmp_path / "run").exists()
        trial = {"privacy": {"epsilon": 2.0, "delta": 1e-3}}
        # nobody is protected by a simulation
        assert simulated(config.validate(private | named | more | trial)).setup.public.sizes
    assert simulated(
        config.validate(private | {"data": {**data, "schema": str(tmp_path / "schema.toml")}})
    ).setup.public.sizes


@pytest.mark.parametrize("algorithm", ["gaussian_gdp", "whole_update", "cdp_fl"])
def test_a_network_that_remembers_is_refused_wherever_anybody_is_protected(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it keeps goes from one example to the next, and from one client of a process to the next. Without a promise
    it may."""
    (tmp_path / f"counting_{algorithm}.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
        "        self.used = 0\n"
        "    def forward(self, x):\n"
        "        self.used += 1\n"
        "        return super().forward(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = {**DIGITS, "model": {"name": f"counting_{algorithm}:Net"}}
    own |= {"privacy": {}} if algorithm == "cdp_fl" else {}  # its noise is no budget's
    with pytest.raises(SordinoError) as refusal:
        run.start(config.validate({**own, "algorithm": {"name": algorithm}}), tmp_path / "run")
    helpful(refusal.value, "model-remembers")
    assert not (tmp_path / "run").exists()
    open_ = {"partition": DIGITS["partition"], "model": own["model"], "algorithm": {"name": "fedavg"}, "privacy": {}}
    assert simulated(config.validate({"rounds": 2, **open_})).setup.plan


def test_the_nearest_safe_experiments_start() -> None:
    # the controls: each is one word away from a refused one
    for changes in (
        {},
        {"rounds": 4, "algorithm": {"name": "gaussian_simple"}, **budget(epsilon=0.9)},
        up([CLIP, NOISE]),
        up([CLIP, NOISE], [MEDIAN]),
        up([CLIP], [CENTRAL]),
        {**up([CLIP], [{"name": "noise", "neighbours": "zero_out"}]), "cohort": POISSON, **budget(**QUICK)},
        {**up([{**CLIP, "order": 1}], [{**CENTRAL, "law": "laplace"}]), "cohort": {"name": "everyone"}},
        {**fedavg(batch_size=2), **read(sampling="fixed_batches")},
        {**fedavg(batch_size="full"), **read(law="laplace")},
        gdp(multiplier=1.0) | {"privacy": {}},
    ):
        assert simulated(config.validate(QUADRATICS | changes)).setup.plan.offer is not None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "noisy_steps", "local_steps": 3}},
        {**fedavg(batch_size=2, local_epochs=2), **read(sampling="fixed_batches")},
        up([CLIP, NOISE]),
        budget(schedule={"name": "geometric", "ratio": 0.5}),
    ],
    ids=["one step", "three steps", "fixed batches", "whole update", "a schedule"],
)
def test_the_planned_noise_spends_the_budget_and_no_more(changes: Table) -> None:
    parts = simulated(config.validate(QUADRATICS | changes))
    plan, algorithm = parts.setup.plan, parts.setup.algorithm
    prices = [plan.price(0, j, plan.currency.zero()) for j in range(4)]
    claims = [
        claim
        for price in prices
        if price is not None
        for claim in (
            *algorithm.read.claims(algorithm.work, parts.setup.public.sizes[0], price.multiplier),
            *algorithm.uplink.claims(price.multiplier, parts.setup.cohort.amplify),
        )
        if claim.adversary == "server" and not isinstance(claim.event, events.NonPrivate)
    ]
    spent = accountants.best(events.compact([claim.event for claim in claims]), 1e-3, "replace").epsilon
    assert len(claims) == 4
    assert 2 * 0.9999 < spent <= 2 * (1 + 1e-9)


def test_a_laplace_sample_is_priced_without_amplification() -> None:
    # it was once priced by the Gaussian accountant; the event must fit into the budget whatever the price was made of
    changes: Table = {
        "algorithm": {"name": "fedavg", "batch_size": "full"},
        **read(law="laplace", sampling="poisson", rate=0.1, neighbours="zero_out"),
    }
    plan = simulated(config.validate(QUADRATICS | changes)).setup.plan
    price = plan.price(0, 0, plan.currency.zero())
    assert price is not None
    spent = events.Repeat(events.Laplace(price.multiplier), 4)
    assert accountants.best(spent, 0, "zero_out").epsilon <= 2 * (1 + 1e-9)
