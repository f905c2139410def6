"""Over Flower the sites train the model that the simulation trains, and everybody's books agree."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: .ci/flower runs these tests in an environment of its own")

from sordino.deploy.certificates import make, of_server, of_site
from sordino.letters.flower.fleet import Fleet
from sordino.letters.flower.node import attend
from sordino.letters.flower.passes import Pass
from sordino.letters.sites import Patience
from sordino.runs.run import start
from tests.helpers.between_sites import BETWEEN_SITES, Federated, ledger_of, model_of
from tests.helpers.flower_links import HOST, MOST, until
from tests.laws.cases import Case

pytestmark = pytest.mark.slow


class Attended(Fleet):
    """A link with its sites, each in a thread of its own, which opens the site's books and answers from them."""

    def __init__(self, between: Federated) -> None:
        self._between, self._place, self._over = between, between.place, threading.Event()
        names = list(between.agreed.sites)
        make(self._place / "ca", [HOST], names, 1)
        keys = {name: between.keys[name].public_key() for name in names}
        tls = of_server(self._place / "ca")
        super().__init__(f"{HOST}:0", between.run, names, keys, MOST, tls, self._place / "home")

    def __enter__(self) -> Attended:
        super().__enter__()
        for name in self.who:
            threading.Thread(target=self._attend, args=(name,), daemon=True).start()
        until(lambda: self._between.members.keys() == set(self.who))
        return self

    def _attend(self, name: str) -> None:
        member, tls = self._between.member(name), of_site(self._place / "ca" / name, name)
        signs = Pass(self._between.run, name, self._between.keys[name])
        attend(f"{HOST}:{self.port}", signs, member.desk.answer, self._over.is_set, tls, MOST, self._place / "home")
        member.close()

    def __exit__(self, *ended: Any) -> None:
        self._over.set()
        super().__exit__(*ended)


@pytest.mark.parametrize("case", BETWEEN_SITES, ids=lambda case: case.name)
def test_sites_train_what_the_simulation_trains(case: Case, tmp_path: Path) -> None:
    start(case.experiment(), tmp_path / "loop")
    between = Federated(case.experiment(), tmp_path, patience=Patience(timeout=60))
    with Attended(between) as link:
        between.play(link)
    assert not [note for note in between.notes if "take part" not in note]
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert ledger_of(between.folder) == ledger_of(tmp_path / "loop")
