"""Unsafe and impossible set-ups do not start: each is refused with a code of its own, what is wrong, and why or what to
do, before anything is written.

One table. A coverage test reads every refusal under sordino/ from the source, so that a new one must join the table or
name its reason.
"""

from __future__ import annotations

import ast
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from executors import Doing

import sordino
from sordino import check, config, keys
from sordino.algorithms.cuag_pfl import cuag_pfl
from sordino.algorithms.pdp_prox import pdp_prox
from sordino.budget import calculator, client_budgets, schedules
from sordino.cli import data as data_verbs
from sordino.cohorts.stragglers import Stragglers
from sordino.config import gates
from sordino.errors import PrivacyError, SordinoError
from sordino.ledger import (
    accountants,
    calibrate,
    currency,
    events,
    gaussian_dp,
    pricing,
    published_clipping,
    thresholds,
)
from sordino.privacy.noise.discrete import discrete_gaussian
from sordino.privacy.noise.laws import GaussianNoise, LaplaceNoise
from sordino.privacy.noise.sources import Counter, System
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import OwnNorm, UserLevel
from sordino.privacy.uplink.clip_layers import ClipLayers
from sordino.privacy.uplink.fixed_point import Quantise
from sordino.privacy.uplink.one_direction import OneDirection
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, NoiseShare, check_room
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.round import one_round
from sordino.runs import run
from sordino.runs.simulation import simulated
from sordino.secure.layout import Layout
from sordino.tasks.classification import Classification
from sordino.tasks.nets import logistic
from sordino.tasks.quadratic import Quadratic
from sordino.types import Bound, Examples, Grant, Terms, Work

from .doubles import linear

Table = dict[str, Any]

# ---------------------------------------------------------------- experiments that must not start

QUADRATICS: Table = {
    "rounds": 4,
    "data": {"source": "quadratic", "clients": 6, "dim": 2},
    "partition": {"scheme": "natural"},
    "privacy": {"epsilon": 2.0, "delta": 1e-3},
    "algorithm": {"name": "gaussian_gdp", "clip": 1.0},
}
DIGITS: Table = {"rounds": 2, "partition": {"scheme": "iid", "clients": 3}, "privacy": {"epsilon": 2.0}}
POISSON: Table = {"name": "poisson", "rate": 0.5}
QUICK: Table = {"schedule": {"name": "linear_back"}}  # priced by Renyi loss, in milliseconds


def gdp(**more: Any) -> Table:
    return {"algorithm": {"name": "gaussian_gdp", "clip": 1.0, **more}}


def fedavg(**more: Any) -> Table:
    return {"algorithm": {"name": "fedavg", **more}}


def read(**more: Any) -> Table:
    return {"read": {"name": "noisy_gradient", "clip": 1.0, **more}}


def budget(**more: Any) -> Table:
    return {"privacy": {"epsilon": 2.0, "delta": 1e-3, **more}}


def up(client: list[Table], server: list[Table] | None = None, **more: Any) -> Table:
    return {"uplink": {"client": client, "server": server or [], **more}, **fedavg()}


