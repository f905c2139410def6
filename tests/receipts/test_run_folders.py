"""A run folder belongs to one run: in use, damaged or put back, it is refused in words."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sordino import open_run, run
from sordino.accounting.statement import OfPhase
from sordino.errors import LedgerError, RunError
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import training_rounds
from sordino.runs import listing
from sordino.runs.run import resume, start
from tests.helpers.command_line import Said
from tests.laws.cases import BY_NAME
from tests.laws.traces import differences, killed_at, trace
from tests.runs.ways_to_die import _alive, _lines, experiment_file, sordino


# the folder -----------------------------------------------------------------------------------------------------------
def test_a_run_folder_belongs_to_one_run(tmp_path: Path) -> None:
    case = BY_NAME["fedavg"]
    start(case.experiment(), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RunError) as refusal:
        start(case.experiment(seed=5), tmp_path / "run")
    assert refusal.value.code == "run-exists"
    run = str(tmp_path / "run")
    for advice in (f"`sordino resume {run}`", f'sordino.resume("{run}")', f"--out {run}-2", f'out="{run}-2"'):
        assert advice in refusal.value.fix
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    file = experiment_file(BY_NAME["fedavg"], tmp_path, rounds=3000)
    out = tmp_path / "run"
    process = sordino("run", file, "--out", out, "-q")
    try:
        while not _lines(out) and process.pid in _alive():
            time.sleep(0.002)
        with pytest.raises(RunError) as refusal:
            resume(out)
        assert refusal.value.code == "run-in-use"
    finally:
        process.kill()
        process.wait()


@pytest.mark.one_fast
@pytest.mark.parametrize("missing", ["experiment.toml", "environment.json"])
def test_what_is_no_run_folder_is_not_resumed(missing: str, tmp_path: Path) -> None:
    with pytest.raises(RunError) as refusal:
        resume(tmp_path)
    assert refusal.value.code == "not-a-run"
    start(BY_NAME["fedavg"].experiment(), tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "not-a-run"


@pytest.mark.one_fast
@pytest.mark.parametrize("format", [0, 2, 99, None, "1"])
@pytest.mark.parametrize(
    ("name", "verbs"),
    [
        ("environment_file", ("privacy verify", "resume")),
        ("receipt_file", ("show",)),
        ("agreement_file", ("privacy verify",)),
    ],
)
def test_a_file_of_another_format_is_refused(
    name: str, verbs: tuple[str, ...], format: object, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    place = start(BY_NAME["fedavg"].experiment(), tmp_path / "run").folder
    file: Path = getattr(RunFolder(place), name)
    assert json.loads(file.read_text())["format"] == 1
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": format}))
    for verb in verbs:
        said = cli(*verb.split(), place)
        code = "unknown-format" if isinstance(format, int) else "run-file-damaged"
        assert (said.code, code in said.err) == (6, True), (verb, said)


@pytest.mark.parametrize("place", [(), ("public",)])
def test_an_agreement_that_says_more_is_refused(place: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever is not compared when a run goes on would be sealed with it."""
    run = start(BY_NAME["fedavg"].experiment(), tmp_path / "run").folder
    told = whole = json.loads((run / "agreement.json").read_text())
    for key in place:
        told = told[key]
    told["mean"] = [0.5]
    (run / "agreement.json").write_text(json.dumps(whole))
    with pytest.raises(RunError) as refusal:
        resume(run)
    assert refusal.value.code == "run-file-damaged"


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    key = start(BY_NAME["fedavg"].experiment(), tmp_path / "run").folder / "data.key"
    key.unlink()
    key.mkdir()
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "run-file-damaged"


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    with killed_at("published", 2):
        start(BY_NAME["scaffold"].experiment(), tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "checkpoint-damaged"


def test_a_ledger_that_is_gone_is_not_founded_anew(tmp_path: Path) -> None:
    with killed_at("published", 2):
        start(BY_NAME["gaussian_gdp"].experiment(), tmp_path / "run")
    for part in (tmp_path / "run").glob("ledger.sqlite*"):
        part.unlink()
    with pytest.raises(LedgerError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "ledger-rolled-back"


def test_a_ledger_put_back_is_noticed(tmp_path: Path) -> None:
    """An older copy would give the participations since then for free."""
    out = tmp_path / "run"
    with killed_at("published", 0):
        start(BY_NAME["gaussian_gdp"].experiment(), out)
    for part in list(out.glob("ledger.sqlite*")):
        shutil.copy(part, tmp_path / part.name)
    with killed_at("published", 2):
        resume(out)
    for part in list(out.glob("ledger.sqlite*")):
        part.unlink()
    for part in list(tmp_path.glob("ledger.sqlite*")):
        shutil.copy(part, out / part.name)
    with pytest.raises(LedgerError) as refusal:
        resume(out)
    assert refusal.value.code == "ledger-rolled-back"


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_stepped_over_on_request(tmp_path: Path) -> None:
    whole, cut = (run(None, "rounds=4", "partition.clients=4", out=tmp_path / name) for name in ("whole", "cut"))
    newest = cut.folder / "checkpoints" / "round-000004.ckpt"
    newest.write_bytes(newest.read_bytes()[:-40])
    with pytest.raises(RunError) as refused:
        resume(cut.folder)
    assert refused.value.code == "checkpoint-damaged"
    assert "--fallback" in refused.value.fix
    resume(cut.folder, fallback=True)
    assert differences(trace(whole.folder), trace(cut.folder)) == []


def test_without_its_ledger_a_receipt_of_an_earlier_stop_is_known_by_its_rounds(tmp_path: Path) -> None:
    """Those of a preparation, which a receipt counts too, are no rounds of the training."""
    ended, mine = start(BY_NAME["gaussian_gdp"].experiment(rounds=3), tmp_path / "run"), RunFolder(tmp_path / "run")
    for one in tmp_path.glob("run/ledger.sqlite*"):
        one.unlink()
    for before in (0, 5):
        for done in (3, 2):
            phases = [
                OfPhase(phase=name, releases=n, guarantees=()) for name, n in (("ask", before), ("training", done))
            ]
            told = ended.receipt.beside(rounds=before + done, phases=tuple(phases) if before else ())
            mine.receipt_file.write_text(json.dumps(told.to_json()))
            shown = [listing.listed(tmp_path)[0].promise, listing.look(mine).promise]
            assert ["ε" in said for said in shown] == [done == 3] * 2
            assert open_run(mine.path).promise.startswith("ε" if done == 3 else "no receipt yet")
            assert training_rounds(told) == done
