"""A site decides by itself: what does not fit its data, its cap or what it has accepted is refused before it connects."""

from __future__ import annotations

import io
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from sordino import branches, config
from sordino.config import Engine
from sordino.data.dataset import Split
from sordino.data.sources import digits
from sordino.errors import (
    BackendUnavailable,
    ConfigError,
    DataError,
    LedgerError,
    RunError,
    SordinoError,
    UnsoundGuarantee,
)
from sordino.receipts.folder import RunFolder
from sordino.receipts.signature import generate, private_key
from sordino.runs.run import resume
from sordino.sites import agreement_file as agreed
from sordino.sites import commands as deploying
from sordino.sites.agreement_file import Invitation, invite, read_invitation
from sordino.sites.connecting import InvitedOptions
from sordino.sites.join import JoinOptions, Proposed, join
from sordino.sites.join import proposed as asked_to
from sordino.sites.key_holder import hold
from sordino.sites.serve import settled
from tests.helpers.real_sites import Trial, written
from tests.laws.cases import BY_NAME


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    made = Trial.of(BY_NAME["gaussian_gdp"], tmp_path_factory.mktemp("joining"), rounds=2)
    sites = agreed.read(made.place / "agreement.toml")
    invitation = invite("run", "localhost:9", private_key(made.place / "server"), made.experiment, sites)
    (made.place / "invitation.toml").write_text(invitation.toml())
    return made


def asked(trial: Trial, out: Path, k: int = 0, **changes: Any) -> JoinOptions:
    name = trial.name(k)
    made = JoinOptions(
        invitation=trial.place / "invitation.toml",
        identity=private_key(trial.place / name),
        folder=out,
        rehearsal=True,
        data=trial.place / f"{name}-data",
        name=name,
    )
    return replace(made, **changes)


def proposed(joining: JoinOptions) -> Proposed:
    return Proposed(joining, read_invitation(joining.invitation))


def tried(joining: JoinOptions, consent: bool = True) -> Any:
    """Joins, and is told to stop before it has connected."""
    return join(proposed(joining), lambda found: consent, lambda: True)