CLIP, NOISE = {"name": "clip", "radius": 1.0}, {"name": "noise"}
CENTRAL = {"name": "noise", "neighbours": "zero_out"}
EXPERIMENTS: dict[str, tuple[str, Table]] = {
    "two local steps under a one-step bound": ("one-step-only", gdp(local_steps=2)),
    "one epsilon for everything": ("total-epsilon", {"privacy": {"total_eps": 15.0}}),
    "a hidden cohort that may be too small to be opened": (
        "broken-rounds-tell",
        {
            **up([CLIP, {"name": "noise_share", "survivors": 3}, {"name": "secagg"}]),
            "cohort": POISSON,
            **budget(**QUICK),
        },
    ),
    "two private gates, and nobody may see who took part": (
        "two-gates-hidden",
        {
            **up([CLIP], [{"name": "noise", "neighbours": "add_remove", "multiplier": 1.0}]),
            **fedavg(batch_size="full"),
            **read(multiplier=1.0),
            "cohort": POISSON,
            "privacy": {},
        },
    ),
    "two local steps of laplace": ("one-step-only", {"algorithm": {"name": "laplace", "local_steps": 2}}),
    "a batch smaller than n": ("full-batch-only", gdp(batch_size=1)),
    "momentum at the client": ("client-momentum", gdp(momentum=0.9)),
    "classic gaussian at epsilon 2": (
        "classic-gaussian-needs-small-epsilon",
        {"rounds": 1, "algorithm": {"name": "gaussian_simple", "clip": 1.0}},
    ),
    "classic checked where the formula fails": (
        "classic-gaussian-needs-small-epsilon",
        {"rounds": 1, "algorithm": {"name": "gaussian_simple", "checked": True}, **budget(epsilon=30.0)},
    ),
    "classic with a typed multiplier and no budget": (
        "classic-needs-budget",
        {**fedavg(batch_size="full"), **read(law="gaussian_classic", multiplier=5.0), "privacy": {}},
    ),
    "sizes secret, noise scaled by n": ("sizes-not-public", budget(public_sizes=False)),
    "sizes secret, sampled and divided by rate n": (
        "sizes-not-public",
        {"algorithm": {"name": "gaussian_sampled", "rate": 0.5}, **budget(public_sizes=False)},
    ),
    "sizes secret, clients weighed by them": (
        "sizes-not-public",
        {**up([CLIP, NOISE, {"name": "weigh"}]), **budget(public_sizes=False)},
    ),
    "delta of one over the examples": ("delta-too-large", budget(delta=1 / 6)),
    "delta of one over the clients": ("delta-too-large", {**up([CLIP, NOISE]), **budget(delta=0.2)}),
    "delta 0 for gaussian noise": ("delta-out-of-range", budget(delta=0.0)),
    "delta above 1": ("delta-out-of-range", budget(delta=1.5)),
    "epsilon 0": ("epsilon-not-positive", budget(epsilon=0.0)),
    "epsilon negative": ("epsilon-not-positive", budget(epsilon=-1.0)),
    "epsilon infinite": ("wrong-type", budget(epsilon=math.inf)),
    "epsilon no number": ("wrong-type", budget(epsilon=math.nan)),
    "a budget and no mechanism": ("budget-without-mechanism", fedavg()),
    "a budget and a typed multiplier": ("budget-without-mechanism", gdp(multiplier=1.0)),
    "a mechanism and no budget": ("mechanism-without-budget", {"privacy": {}}),
    "two gates for one budget": (
        "two-promises-one-budget",
        {**up([CLIP, NOISE]), **fedavg(batch_size="full"), **read()},
    ),
    "noise 0 in a reader": ("noise-not-positive", gdp(multiplier=0.0)),
    "noise negative in a reader": ("noise-not-positive", gdp(multiplier=-1.0)),
    "noise 0 in an uplink": ("noise-not-positive", up([CLIP, {"name": "noise", "multiplier": 0.0}])),
    "noise before the clip": ("noise-before-clip", up([NOISE, CLIP])),
    "clip, noise and another clip": ("noise-before-clip", up([CLIP, NOISE, CLIP])),
    "local noise without a clip": ("unbounded-sensitivity", up([NOISE])),
    "central noise without a clip": ("unbounded-sensitivity", up([{"name": "weigh"}], [CENTRAL])),
    "central noise and the clip after the sum": ("server-stage-not-noise", up([], [CLIP, CENTRAL])),
    "add_remove at the client": (
        "local-noise-add-remove",
        up([CLIP, {"name": "noise", "neighbours": "add_remove"}]),
    ),
    "central noise over those who answered": ("realised-denominator", up([CLIP], [CENTRAL], denominator="received")),
    "a denominator nobody knows": ("unknown-denominator", up([CLIP], [CENTRAL], denominator="realized")),
    "local and central noise": ("two-noises", up([CLIP, NOISE], [CENTRAL])),
    "two local noises": ("two-noises", up([CLIP, NOISE, NOISE])),
    "laplace after an l2 clip": (
        "laplace-needs-l1-clip",
        {**fedavg(batch_size="full"), **read(law="laplace", clip_order=2)},
    ),
    "poisson records under replace": (
        "poisson-needs-add-remove",
        {**fedavg(batch_size="full"), **read(sampling="poisson", rate=0.5)},
    ),
    "poisson clients under zero_out": (
        "poisson-needs-add-remove",
        {**up([CLIP], [CENTRAL]), "cohort": POISSON},
    ),
    "add_remove over a fixed cohort": (
        "add-remove-needs-poisson",
        {**up([CLIP], [{"name": "noise", "neighbours": "add_remove"}]), "cohort": {"name": "random", "size": 2}},
    ),
    "fixed batches under add_remove": (
        "fixed-rows-add-remove",
        {**fedavg(batch_size=2), **read(sampling="fixed_batches", neighbours="add_remove")},
    ),
    "fixed batches counted in steps": (
        "fixed-batches-need-epochs",
        {**fedavg(batch_size=2, local_steps=3), **read(sampling="fixed_batches")},
    ),
    "mini-batches under full-batch noise": (
        "minibatch-under-full-batch-bound",
        {**fedavg(batch_size=2), **read()},
    ),
    "a rate of 0": ("rate-out-of-range", {"algorithm": {"name": "gaussian_sampled", "rate": 0.0}}),
    "a rate above 1": ("rate-out-of-range", {"algorithm": {"name": "gaussian_sampled", "rate": 1.5}}),
    "a cohort rate of 0": ("rate-out-of-range", {"cohort": {"name": "poisson", "rate": 0.0}}),
    "a clip of 0": ("clip-not-positive", gdp(clip=0.0)),
    "an uplink clip of 0": ("clip-not-positive", up([{"name": "clip", "radius": 0.0}, NOISE])),
    "a sampled budget below its conversion": (
        "budget-below-conversion",
        {
            "algorithm": {"name": "gaussian_sampled", "rate": 0.5},
            **budget(epsilon=1e-4, delta=1e-12, schedule={"name": "linear_back"}),
        },
    ),
    "a schedule that enlarges the budget": (
        "shares-exceed-the-budget",
        budget(schedule={"name": "list", "values": [1.0] * 4, "absolute": True}),
    ),
    "a schedule shorter than the exposures": (
        "shares-too-few",
        budget(schedule={"name": "list", "values": [1.0]}),
    ),
    "a schedule of zeros": ("shares-not-a-budget", budget(schedule={"name": "list", "values": [0.0] * 4})),
    "a geometric schedule without a ratio": (
        "ratio-not-positive",
        budget(schedule={"name": "geometric", "ratio": 0.0}),
    ),
    "an adaptive schedule without a floor": (
        "adaptive-out-of-range",
        budget(schedule={"name": "adaptive", "floor": 0.0}),
    ),
    "convex steps on quadratics": (
        "convex-needs-bounded-logistic",
        {"algorithm": {"name": "convex_stable", "radius": 2.0, "lr": 0.5}},
    ),
    "convex steps beyond 4/B^2": (
        "step-too-large-for-convexity",
        {"algorithm": {"name": "convex_stable", "radius": 2.0, "lr": 1.5}},
    ),
    "stragglers keeping part of one step": (
        "no-partial-work",
        {"stragglers": {"share": 0.5, "policy": "keep"}},
    ),
    "a private table whose columns nobody has declared": (
        "table-without-schema",
        {"data": {"source": "tabular", "path": "t.csv", "label": "y"}, "privacy": {"epsilon": 2.0, "noise": "system"}},
    ),
    "a budget typed with a slip": ("unknown-key", {"privacy": {"epsilom": 1.0}}),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_unsafe_experiment_does_not_start(name: str, tmp_path: Path) -> None:
    code, changes = EXPERIMENTS[name]
    table = QUADRATICS | changes
    table["privacy"] = {**table["privacy"], "ledger": str(tmp_path / "shared.sqlite")}
    with pytest.raises(SordinoError) as refusal:
        run.start(config.validate(table), tmp_path / "run")
    helpful(refusal.value, code)
    assert list(tmp_path.iterdir()) == []


def helpful(error: SordinoError, code: str) -> None:
    assert error.code == code, str(error)
    assert error.what
    assert error.why or error.fix
    assert error.what in str(error)


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


@pytest.mark.parametrize("algorithm", ["gaussian_gdp", "whole_update"])
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
        up([CLIP], [CENTRAL]),
        {**up([CLIP], [{"name": "noise", "neighbours": "add_remove"}]), "cohort": POISSON, **budget(**QUICK)},
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
        **read(law="laplace", sampling="poisson", rate=0.1, neighbours="add_remove"),
    }
    plan = simulated(config.validate(QUADRATICS | changes)).setup.plan
    price = plan.price(0, 0, plan.currency.zero())
    assert price is not None
    spent = events.Repeat(events.Laplace(price.multiplier), 4)
    assert accountants.best(spent, 0, "add_remove").epsilon <= 2 * (1 + 1e-9)


