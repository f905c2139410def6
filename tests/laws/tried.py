"""Every case's finished run, made once, and which cases are for the slow tier."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sordino.engine import site
from sordino.engine.site import Site
from sordino.fast import parallel
from sordino.runs.play import Progress
from sordino.runs.run import start
from sordino.types import Terms
from tests.laws.cases import CASES, Case
from tests.laws.traces import Trace, trace

# compositions of parts whose laws other rows hold are for the slow tier; so are cases that others go the same way as,
# where a law runs them anew
LATER = {"dp_prox_published", "dp_fedavg", "prifedsync", "prifedsync_steps", "dp_scaffold", "dp_scaffold_published"}
LATER |= {f"pdp_prox_{name}" for name in ("local", "rates", "threshold", "published")} | {"udp_discount"}
LATER |= {
    "fedavg_batch_norm",
    "scaffold_batch_norm",
    "moon",
    "vhl",
    "fedgen",
    "fedprox",
    "udp",
    "noisy_steps",
    "gaussian_simple",
    "central_visible",
    "trainer_whole_update",
}
LATER |= {"robust", "gaussian_sampled", "gaussian_sampled_published", "slaug_fl", "slaug_fl_rigorous_b"}
LATER |= {"lc_fl", "cdp_fl", "privunit", "dp_sgd", "paillier_fl", "lattice_fl", "fedavg_prototypes"} | {
    f"cuag_pfl_{name}" for name in ("no_noise", "oracle", "local_client", "central_client", "local_sample")
}


AGAIN = LATER | {"pdp_prox_bounds", "gaussian_gdp", "gaussian_gdp_adaptive", "laplace", "dp_prox", "whole_update"}
AGAIN |= {"cuag_pfl_published", "trainer"}


def tried_on(cases: list[Case], later: set[str]) -> pytest.MarkDecorator:
    rows = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in later)) for case in cases]
    return pytest.mark.parametrize("case", rows)


by_name, by_way = tried_on(CASES, LATER), tried_on(CASES, AGAIN)


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

            def counted(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
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
                patch.setattr(parallel, "HEAVY", 0)  # on as many threads as the case asks for, however little there is
                patch.setattr(site, "LONG", 0.0)  # and from the second round on in as many processes
                start(case.experiment(), folder, keep_old_ledger)
            self._served[case.name], self._traces[case.name] = served, trace(folder)
        return folder

    def trace(self, case: Case) -> Trace:
        self.folder(case)
        return self._traces[case.name]

    def served(self, case: Case) -> dict[int, list[int]]:
        self.folder(case)
        return self._served[case.name]
