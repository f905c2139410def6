"""Clients that are computed in one go are added up where they are computed: the sum that the server would take of their
single uploads, the same bytes whoever computes, and never where somebody looks at a single one.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config, tree
from sordino.engine import site as engine
from sordino.engine.site import RoundHere, Site
from sordino.errors import NonFiniteModel
from sordino.privacy.uplink import Summed, Uplink
from sordino.privacy.uplink.stages import Clip
from sordino.round import Outcome, one_round
from sordino.runs.simulation import Simulation, simulated
from sordino.types import Terms
from tests.helpers.executors import Doing
from tests.helpers.personal_budgets import GROUPS, ROBIN
from tests.helpers.personal_budgets import made as personal

CLOSE = 1e-12  # of sums in float64, taken in another order
SPLIT = {"scheme": "dirichlet", "clients": 30, "alpha": 2.0}
PLAIN = {"name": "fedavg", "local_epochs": 1, "batch_size": 8}
NOISY = {"name": "gaussian_gdp", "clip": 1.0, "multiplier": 1.0, "local_steps": 1, "batch_size": "full"}


def made(algorithm: dict[str, Any], **tables: Any) -> Simulation:
    table = {
        "rounds": 3,
        "partition": SPLIT,
        "cohort": {"name": "round_robin", "size": 20},
        "algorithm": {"lr": 0.3} | algorithm,
        "model": {"name": "mlp", "hidden": 16},
        "privacy": {},
    }
    return simulated(config.validate(table | tables))


def placed(parts: Simulation, folder: Path) -> Site:
    """The clients as a run has them."""
    with ExitStack() as stack:
        found = parts.executor(folder, folder, "run", None, None, stack)
    assert isinstance(found, Site)
    return found


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stacked, of unequal size": (PLAIN, {}),
    "clipped": (PLAIN, {"uplink": {"client": [{"name": "clip", "radius": 0.05}]}}),
    "weighted": (PLAIN, {"uplink": ["weigh"]}),
    "noised by each": (NOISY, {}),
}


@pytest.mark.one_fast
@pytest.mark.parametrize(("algorithm", "tables"), CASES.values(), ids=list(CASES))
def test_the_sum_of_units_is_the_sum_of_single_uploads(
    algorithm: dict[str, Any], tables: dict[str, Any], tmp_path: Path
) -> None:
    parts = made(algorithm, **tables)
    site, setup = placed(parts, tmp_path), parts.setup
    down = setup.algorithm.broadcast(setup.state("server"))
    terms = {k: Terms(largest=setup.public.largest, multiplier=1.0) for k in range(3, 23)}
    uplink, zero = setup.algorithm.uplink.at(0, down), setup.algorithm.zero(setup.task, down)
    alone = uplink.sum(site.each(0, down, terms), zero)
    units = list(site(0, down, terms).uploads)
    assert any(isinstance(one, Summed) and len(one.who) > 1 for one in units)
    together = uplink.sum(units, zero)
    assert sorted(together.who) == alone.who == list(terms)
    expected, found = tree.flat(alone.total), tree.flat(together.total)
    assert float((found - expected).norm()) <= CLOSE * float(expected.norm())
    assert float(expected.norm()) > 0


def test_a_unit_that_leaves_somebody_out_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin of the law above."""
    parts, whole = made(PLAIN), Uplink.sum

    def short(self: Uplink, uploads: Any, *rest: Any, **more: Any) -> Summed:
        each = list(uploads)
        return whole(self, each[1:] if not isinstance(each[0], Summed) and len(each) > 1 else each, *rest, **more)

    down = parts.setup.algorithm.broadcast(parts.setup.state("server"))
    terms = {k: Terms(largest=parts.setup.public.largest) for k in range(20)}
    site, zero = placed(parts, tmp_path), parts.setup.algorithm.zero(parts.setup.task, down)
    uplink = parts.setup.algorithm.uplink.at(0, down)
    expected = tree.flat(uplink.sum(site.each(0, down, terms), zero).total)
    monkeypatch.setattr(Uplink, "sum", short)
    units = list(site(0, down, terms).uploads)
    monkeypatch.undo()
    found = tree.flat(uplink.sum(units, zero).total)
    assert float((found - expected).norm()) > 1e-3 * float(expected.norm())


def test_who_breaks_the_promise_of_a_clip_counts_for_nothing_in_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where everybody's clip is its own: nobody here may reach as far as the largest of them."""
    parts = personal({"name": "pdp_prox", "mechanism": "bounds"}, ROBIN, GROUPS)
    site, setup = placed(parts, tmp_path), parts.setup
    down = setup.algorithm.broadcast(setup.state("server"))
    terms = {k: Terms(largest=setup.public.largest, reach=0.1) for k in range(22)}

    def norm() -> float:
        units = list(site(0, down, terms).uploads)
        assert any(isinstance(one, Summed) for one in units)
        return float(
            tree.norm(setup.algorithm.uplink.at(0, down).sum(units, setup.algorithm.zero(setup.task, down)).total)
        )

    assert 0 < norm() <= len(terms) * 0.05
    monkeypatch.setattr(Clip, "encode", lambda self, x, bound, grant: tree.scale(0.4 / float(tree.norm(x)), x))
    assert norm() == 0  # all are shorter than the radius of 0.5, and longer than a tenth of it