# ---------------------------------------------------------------- calls that must not be made


class Call(NamedTuple):
    code: str
    make: Callable[[], Any]


NET = Classification(
    torch.nn.Sequential(torch.nn.Linear(2, 2)), name="logistic", shape=(2,), mean=(0.0,), std=(1.0,), image=False
)


class Remembers(torch.nn.Module):
    """A network that counts how often it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.used = torch.nn.Linear(2, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.used += 1
        return self.linear(x)  # type: ignore[no-any-return]


BALL = Classification(logistic((2,), 2, 2.0), name="logistic", shape=(2,), mean=(0.0,), std=(1.0,), image=False)
REMEMBERS = Classification(Remembers(), name="own:Net", shape=(2,), mean=(0.0,), std=(1.0,), image=False)


def shard(reader: NoisyGradient, reads: int | None = None) -> Any:
    rows = Examples(torch.zeros(4, 2), torch.zeros(4))
    return reader.open(rows, Grant(0, 4, 4, Counter(1), 1.0, reads=reads), Quadratic(2))


def planned(algorithm: Table, read: Table) -> Any:
    made = {"partition": {"scheme": "iid", "clients": 4}, "algorithm": algorithm, "read": read, "privacy": {}}
    return simulated(config.validate(made)).setup.plan


ROWS = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
GRANT = Grant(0, 4, 4, Counter(1), 1.0)


PHASES: Table = {
    "rounds": 2,
    "data": {"source": "digits", "probe": 5},
    "candidates": {"source": "procedural", "per_class": 5},
    "partition": {"scheme": "iid", "clients": 4},
    "model": {"name": "cnn_norm"},
    "privacy": {"epsilon": 8.0, "delta": 1e-4},
}


def phases(variant: str, **more: Any) -> None:
    parts = simulated(config.validate({**PHASES, "algorithm": {"name": "slaug_fl", "variant": variant}, **more}))
    _ = [phase.plan for phase in parts.setup.whole.phases]


SUMS = ClassSums(1.0)


def sums(times: int) -> None:
    opened = SUMS.open(ROWS, GRANT, NET)
    for _ in range(times):
        opened.by_class(lambda x: x, 2)


def beside_noise() -> Any:
    grant = replace(GRANT, public=ROWS, reads=1)
    opened = NoisyGradient(1.0).open(ROWS, grant, NET)
    return next(iter(opened.mixed(Work(None, 1, None), keys.root(1), "half")))


def episodes(times: int = 1, passes: int = 1, reads: int | None = None) -> None:
    opened = CellGradient(1.0, cells=1).open(ROWS, replace(GRANT, reads=reads), NET)
    for _ in range(passes):
        for episode in opened.episodes(Work(None, 2, 1), keys.root(1)):
            for _ in range(times):
                episode.grad(lambda params, support, query, draws: params["w"].sum(), {"w": torch.zeros(1)})


def read_batches(work: Work, times: int = 1, passes: int = 1, reads: int | None = 1) -> None:
    reader = NoisyGradient(1.0, sampling="full" if work.batch_size is None else "fixed_batches")
    opened = shard(reader, reads)
    for _ in range(passes):
        for batch in opened.batches(work, keys.root(1)):
            for _ in range(times):
                batch.grad(linear, {"w": torch.zeros(2)})


def single_uploads(uplink: Uplink) -> Any:
    zero = {"w": torch.zeros(2)}
    return uplink.receive({0: zero}, zero, [1.0], 1.0, 1.0, Counter(1)).each


def granted(rule: dict[str, Any]) -> Any:
    return client_budgets.personal(rule, 2, keys.root(1))


def priced(algorithm: dict[str, Any], cohort: dict[str, Any], schedule: str = "uniform") -> Any:
    table = {
        "data": {"source": "synthetic", "clients": 4, "largest": 60},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "cohort": cohort,
        "algorithm": algorithm,
        "privacy": {"epsilon": {"linspace": [1.0, 2.0], "levels": 2}, "schedule": {"name": schedule}},
    }
    return simulated(config.validate(table)).setup.plan


SAMPLED = events.Poisson(0.5, events.Together((events.Gaussian(1.0), events.Laplace(1.0))))
UPLOAD = {"w": torch.zeros(4)}
VISITOR = Grant(0, 10, 10, Counter(0))


def shared(bits: int) -> Uplink:
    share = NoiseShare(neighbours="zero_out", multiplier=1.0, survivors=4)
    return Uplink((Clip(1.0), Quantise(Layout(bits)), share, Aggregated()))


def unimportable() -> check.Report:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "imports_nothing.py"
        file.write_text("import nothing_of_this_name\n")
        return check.check(file)


CALLS: dict[str, Call] = {
    "one pixel in several answers": Call(
        "response-windows-overlap", lambda: Responses(1.0, "image", side=3).fitted((8, 8, 1), 10)
    ),
    "one upload of a central sum": Call(
        "aggregate-only", lambda: single_uploads(Uplink((Clip(1.0),), (Noise(neighbours="zero_out"),)))
    ),
    "a gradient read twice": Call("read-beyond-reservation", lambda: read_batches(Work(1, None, None), times=2)),
    "one of several disjoint batches read twice": Call(
        "read-beyond-reservation", lambda: read_batches(Work(1, None, 2), times=2)
    ),
    "a second pass": Call("read-beyond-reservation", lambda: read_batches(Work(1, None, None), passes=2)),
    "more work than was reserved": Call("read-beyond-reservation", lambda: read_batches(Work(None, 5, None))),
    "a network that remembers": Call(
        "model-remembers", lambda: NoisyGradient(1.0).check(Work(1, None, None), REMEMBERS)
    ),
    "convex steps in batches": Call(
        "minibatch-under-full-batch-bound", lambda: ConvexStable(2.0, 0.1).check(Work(1, None, 2), NET)
    ),
    "a convex step that is too large, in the gate": Call(
        "step-too-large-for-convexity", lambda: ConvexStable(2.0, 1.01)
    ),
    "convex steps without noise": Call("noise-not-positive", lambda: ConvexStable(2.0, 0.1, 0.0)),
    "convex steps in a shard opened by hand": Call(
        "convex-needs-bounded-logistic", lambda: ConvexStable(2.0, 0.1).open(ROWS, GRANT, NET)
    ),
    "losses of one's own under convex steps": Call(
        "convex-needs-own-losses",
        lambda: next(ConvexStable(2.0, 0.1).open(ROWS, GRANT, BALL).batches(Work(None, 2, None), 1)).grad(linear, {}),
    ),
    "a radius that bounds nothing": Call("radius-too-small", lambda: ConvexStable(1.0, 0.1)),
    "a clip in a norm without a bound": Call("clip-order", lambda: Clip(1.0, 3)),  # type: ignore[arg-type]
    "laplace without a bound in its norm": Call(
        "unbounded-sensitivity", lambda: Uplink((Weigh(), Noise(LaplaceNoise()))).bound(3)
    ),
    "poisson under zero_out": Call(
        "poisson-needs-add-remove", lambda: NoisyGradient(1.0, sampling="poisson", rate=0.5, neighbours="zero_out")
    ),
    "noise not a number": Call("noise-not-positive", lambda: Noise(GaussianNoise(), multiplier=math.nan)),
    "PrivUnit where presence counts": Call("local-noise-add-remove", lambda: OneDirection(neighbours="add_remove")),
    "shares of Laplace noise": Call("shares-are-gaussian", lambda: NoiseShare(LaplaceNoise(), survivors=3)),
    "shares that are added in clear": Call(
        "shares-need-secagg", lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3)))
    ),
    "shares that are encrypted": Call(
        "shares-need-secagg",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3), Encrypted("bfv"))),
    ),
    "a sum opened with fewer shares than it needs": Call(
        "too-few-shares",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=5), Aggregated(threshold=4))),
    ),
    "shares before the grid": Call(
        "share-off-the-grid",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3), Quantise(), Aggregated())),
    ),
    "a median of uploads that nobody can read": Call("stage-reads-each", lambda: Uplink((UserLevel(), Aggregated()))),
    "sums of CKKS for a server": Call("ckks-opened-for-server", lambda: Encrypted("ckks", keys="authority")),
    "shares of a step of the grid": Call("share-too-narrow", lambda: shared(bits=3).encode(UPLOAD, VISITOR)),
    "shares that a slot has no room for": Call(
        "no-room-for-noise", lambda: check_room(Layout(), 256, shared(24).client[2].room(Bound(l2=2.0**22), 4.0))
    ),
    "integer noise without a scale": Call("integer-noise-scale", lambda: discrete_gaussian(Counter(0), 3, 0.0)),
    "a response among one value": Call("too-few-levels", lambda: events.Response(1.0, 1)),
    "a grid without a scale": Call("noise-scale-not-positive", lambda: System().gaussian(torch.zeros(1), 0.0)),
    "an event of an unknown kind": Call("unknown-event-kind", lambda: events.from_json({"kind": "exponential"})),
    "an event with a missing field": Call("malformed-event", lambda: events.from_json({"kind": "gaussian"})),
    "an event that is no event": Call("malformed-event", lambda: events.Repeat("gaussian", 2)),  # type: ignore[arg-type]
    "negative noise in an event": Call("noise-not-a-number", lambda: events.Gaussian(-1.0)),
    "an event zero times": Call("count-not-positive", lambda: events.Repeat(events.Gaussian(1.0), 0)),
    "a rate above 1 in an event": Call("rate-out-of-range", lambda: events.Poisson(1.1, events.Gaussian(1.0))),
    "neighbours nobody defined": Call(
        "unknown-neighbours", lambda: accountants.best(events.Gaussian(1.0), 1e-5, "add-remove")
    ),
    "a sample under replace": Call(
        "poisson-needs-add-remove", lambda: accountants.best(events.Poisson(0.5, events.Gaussian(1.0)), 1e-5, "replace")
    ),
    "a sample of two mechanisms": Call(
        "sampled-event-not-supported", lambda: accountants.best(SAMPLED, 1e-5, "add_remove")
    ),
    "an accountant that has no proof": Call(
        "accountant-does-not-apply", lambda: accountants.epsilon_by("gdp", events.Laplace(1.0), 1e-5, "replace")
    ),
    "epsilon 0 in a calibration": Call("epsilon-not-positive", lambda: calibrate.classic_multiplier(0.0, 1e-5)),
    "epsilon infinite in a calibration": Call(
        "epsilon-not-finite", lambda: calibrate.classic_multiplier(math.inf, 1e-5)
    ),
    "delta 0 in a calibration": Call("delta-out-of-range", lambda: calibrate.exact_multiplier(1.0, 0.0)),
    "no exposures": Call("exposures-not-positive", lambda: calibrate.exact_multiplier(1.0, 1e-5, 0)),
    "a budget no noise can keep": Call(
        "budget-out-of-reach", lambda: calibrate.sampled_multiplier(1e-9, 1e-12, 0.5, 9, orders=(2, 4))
    ),
    "mu negative": Call("mu-negative", lambda: gaussian_dp.epsilon_of(-1.0, 1e-5)),
    "a cost that is no number": Call("cost-nan", lambda: currency.cost([math.nan])),
    "a cost that refills the budget": Call("cost-negative", lambda: currency.cost([-1.0])),
    "a release for free": Call("cost-zero", lambda: currency.cost([0.0])),
    "a cost without components": Call("cost-shape", lambda: currency.cost([])),
    "a cap that is infinite": Call("cap-infinite", lambda: currency.cap([math.inf])),
    "orders that fall": Call("orders-invalid", lambda: currency.rdp([4.0, 2.0])),
    "an amount in floats": Call("amount-not-integer", lambda: currency.ZCDP.amount((0.5,), what="charge")),
    "an amount of another shape": Call("amount-shape", lambda: currency.APPROX.amount((1,), what="charge")),
    "a charge of nothing": Call("amount-zero", lambda: currency.ZCDP.charge((0,), what="charge")),
    "a share after the last": Call(
        "budget-exhausted", lambda: schedules.Adaptive().next_share([1.0], 0.0, 1, False, 1)
    ),
    "a price for the textbook formula": Call("classic-needs-budget", lambda: pricing.Classic().cost(1.0)),
    "planning with delta 1/N": Call("delta-too-large", lambda: calculator.Question(1.0, 0.1, "client", 10, 2, 5)),
    "planning from no noise": Call("noise-not-positive", lambda: calculator.ask(noise_multiplier=0.0)),
    "planning from noise that hides nobody": Call("noise-buys-nothing", lambda: calculator.ask(noise_multiplier=1e-3)),
    "planning from more noise than delta takes": Call(
        "noise-buys-nothing", lambda: calculator.ask(noise_multiplier=1e7, cohort=1000)
    ),
    "planning in both directions": Call("one-direction", lambda: calculator.ask(epsilon=1.0, noise_multiplier=1.0)),
    "planning in no direction": Call("one-direction", lambda: calculator.ask(rounds=5)),
    "planning a cohort larger than the federation": Call(
        "cohort-too-large", lambda: calculator.ask(epsilon=1.0, clients=10, cohort=11)
    ),
    "planning a negative number of rounds": Call("out-of-range", lambda: calculator.ask(epsilon=1.0, rounds=-1)),
    "planning with a clip of nothing": Call("clip-not-positive", lambda: calculator.ask(epsilon=1.0, clip=0.0)),
    "planning with a negative epsilon": Call(
        "epsilon-not-positive", lambda: calculator.answer(calculator.ask(epsilon=-1.0, cohort=1000))
    ),
    "planning with a delta of 0": Call(
        "delta-out-of-range", lambda: calculator.answer(calculator.ask(epsilon=1.0, delta=0.0, cohort=1000))
    ),
    "budgets by two rules": Call("budget-rule", lambda: granted({"groups": {"1": 1.0}, "linspace": [1, 2]})),
    "budgets that are words": Call("budget-malformed", lambda: granted({"groups": {"much": 1.0}})),
    "a client without a budget": Call("budget-missing", lambda: granted({"clients": {"0": 1.0}})),
    "a budget for a stranger": Call("budget-unknown-client", lambda: granted({"clients": {"7": 1.0}})),
    "budgets in a file that is not there": Call("budget-file", lambda: granted({"file": "not_there.csv"})),
    "a personal budget of 0": Call("epsilon-not-positive", lambda: granted({"linspace": [0.0, 1.0]})),
    "a threshold among no budgets": Call("threshold-without-budgets", lambda: thresholds.threshold(np.zeros(2))),
    "rates for more clients than there are": Call(
        "cohort-larger-than-population", lambda: thresholds.balanced([1.0], 1e-5, 3, 2.0)
    ),
    "a personal clip without central noise": Call(
        "personal-clip-needs-central-noise", lambda: Uplink((Clip(1.0, personal=True), Noise()))
    ),
    "personal budgets under one rate": Call(
        "personal-budgets-one-rate", lambda: priced({"name": "dp_prox"}, {"name": "poisson", "rate": 0.5})
    ),
    "rates by budget for local noise": Call(
        "personal-cohort-needs-its-noise",
        lambda: priced({"name": "pdp_prox", "mechanism": "local"}, {"name": "by_budget", "size": 2}),
    ),
    "a typed multiplier under a personal cohort": Call(
        "personal-cohort-needs-its-noise",
        lambda: priced({"name": "dp_prox", "multiplier": 0.01}, {"name": "by_budget", "size": 2}),
    ),
    "noise by the letter in a cohort that keeps budgets": Call(
        "literal-needs-its-cohort",
        lambda: priced(
            {"name": "pdp_prox", "mechanism": "published", "literal": True, "clip": 2.0}, {"name": "everyone"}
        ),
    ),
    "rates by budget that change": Call(
        "personal-schedule",
        lambda: priced({"name": "pdp_prox", "mechanism": "rates"}, {"name": "by_budget", "size": 2}, "linear_back"),
    ),
    "a clip behind a personal clip": Call(
        "clip-behind-personal-clip",
        lambda: Uplink((Clip(1.0, personal=True), ClipLayers(1.0)), (Noise(neighbours="zero_out"),)),
    ),
    "noise as published beside noise that is priced": Call(
        "published-beside-noise", lambda: Uplink((OwnNorm(), Clip(1.0), Noise()))
    ),
    "layers clipped behind the noise": Call("noise-before-clip", lambda: Uplink((Clip(1.0), Noise(), ClipLayers(1.0)))),
    "cells for an algorithm of batches": Call(
        "reader-does-not-give", lambda: planned({"name": "fedavg"}, {"name": "cells", "clip": 1.0, "multiplier": 1.0})
    ),
    "gradients for an algorithm of episodes": Call(
        "reader-does-not-give",
        lambda: planned({"name": "pfl_dyn"}, {"name": "noisy_gradient", "clip": 1.0, "multiplier": 1.0}),
    ),
    "exact states beside sound noise": Call("oracle-leaks", lambda: cuag_pfl("local_client", server_state="oracle")),
    "a batch from cells": Call(
        "episodes-only", lambda: next(iter(CellGradient(1.0).open(ROWS, GRANT, NET).batches(Work(None, 1, None), 0)))
    ),
    "a sum over cells": Call("episodes-only", lambda: CellGradient(1.0).open(ROWS, GRANT, NET).sum(lambda x, y: x)),
    "an episode of noised gradients": Call(
        "gradients-only", lambda: shard(NoisyGradient(1.0)).episodes(Work(None, 1, None), 0)
    ),
    "a sum over noised gradients": Call("gradients-only", lambda: shard(NoisyGradient(1.0)).sum(lambda x, y: x)),
    "sums and public examples in one loss": Call(
        "joint-loss", lambda: beside_noise().joint(lambda *_: torch.zeros(()), {})
    ),
    "phases of two promises under one budget": Call(
        "two-promises-one-budget",
        lambda: phases("dp_proto_only", uplink={"client": [CLIP], "server": [CENTRAL]}),
    ),
    "a typed multiplier beside phases that a budget prices": Call(
        "typed-beside-priced",
        lambda: phases(
            "rigorous_b",
            read={"name": "noisy_gradient", "clip": 1.0, "neighbours": "add_remove", "multiplier": 1.0},
        ),
    ),
    "phases of two noises under one budget": Call(
        "two-noises-one-budget",
        lambda: phases(
            "rigorous_b",
            read={"name": "noisy_gradient", "clip": 1.0, "law": "laplace", "neighbours": "add_remove"},
        ),
    ),
    "an adaptive schedule over phases": Call(
        "adaptive-over-phases",
        lambda: phases("rigorous_b", privacy={**PHASES["privacy"], "schedule": {"name": "adaptive"}}),
    ),
    "sums per class, twice": Call("read-beyond-reservation", lambda: sums(2)),
    "a batch from sums per class": Call(
        "sums-only", lambda: SUMS.open(ROWS, GRANT, NET).batches(Work(None, 1, None), 0)
    ),
    "counts louder than infinity": Call("count-out-of-range", lambda: ClassSums(1.0, math.inf)),
    "sums per class without noise": Call("noise-not-positive", lambda: ClassSums(1.0, multiplier=0.0)),
    "a second pass over the cells": Call("read-beyond-reservation", lambda: episodes(passes=2)),
    "an episode read twice": Call("read-beyond-reservation", lambda: episodes(times=2)),
    "more episodes than were reserved": Call("read-beyond-reservation", lambda: episodes(reads=1)),
    "cells with no noise": Call("noise-not-positive", lambda: CellGradient(1.0, multiplier=0.0)),
    "a published budget of 0": Call("mu-not-positive", lambda: published_clipping.adaptive_scale(0.0, 1)),
    "algorithm 3 to the letter": Call("un-noised-update", lambda: pdp_prox("published", returns="printed")),
    "a literal reading of a sound mechanism": Call(
        "literal-without-published", lambda: pdp_prox("bounds", literal=True)
    ),
    "a straggler share above 1": Call("share-out-of-range", lambda: Stragglers(1.5)),
    "a noise law nobody knows": Call(
        "wrong-type", lambda: gates.uplink({"client": [{"name": "noise", "law": "cauchy"}]})
    ),
    "a check of a file that is not there": Call("no-algorithm-file", lambda: check.check(Path("not_there.py"))),
    "a check of a file that is called like a module": Call(
        "module-name", lambda: check.check(Path(sordino.__file__).with_name("types.py"))
    ),
    "a check of a file that cannot be imported": Call("algorithm-import", unimportable),
    "a check of a file without an algorithm": Call("which-class", lambda: check.check(Path(keys.__file__))),
    "a check with rounds of one's own": Call(
        "not-for-a-check", lambda: check.check(Path(keys.__file__), words=["rounds=3"])
    ),
    "a picture that is no SVG": Call("not-an-svg", lambda: data_verbs.plot([], Path("partition.png"))),
    "a stage nobody knows": Call("unknown-choice", lambda: gates.uplink({"client": [{"name": "median"}]})),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unsafe_call_is_refused(name: str) -> None:
    code, make = CALLS[name]
    with pytest.raises(SordinoError) as refusal:
        make()
    helpful(refusal.value, code)


def test_what_was_reserved_may_be_read() -> None:
    read_batches(Work(1, None, None))
    read_batches(Work(1, None, 2))
    read_batches(Work(None, 5, None), reads=5)


def test_an_exhausted_hidden_cohort_reads_nothing_more() -> None:
    central = up([CLIP], [{"name": "noise", "neighbours": "add_remove"}])
    parts = simulated(config.validate({**QUADRATICS, **central, **budget(**QUICK), "cohort": POISSON, "rounds": 2}))
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    server, read = parts.setup.state("server"), []

    def execute(t: int, message: bytes, terms: Mapping[int, Terms]) -> Any:
        read.append(t)
        return clients(t, message, terms)

    for t in (0, 1):
        server = one_round(federation, server, t, Doing(execute)).server
    with pytest.raises(SordinoError) as refusal:
        one_round(federation, server, 2, Doing(execute))
    helpful(refusal.value, "BudgetExhausted")
    assert read == [0, 1]


# ---------------------------------------------------------------- nothing is left out

KINDS: list[type[SordinoError]] = [PrivacyError, *PrivacyError.__subclasses__()]
REFUSALS = {kind.__name__ for kind in KINDS}
NOT_IN_A_TABLE = {
    "batch-norm": "test_batch_norm_is_refused",
    "schema-is-a-draft": "test_a_private_table_learns_nothing_from_its_rows",
    "partition-from-labels": "test_a_private_table_learns_nothing_from_its_rows",
    "BudgetExhausted": "test_an_exhausted_hidden_cohort_reads_nothing_more",
}


def raised_codes() -> Iterator[tuple[str, str]]:
    """(code, place) of every PrivacyError made under sordino/; codes made of parts keep their constant part."""
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given, kind, place = {k.arg: k.value for k in node.keywords}, node.func.id, path.relative_to(root)
                if kind in REFUSALS:
                    yield _constant(given.get("code"), kind), f"{place}:{node.lineno}"
                elif kind == "Rule" and ast.unparse(node.args[1]) in REFUSALS:
                    yield _constant(node.args[-1], kind), f"{place}:{node.lineno}"
                elif kind == "check_range" and "error" in given and ast.unparse(given["error"]) in REFUSALS:
                    yield _constant(node.args[3], kind), f"{place}:{node.lineno}"


def _constant(value: ast.expr | None, default: str) -> str:
    if value is None:
        return default
    if isinstance(value, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in value.values)  # type: ignore[misc]
    assert isinstance(value, ast.Constant)
    return str(value.value)


def test_every_refusal_is_in_the_table() -> None:
    tried = {code for code, _ in EXPERIMENTS.values()} | {call.code for call in CALLS.values()} | set(NOT_IN_A_TABLE)
    parts = {f"*{code[code.index('-') :]}" for code in tried if "-" in code} | {"*-*"}
    left = {code: place for code, place in raised_codes() if code not in tried | parts}
    assert left == {}


def test_the_tables_are_large_and_their_codes_are_many() -> None:
    assert len(EXPERIMENTS) >= 40
    assert len({code for code, _ in EXPERIMENTS.values()}) >= 30
