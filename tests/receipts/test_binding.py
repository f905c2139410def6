"""Receipt, ledger, experiment and files belong together: every word that somebody edits is found."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.accounting.composition import parsed
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import lacking
from sordino.errors import LedgerError, RunError
from sordino.planning import Agreement
from sordino.planning.accounts import Accounts, OpenRound
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.receipts import seal, signature
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import lifetime, opened, receipt, spending
from sordino.receipts.verify import examine, verify
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from tests.helpers.command_line import Said
from tests.laws.cases import BY_NAME
from tests.laws.traces import killed_at

CASE = BY_NAME["gaussian_gdp"]
REAL = CASE.privacy | {"noise": "system"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`private` has real noise, `open` none; both are of the same model."""
    place = tmp_path_factory.mktemp("runs")
    start(CASE.experiment(privacy=REAL), place / "private")
    start(BY_NAME["fedavg"].experiment(), place / "open")
    return place


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "private", tmp_path / "run")
    return tmp_path / "run"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


# without data, elsewhere
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_receipt_is_verified_on_another_machine(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what may be shown: neither the private folder nor a checkpoint, and no loader answers."""
    shown = ("privacy.json", "experiment.toml", "agreement.json", "environment.json", "ledger.sqlite", *seal.FILES)
    (there := tmp_path / "elsewhere").mkdir()
    for name in shown:
        if (run / name).exists():
            shutil.copy(run / name, there)
    monkeypatch.setattr("sordino.runs.declared_data.SOURCES", {})
    assert verify(there) == []


def test_somebodys_algorithm_is_not_imported_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain, the statement, seals and files are looked at all the same, and what was not is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text(
        "from dataclasses import dataclass\nfrom sordino.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
    )
    start(config.load({"rounds": 1, "algorithm": {"name": "theirs:Mine", "lr": 0.1}}), tmp_path / "run")
    (tmp_path / "theirs.py").write_text("raise SystemExit('somebody ran me')")
    monkeypatch.delitem(sys.modules, "theirs")
    found = examine(tmp_path / "run")
    assert found.wrong == []
    assert any("--with-code" in line for line in found.unseen)


# what is edited -------------------------------------------------------------------------------------------------------


def release(place: Path, name: str, into: Path) -> None:
    shutil.copy(place / "open" / name, into / name)


FORGERIES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "the model of a run without privacy": (lambda runs, run: release(runs, "model.safetensors", run), "model"),
    "the metrics of a run without privacy": (lambda runs, run: release(runs, "metrics.jsonl", run), "metrics"),
    "a page that was never made": (lambda runs, run: (run / "report.html").write_text("1.1 times"), "report.html"),
    "a smaller epsilon": (
        lambda runs, run: edit(run / "privacy.json", '"status": "proved"', '"status": "conditional"'),
        "status",
    ),
    "a file's digest": (
        lambda runs, run: edit(
            run / "privacy.json", seal.digests(run)["model.safetensors"], hashlib.sha256(b"").hexdigest()
        ),
        "changed after it was made",
    ),
    "another noise": (lambda runs, run: edit(run / "experiment.toml", '"system"', '"counter"'), "not the experiment"),
    "another agreement": (
        lambda runs, run: edit(run / "agreement.json", '"classes": 10', '"classes": 11'),
        "agreement",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_was_edited_is_named(name: str, runs: Path, run: Path) -> None:
    change, named = FORGERIES[name]
    assert verify(run) == []
    change(runs, run)
    assert any(named in line for line in verify(run)), verify(run)


def test_a_page_is_part_of_the_receipt_once_it_is_made(run: Path, cli: Callable[..., Said]) -> None:
    assert cli("report", run).code == 0
    assert verify(run) == []
    edit(run / "report.html", "sordino", "sordina")
    assert any("report.html" in line for line in verify(run))


@pytest.mark.one_fast
@pytest.mark.parametrize("again", ["report", "resume"])
@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "agreement.json"])
def test_nothing_that_somebody_put_there_is_sealed_later(
    name: str, again: str, runs: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    """A page is made, or a finished run is continued, after a file was exchanged: its owner's own command must not
    vouch for it.
    """
    own = tmp_path / "own"
    start(CASE.experiment(privacy=REAL), own)
    if name == "agreement.json":
        text = json.loads((own / name).read_text())
        (own / name).write_text(json.dumps(text | {"public": text["public"] | {"note": "nothing leaks"}}))
    elif name == "metrics.jsonl":  # of the same length
        (own / name).write_bytes((own / name).read_bytes().replace(b"1", b"7"))
    else:
        release(runs, name, own)
    before = (own / "privacy.json").read_bytes()
    said = cli(again, own)
    if again == "report":
        assert (own / "privacy.json").read_bytes() == before
        assert said.code == 0, said.err
    if again == "resume" and name == "model.safetensors":  # it is written anew, from the checkpoint
        assert said.code == 0, said.err
        assert (own / name).read_bytes() != (runs / "open" / name).read_bytes()
        assert cli("privacy", "verify", own).code == 0
        return
    if again == "resume":
        assert said.code != 0
        assert name in said.err
    assert "the receipt does not hold" in cli("privacy", "verify", own).err


def test_the_copied_model_passed_a_receipt_that_named_no_files(
    runs: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: as receipts were."""
    release(runs, "model.safetensors", run)
    monkeypatch.setattr(seal, "wrong", lambda folder, claimed: [])
    assert verify(run) == []


def test_a_receipt_beside_a_ledger_that_has_sealed_none_is_refused(run: Path, tmp_path: Path) -> None:
    with killed_at("published", 2):
        start(CASE.experiment(privacy=REAL), tmp_path / "young")
    shutil.copy(run / "privacy.json", tmp_path / "young")
    with pytest.raises(LedgerError) as refusal:
        RunFolder(tmp_path / "young").receipt()
    assert refusal.value.code == "receipt-does-not-hold"


# a ledger that was written anew
# -----------------------------------------------------------------------------------------


def forged(runs: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All multipliers times ten, the chain made anew, receipt and seal made from it: nothing disagrees with
    anything."""
    said = Accounts._claims

    def louder(self: Accounts, now: OpenRound, client: int, multiplier: float | None) -> Any:
        return said(self, now, client, None if multiplier is None else 10 * multiplier)

    with monkeypatch.context() as patch:
        patch.setattr(Accounts, "_claims", louder)
        start(CASE.experiment(privacy=REAL), place / "forged")
    return place / "forged"


@pytest.mark.slow
def test_a_ledger_with_ten_times_the_noise_is_not_what_the_experiment_plans(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = forged(runs, tmp_path, monkeypatch)
    small = json.loads((folder / "privacy.json").read_text())["guarantees"][0]["epsilon"]
    assert small < 0.5  # of a budget of 4
    wrong = verify(folder)
    assert wrong
    assert all("plans" in line for line in wrong)
    monkeypatch.setattr(Accounts, "plans", lambda *_: True)  # the twin that believes the chain
    assert verify(folder) == []


# signatures -----------------------------------------------------------------------------------------------------------


def test_a_signature_is_of_one_key_and_one_receipt(run: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    assert cli("identity", "new", mine).code == 0
    signature.generate(other)
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    assert examine(run, Path(f"{mine}.pub")).wrong == ["there is no signature"]
    assert cli("privacy", "sign", run, "--key", mine).code == 0
    assert examine(run, Path(f"{mine}.pub"))[:2] == ([], [])
    assert cli("privacy", "verify", run, "--key", f"{mine}.pub").code == 0
    assert examine(run, Path(f"{other}.pub")).wrong == ["the signature is by another key"]
    signed = (run / "privacy.json").read_bytes()
    (run / "privacy.json").write_bytes(signed + b" ")
    assert examine(run, Path(f"{mine}.pub")).wrong == ["the signature is not of this receipt"]


@pytest.mark.parametrize("broken", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----"])
def test_keys_that_are_none(broken: bytes, run: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    (tmp_path / "key").write_bytes(broken)
    said = cli("privacy", "sign", run, "--key", tmp_path / "key")
    assert said.code == 2
    assert "sordino identity new" in said.err
    assert cli("identity", "new", tmp_path / "key").code == 2  # a key is never overwritten


# one word -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 2])
def test_a_simulation_does_not_become_real_by_one_word(before: int, tmp_path: Path) -> None:
    from tests.laws.traces import killed_at

    with killed_at("published", before):
        start(CASE.experiment(), tmp_path / "run")
    edit(tmp_path / "run" / "experiment.toml", '"counter"', '"system"')
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "edited-run"
    # and the digest beside it: what was released says itself what it was
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    environment["config"] = config.load(tmp_path / "run" / "experiment.toml").digest()
    (tmp_path / "run" / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "edited-run"
    setup, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        assert {parsed(entry.note).noise for entry in ledger.entries()} == {"counter"}
        assert receipt(setup, federation, RunFolder(tmp_path / "run").environment).simulated


def test_how_a_run_is_computed_may_change(tmp_path: Path) -> None:
    from tests.laws.traces import killed_at

    with killed_at("published", 1):
        start(CASE.experiment(), tmp_path / "run")
    edit(tmp_path / "run" / "experiment.toml", "checkpoint_every = 1", "checkpoint_every = 2")
    resume(tmp_path / "run")
    assert verify(tmp_path / "run") == []


# the digest of the data
# -------------------------------------------------------------------------------------------------


def test_nobody_finds_a_row_by_trying(runs: Path) -> None:
    """Who knows all rows but one tries every value of it: the digest that stood in the ledger said when it was found,
    the keyed one says nothing."""
    parts = simulated(config.load(runs / "private" / "experiment.toml"))
    told = Agreement.read(runs / "private").dataset
    everything = b"".join(path.read_bytes() for path in runs.glob("private/*") if path.is_file())
    assert told.encode() in everything
    for guess in (b"", told.encode(), (runs / "private" / "experiment.toml").read_bytes()):
        for candidate in (
            parts.population.dataset.fingerprint(guess),
            simulated(parts.setup.experiment, guess).population.fingerprint,
        ):
            assert candidate.encode() not in everything
    key = (runs / "private" / "data.key").read_bytes()
    assert (
        simulated(parts.setup.experiment, key).population.fingerprint == told
    )  # who has the data and the key knows them again
    assert len({Agreement.read(runs / name).dataset for name in ("private", "open")}) == 2  # the same rows, two keys


# what a run leaves ----------------------------------------------------------------------------------------------------


def test_what_is_private_is_for_its_owner_alone(runs: Path) -> None:
    inside = runs / "private" / "private"
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    for path in inside.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for folder in ("private", "open"):  # what clients keep lies in checkpoints
        for path in (runs / folder / "checkpoints").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (runs / "open" / "private").exists()  # a simulation has nothing to hide
    assert "Not to be shared" in (inside / "README").read_text()


def test_the_user_who_may_see_it_sees_it_all(runs: Path, cli: Callable[..., Said]) -> None:
    shown = json.loads(cli("show", runs / "private", "--json").out)["metrics"]
    assert [row["round"] for row in shown] == [1, 2, 3, 4]
    assert "accuracy" in shown[-1]
    public = [json.loads(line) for line in (runs / "private" / "metrics.jsonl").read_text().splitlines()]
    assert all("accuracy" not in row and "loss" not in row and "clients" not in row for row in public)


# one ledger, several runs
# -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_runs_on_one_ledger_are_one_number(tmp_path: Path, cli: Callable[..., Said]) -> None:
    """The sum of squares of all their multipliers, not the larger of two epsilons; and one key for the data of both."""
    ledger = str(tmp_path / "shared.sqlite")
    privacy = {"noise": "system", "ledger": ledger, "delta": 1e-5}
    read = {"name": "noisy_gradient", "clip": 1.0, "multiplier": 4.0}
    changes = {"privacy": privacy, "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 1, "batch_size": "full"}}
    for seed, name in ((0, "one"), (0, "two")):
        start(CASE.experiment(**changes, read=read, seed=seed, name=name), tmp_path / name)
    alone = [json.loads((tmp_path / name / "privacy.json").read_text())["guarantees"] for name in ("one", "two")]
    together = lifetime(tmp_path / "shared.sqlite").to_json()

    def example(rows: list[dict[str, Any]]) -> Any:
        return next(row for row in rows if row["unit"] == "example" and row["adversary"] == "server")

    releases = example(together["guarantees"])["releases"]
    assert releases == sum(example(rows)["releases"] for rows in alone)
    epsilon = example(together["guarantees"])["epsilon"]
    numbers = Agreement.read(tmp_path / "one").coordinates[""]
    left = 1e-5 - lacking(epsilon, releases * numbers * TABLE_ERROR)
    assert epsilon == pytest.approx(epsilon_of(releases**0.5 / 4.0, left), rel=1e-9)
    assert epsilon > max(example(rows)["epsilon"] for rows in alone)
    assert len(together["runs"]) == 2
    said = cli("privacy", "spent", ledger, "--json")
    assert json.loads(said.out)["guarantees"] == together["guarantees"]
    assert stat.S_IMODE(os.stat(f"{ledger}.key").st_mode) == 0o600


def test_answers_of_two_runs_are_two_draws(tmp_path: Path) -> None:
    """What is drawn once in a run costs once in it, and again in the next. The twin takes equal names for one draw."""
    ledger = str(tmp_path / "shared.sqlite")
    case = BY_NAME["ldp_fl"]
    for name in ("one", "two"):
        start(case.experiment(privacy={"noise": "system", "ledger": ledger}, name=name), tmp_path / name)

    def pixel(rows: list[dict[str, Any]]) -> float:
        return float(next(row["epsilon"] for row in rows if row["unit"] == "pixel" and row["adversary"] == "server"))

    alone = pixel(json.loads((tmp_path / "one" / "privacy.json").read_text())["guarantees"])
    assert pixel(lifetime(tmp_path / "shared.sqlite").to_json()["guarantees"]) == pytest.approx(2 * alone, rel=1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.receipts.receipt.of_a_run", lambda text, run: text)
        assert pixel(lifetime(tmp_path / "shared.sqlite").to_json()["guarantees"]) == pytest.approx(alone, rel=1e-3)


# its noise is a formula: none has to be searched for
VISIBLE = {
    "cohort": {"name": "round_robin", "size": 2},
    "uplink": {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]},
}


@pytest.mark.slow
def test_sizes_that_are_nobodys_business_are_written_nowhere(tmp_path: Path) -> None:
    """privacy.public_sizes = false: what is left of two federations of other sizes is the same, and verifies."""
    told = []
    for name, alpha in (("even", 100.0), ("uneven", 1.0)):
        made = BY_NAME["central"].experiment(
            privacy={"epsilon": 8.0, "delta": 1e-3, "noise": "system", "public_sizes": False},
            partition={"scheme": "dirichlet", "clients": 5, "alpha": alpha},
            **VISIBLE,
        )
        start(made, tmp_path / name)
        assert verify(tmp_path / name) == []
        examples = [row.examples for row in spending(tmp_path / name).by_client]
        told.append((Agreement.read(tmp_path / name).public.sizes, examples))
    assert told[0] == told[1] == ((1,) * 5, [None] * 5)
