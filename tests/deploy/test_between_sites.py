"""Between sites every algorithm trains the model that the simulation trains, and everybody's books agree."""

from __future__ import annotations

from pathlib import Path

from sordino import config
from sordino.deploy.serving import settled
from sordino.runs.run import start
from tests.helpers.between_sites import BETWEEN_SITES, Federated, ledger_of, model_of
from tests.laws.cases import Case
from tests.laws.tried import AGAIN, tried_on


# one case of every way that a run may go, with a preparation and a ledger that charges; the slow tier tries all
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


def test_between_sites_every_round_has_a_checkpoint() -> None:
    """A site keeps its last three answers: a server may never have to go further back."""
    rare = config.load(None, ["engine.checkpoint_every=7"])
    assert settled(rare, rehearsal=True).engine.checkpoint_every == 1