LOOKED_AT: dict[str, dict[str, Any]] = {
    "late ones are left out": {"stragglers": {"share": 0.5, "policy": "late"}},
    "lost ones are left out": {"chaos": {"drop": 0.2}},
    "a robust sum compares them": {"uplink": {"server": [{"name": "median", "f": 2}]}},
    "a secure sum is played": {"uplink": {"client": ["secagg"]}},
    "one by one is the reference": {"engine": {"executor": "loop"}},
}


@pytest.mark.one_fast
@pytest.mark.parametrize("tables", LOOKED_AT.values(), ids=list(LOOKED_AT))
def test_nobody_is_added_up_who_is_looked_at(tables: dict[str, Any], tmp_path: Path) -> None:
    assert placed(made(PLAIN), tmp_path).adds
    assert not placed(made(PLAIN, **tables), tmp_path).adds


def test_single_uploads_of_a_site_that_adds_are_not_asked_of_helpers_who_add(tmp_path: Path) -> None:
    torch.set_num_threads(1)  # as in a run; with more nobody forks
    parts = made(PLAIN, engine={"workers": 2})
    setup = parts.setup
    down = setup.algorithm.broadcast(setup.state("server"))
    terms = {k: Terms(largest=setup.public.largest) for k in range(20)}
    with ExitStack() as stack:
        site = parts.executor(tmp_path, tmp_path, "run", None, None, stack)
        assert isinstance(site, Site)
        assert site.forks is not None
        site._pace = 1.0  # help is worth it from now on
        units = list(site(0, down, terms).uploads)
        assert site.forks.pace.all  # and was asked for
        each = dict(site.each(0, down, terms))
    alone = dict(placed(made(PLAIN, engine={"workers": 1}), tmp_path).each(0, down, terms))
    assert any(isinstance(one, Summed) for one in units)
    assert list(each) == list(alone) == list(terms)
    assert all(torch.equal(tree.flat(each[k]), tree.flat(alone[k])) for k in terms)


@pytest.mark.one_fast
@pytest.mark.parametrize("ordered", [True, False])
def test_all_clients_of_a_round_are_held_only_where_they_are_put_in_order(
    ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)  # as in a run; with more nobody forks
    parts, events = made(PLAIN, engine={"workers": 2, "executor": "auto" if ordered else "loop"}), list[str]()
    member, work = RoundHere.member, RoundHere.work

    def noted(self: RoundHere, k: int, terms: Terms, state: Any) -> Any:
        events.append("held")
        return member(self, k, terms, state)

    def done(self: RoundHere, task: Any, unit: Any) -> Any:
        events.append("computed")
        return work(self, task, unit)

    down = parts.setup.algorithm.broadcast(parts.setup.state("server"))
    with ExitStack() as stack:
        site = parts.executor(tmp_path, tmp_path, "run", None, None, stack)
        assert isinstance(site, Site)
        assert site.forks is not None
        site._pace = 1.0
        monkeypatch.setattr(RoundHere, "member", noted)
        monkeypatch.setattr(RoundHere, "work", done)
        for _ in site(0, down, {k: Terms(largest=parts.setup.public.largest) for k in range(20)}).uploads:
            pass
        assert site.forks.pace.all
    assert events.count("held") == 20
    assert (events[:20] == ["held"] * 20) == ordered


def test_an_upload_that_is_no_number_is_told_by_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = made(PLAIN, partition={"scheme": "iid", "clients": 30})
    site = placed(parts, tmp_path)
    together = engine.together

    def diverged(algorithm: Any, task: Any, down: Any, stack: Any, counts: bool) -> Any:
        found = together(algorithm, task, down, stack, counts)
        return [
            (tree.map(lambda leaf: leaf * float("nan"), up) if one.client == 5 else up, state)
            for one, (up, state) in zip(stack, found, strict=True)
        ]

    monkeypatch.setattr(engine, "together", diverged)
    federation = parts.federation(":memory:", "run")
    with pytest.raises(NonFiniteModel, match="client 5 "):
        one_round(federation, parts.setup.state("server"), 0, site)


def test_single_uploads_are_let_go_before_the_state_is_saved(tmp_path: Path) -> None:
    """A hundred large models beside the copies that a checkpoint takes would not fit: fedgen reads each upload."""
    parts = made({"name": "fedgen", "local_epochs": 1, "batch_size": 8})
    held: list[weakref.ref[Any]] = []

    def answers(t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        for k, upload in parts.site("run").each(t, down, terms):
            held.extend(map(weakref.ref, tree.leaves(upload)))
            yield k, upload
            del upload

    def keep(outcome: Outcome, digest: bytes) -> None:
        gc.collect()
        assert len(held) >= 20
        assert not any(leaf() is not None for leaf in held)

    with (federation := parts.federation(":memory:", "run")).ledger:
        one_round(federation, parts.setup.state("server"), 0, Doing(answers), keep=keep)