def refusal(joining: JoinOptions, kind: type[SordinoError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        tried(joining)
    assert caught.value.fix
    return caught.value.code


@pytest.mark.slow
def test_a_site_that_joins_has_books_and_a_receipt_of_its_own(trial: Trial, tmp_path: Path) -> None:
    left = tried(asked(trial, tmp_path / "own"))
    assert left is not None
    assert not left.over
    assert left.receipt.rounds == 0
    assert left.receipt.clients == 1
    mine = RunFolder(tmp_path / "own")
    assert mine.environment.clients == (0,)
    assert mine.environment.run == "run"
    # it consented before, and is not asked again
    assert tried(asked(trial, tmp_path / "own"), consent=False) is not None


@pytest.mark.slow
def test_a_site_that_was_told_the_end_does_not_wait_for_a_server_that_is_gone(trial: Trial, tmp_path: Path) -> None:
    """Killed after it was told, and started again: nobody is left who would tell it once more."""
    assert not tried(asked(trial, tmp_path / "own")).over
    heard: list[str] = []

    def say(standing: str, why: str) -> None:
        heard.append(standing)

    (tmp_path / "own" / "replies" / "over").touch()
    left = join(proposed(asked(trial, tmp_path / "own")), lambda found: True, lambda: len(heard) > 1, say)
    assert left is not None
    assert left.over
    assert heard == ["cut off"]


def test_who_declines_leaves_nothing(trial: Trial, tmp_path: Path) -> None:
    assert tried(asked(trial, tmp_path / "own"), consent=False) is None
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_a_plan_above_the_sites_own_cap_is_declined(trial: Trial, tmp_path: Path) -> None:
    """Fifty plans, each above the cap of the site: none is accepted, and nothing is written."""
    cost = proposed(asked(trial, tmp_path)).epsilon
    assert 0 < cost < 5
    for factor in np.linspace(0.01, 0.999, 50):
        assert refusal(asked(trial, tmp_path / "own", max_epsilon=cost * factor), UnsoundGuarantee) == "above-own-cap"
    assert not (tmp_path / "own").exists()
    assert tried(asked(trial, tmp_path / "own", max_epsilon=cost)) is not None


@pytest.mark.slow
def test_where_nothing_is_promised_no_cap_is_kept(tmp_path: Path) -> None:
    plain = Trial.of(BY_NAME["fedavg"], tmp_path / "plain", rounds=1)
    sites = agreed.read(plain.place / "agreement.toml")
    text = invite("run", "localhost:9", private_key(plain.place / "server"), plain.experiment, sites).toml()
    (plain.place / "invitation.toml").write_text(text)
    assert refusal(asked(plain, tmp_path / "own", max_epsilon=1e9), UnsoundGuarantee) == "above-own-cap"


def test_what_protects_nobody_is_not_played_between_sites(trial: Trial, tmp_path: Path) -> None:
    assert refusal(asked(trial, tmp_path / "own", rehearsal=False), UnsoundGuarantee) == "seeded-noise-between-sites"
    for change, code in (
        ({"privacy.public_sizes": False, "privacy.noise": "system"}, "sizes-are-agreed"),
        ({"privacy.ledger": "shared.sqlite", "privacy.noise": "system"}, "shared-ledger-between-sites"),
    ):
        with pytest.raises(SordinoError) as caught:
            settled(config.load(None, settings=change), rehearsal=False)
        assert caught.value.code == code


@pytest.mark.parametrize("stage", ["secagg", "bfv"])
def test_a_place_that_cannot_play_the_sums_is_refused_before_it_pays(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server, site and key holder alike; without a package, and without the branch."""
    experiment = config.load(None, settings={"uplink": ["weigh", stage]})
    settled(experiment, rehearsal=True)
    monkeypatch.setitem(sys.modules, "tenseal", None)
    if stage == "bfv":
        with pytest.raises(BackendUnavailable):
            settled(experiment, rehearsal=True)
    monkeypatch.setattr(branches, "parts", lambda kind: {})
    with pytest.raises(ConfigError) as refused:
        settled(experiment, rehearsal=True)
    assert refused.value.code == "no-branch"


def test_other_data_than_were_announced_are_refused(trial: Trial, tmp_path: Path) -> None:
    """Another site's file, a row more, a changed pixel, and the right file under another identity."""
    own = digits(test_fraction=0.2)
    changed = np.asarray(own.train.x).copy()
    changed[0, 0, 0] ^= 1
    files = {
        "another site's": trial.place / "site-1-data",
        "everybody's": trial.place / "all",
        "another shape": written(
            tmp_path / "shape", Split(changed[:, 1:], own.train.y), Split(own.test.x[:, 1:], own.test.y)
        ),
    }
    for what, path in files.items():
        assert refusal(asked(trial, tmp_path / "own", data=path), DataError) == "other-data", what
    generate(tmp_path / "stranger")
    stranger = private_key(tmp_path / "stranger")
    assert refusal(asked(trial, tmp_path / "own", identity=stranger), DataError) == "other-data"
    assert refusal(asked(trial, tmp_path / "own", name="nobody")) == "unknown-client"
    assert not (tmp_path / "own").exists()


def test_what_was_accepted_does_not_change(trial: Trial, tmp_path: Path) -> None:
    assert tried(asked(trial, tmp_path / "own")) is not None
    told = read_invitation(trial.place / "invitation.toml").fields
    generate(tmp_path / "other")
    key = private_key(tmp_path / "other").public_key().public_bytes_raw().hex()
    louder = told.experiment.replace("rounds = 2", "rounds = 3")
    assert louder != told.experiment
    fewer = told.agreement.replace("examples = ", "examples = 1", 1)
    for changes in ({"run": "other"}, {"experiment": louder}, {"agreement": fewer}, {"server_key": key}):
        changed = tmp_path / "changed.toml"
        changed.write_text(Invitation(told.beside(**changes)).toml())
        assert refusal(asked(trial, tmp_path / "own", invitation=changed), RunError) == "other-invitation"
    for other in (asked(trial, tmp_path / "own", shares_scores=True), asked(trial, tmp_path / "own", 1)):
        assert refusal(other, RunError) == "other-invitation"


def renamed(trial: Trial, at: Path, **tables: Any) -> Path:
    """The invitation with other tables in its experiment."""
    told = read_invitation(trial.place / "invitation.toml").fields
    at.write_text(Invitation(told.beside(experiment=tomli_w.dumps(tomllib.loads(told.experiment) | tables))).toml())
    return at


@pytest.mark.parametrize(
    "tables",
    [{"algorithm": {"name": "stolen:Method"}}, {"model": {"name": "stolen:Net"}}, {"uplink": [{"name": "stolen:It"}]}],
    ids=str,
)
def test_an_invitation_runs_no_code_that_its_reader_has_not_allowed(
    tables: Any, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to show the plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stolen.py").write_text("from pathlib import Path\nPath('was-here').touch()\n")
    joining = asked(trial, tmp_path / "own", invitation=renamed(trial, tmp_path / "changed.toml", **tables))
    with pytest.raises(ConfigError) as caught:
        _ = asked_to(joining).guarantees
    assert caught.value.code == "code-in-invitation"
    assert not (tmp_path / "was-here").exists()
    allowed = asked_to(replace(joining, with_code=True)).invitation.experiment  # the control
    assert "stolen:" in str(allowed.model_dump())


def test_a_key_holder_runs_no_code_that_its_owner_has_not_allowed(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lent.py").write_text("from sordino.algorithms.fedavg import FedAvg as Mine\n")
    file = renamed(trial, tmp_path / "changed.toml", algorithm={"name": "lent:Mine"}, privacy={})
    options = InvitedOptions(invitation=file, identity=private_key(trial.place / trial.name(0)), rehearsal=True)
    for allowed, code in (
        (False, "code-in-invitation"),
        (True, "no-key-needed"),
    ):  # the second one has built the method
        with pytest.raises(SordinoError) as caught:
            hold(replace(options, folder=tmp_path / "own", with_code=allowed), lambda: True, print, print)
        assert caught.value.code == code
        assert ("lent" in sys.modules) is allowed


def test_an_invitation_asks_nothing_of_the_machine_that_reads_it(trial: Trial, tmp_path: Path) -> None:
    engine = {"executor": "loop", "precision": "fp32", "threads": 99, "cache": "/elsewhere", "workers": 77}
    read_here = read_invitation(renamed(trial, tmp_path / "changed.toml", engine=engine)).experiment
    assert read_here.engine == Engine(executor="loop", precision="fp32")
    assert read_here.digest() == trial.experiment.digest()
    table = {"source": "tabular", "label": "y", "schema": "/somebody/else's/file.toml"}
    with pytest.raises(ConfigError) as caught:
        read_invitation(renamed(trial, tmp_path / "changed.toml", data=table))
    assert caught.value.code == "schema-not-in-invitation"


def test_what_is_no_invitation_or_agreement_is_told(trial: Trial, tmp_path: Path) -> None:
    """A run is no path, which would choose a folder here; after a dot a site did not find its rounds in its ledger."""
    file, told = tmp_path / "it.toml", tomllib.loads((trial.place / "invitation.toml").read_text())
    runs = [tomli_w.dumps(told | {"run": run}) for run in ("../x", "/x", "study.training", "[red]", "", "x" * 65)]
    for text in ("", "x", "format = 2", "[data]", (trial.place / "agreement.toml").read_text(), *runs):
        file.write_text(text)
        assert refusal(asked(trial, tmp_path / "own", invitation=file)) == "no-invitation"
    good = (trial.place / "agreement.toml").read_text()
    for text in (
        "",
        "x",
        good.replace("site-1", "site-0"),
        good.replace("examples = ", "examples = -"),
        good + "\nx = 1",
    ):
        with pytest.raises(ConfigError) as caught:
            agreed.read_toml(text)
        assert caught.value.code == "bad-agreement"


def test_sites_that_do_not_fit_together_do_not_agree(trial: Trial) -> None:
    whole = agreed.read(trial.place / "agreement.toml")
    other = whole.beside(
        data=whole.data.beside(shape=(9, 9, 1)), clients=(whole.clients[0].beside(name="x", site="x"),)
    )
    with pytest.raises(ConfigError) as caught:
        agreed.merged([whole, other])
    assert caught.value.code == "sites-differ"
    assert "shape" in caught.value.what
    assert agreed.read_toml(whole.toml()) == whole
    assert agreed.read_toml(whole.toml()).digest == whole.digest


def test_no_path_of_a_site_is_in_what_others_see(trial: Trial) -> None:
    text = (trial.place / "invitation.toml").read_text() + (trial.place / "agreement.toml").read_text()
    assert str(trial.place) not in text
    moved = trial.experiment.model_copy(
        update={"data": trial.experiment.data.model_copy(update={"path": "/elsewhere"})}
    )
    assert moved.digest() == trial.experiment.digest()


@pytest.fixture(scope="module")
def real_trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    real = BY_NAME["gaussian_gdp"].experiment(rounds=1).model_dump(mode="json", exclude_none=True)
    place = tmp_path_factory.mktemp("real") / "real"
    made = Trial(place, {**real, "privacy": {**real["privacy"], "noise": "system"}}, 5, rehearsal=False)
    sites = agreed.read(made.place / "agreement.toml")
    text = invite("run", "localhost:9", private_key(made.place / "server"), made.experiment, sites).toml()
    (made.place / "invitation.toml").write_text(text)
    return made


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that knows of no run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.slow
@pytest.mark.usefixtures("own_state")
def test_what_goes_on_between_sites_is_not_resumed_alone_and_a_copy_does_not_go_on(
    real_trial: Trial, tmp_path: Path
) -> None:
    made = real_trial
    assert tried(asked(made, tmp_path / "own", rehearsal=False)) is not None
    with pytest.raises(RunError) as caught:
        resume(tmp_path / "own")
    assert caught.value.code == "between-sites"
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    assert refusal(asked(made, tmp_path / "copy", rehearsal=False), RunError) == "copied-run"
    assert tried(asked(made, tmp_path / "copy", rehearsal=False, moved=True)) is not None


def test_a_wrong_certificate_is_told_before_anybody_consents(trial: Trial, tmp_path: Path) -> None:
    assert refusal(asked(trial, tmp_path / "own", certificates=tmp_path / "nowhere"))
    assert not (tmp_path / "own").exists()


def test_where_nobody_can_be_asked_it_says_yes_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ConfigError) as refusal:
        deploying._agreed()
    assert (refusal.value.code, refusal.value.exit_code) == ("no-consent", 2)
    assert "--yes" in refusal.value.fix
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert deploying._agreed()


def test_a_site_that_is_cut_off_says_every_hour_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [0.0], io.StringIO()
    monkeypatch.setattr(deploying, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    say = deploying._standing(Console(file=said, width=200))
    say("cut off", "no route")
    for _ in range(3 * 240):  # a try every 15 seconds, for three hours
        clock[0] += 15.0
        say("cut off", "no route")
    lines = said.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("cut off: no route (for 2 h; it goes on trying)")


def test_a_site_has_one_folder_in_a_run(real_trial: Trial, own_state: Path, tmp_path: Path) -> None:
    """A second one, or one in place of a lost one, would have a ledger that knows nothing of what was spent."""
    first, second = (asked(real_trial, tmp_path / name, rehearsal=False) for name in ("own", "second"))
    assert tried(first) is not None
    consents: list[Proposed] = []

    def refused(joining: JoinOptions) -> str:
        with pytest.raises(LedgerError) as caught:
            join(proposed(joining), lambda found: bool(consents.append(found)), lambda: True)
        return caught.value.code

    assert refused(second) == "joined-before"
    (tmp_path / "own").rename(tmp_path / "gone")
    assert refused(first) == "joined-before"
    assert not consents
    assert tried(replace(first, moved=True)) is not None
    assert tried(first) is not None
    assert tried(asked(real_trial, tmp_path / "other", 1, rehearsal=False)) is not None  # the control: another site
    assert len(list(own_state.rglob("*.jsonl"))) == 2


@pytest.mark.usefixtures("own_state")
def test_a_site_that_is_behind_what_it_has_signed_leaves(
    real_trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is told, and not the server alone."""
    left: list[bool] = []

    def attend(address: str, name: str, answer: Any, leave: Callable[[], bool], *_: Any) -> None:
        answer.__self__.head.behind = LedgerError("it is behind", why="-", fix="-", code="site-rolled-back")
        left.append(leave())

    monkeypatch.setattr("sordino.sites.connecting.attend", attend)
    with pytest.raises(LedgerError) as caught:
        join(proposed(asked(real_trial, tmp_path / "own", rehearsal=False)), lambda found: True, lambda: False)
    assert caught.value.code == "site-rolled-back"
    assert left == [True]
