"""The verifier that shares no code with sordino: it gives every epsilon that sordino gives, and knows no more of it than
the page about the format says.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sordino
from sordino.receipts.signature import generate, sign
from tests.helpers.planned_receipts import some
from tests.laws.cases import BY_NAME
from tests.ledger.test_records import FORGED, GOOD, ledger_with

ROOT = Path(__file__).parents[2]
VERIFIER = ROOT / "verifier"
sys.path[:0] = [str(VERIFIER), str(ROOT / "docs")]
import epsilons  # noqa: E402
import house_size  # noqa: E402
import verify  # noqa: E402

MOST = 500  # lines of code
COMMAND = """
import runpy, sys
class Gone:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("sordino", "torch"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Gone())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def asked(run: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """The command, in a process that has neither torch nor sordino."""
    told = [sys.executable, "-c", COMMAND, VERIFIER / "verify.py", run, *words]
    return subprocess.run(list(map(str, told)), capture_output=True, text=True, timeout=300, cwd=VERIFIER)


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command in this process: its exit status, and what it printed."""

    def said(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["verify.py", *map(str, words)])
        ended = verify.main()
        found = capsys.readouterr()
        assert found.err == ""
        return ended, found.out

    return said


def finite(receipt: Path) -> int:
    return sum(row["epsilon"] != "inf" for row in json.loads(receipt.read_text())["guarantees"])


def accountants(runs: list[Path]) -> set[str]:
    told = (json.loads((run / "privacy.json").read_text())["guarantees"] for run in runs)
    return {row["accountant"] for rows in told for row in rows}


def check(runs: list[Path]) -> None:
    """Each receipt holds, and each of its finite rows was computed again."""
    for run in runs:
        said = verify.examine(run, None, None)
        assert (said.wrong, said.unseen) == ([], []), run
        assert sum("epsilon" in line and "inf" not in line for line in said.held) >= finite(run / "privacy.json"), run


@pytest.mark.slow
def test_twenty_random_receipts_hold(tmp_path: Path) -> None:
    runs = some(tmp_path, 20)
    check(runs)
    assert sum(finite(run / "privacy.json") > 0 for run in runs) >= 10
    assert {"gdp", "pure", "pld", "none"} < accountants(runs)
    for run in runs:
        simulated = json.loads((run / "privacy.json").read_text())["simulated"]
        assert any("simulation" in line for line in verify.examine(run, None, None).notes) == simulated


@pytest.mark.slow
def test_receipts_of_sites_hold(tmp_path: Path) -> None:
    """A site's own clients alone, which tell the server scores: nothing is promised about their test examples."""
    runs = some(tmp_path, 6, first=7000, sampled=0.0, site=(0, 2))
    check(runs)
    units = {row["unit"] for run in runs for row in json.loads((run / "privacy.json").read_text())["guarantees"]}
    assert {"test example", "client", "person"} <= units
    environment = runs[0] / "environment.json"
    environment.write_text(environment.read_text().replace('"shares_scores": true', '"shares_scores": false'))
    assert verify.examine(runs[0], None, None).wrong


@pytest.mark.slow
def test_so_does_one_with_personal_budgets_of_a_site_that_shares_scores(tmp_path: Path) -> None:
    """None of them was kept against the server, which gets scores without noise."""
    from tests.helpers.between_sites import Federated

    between = Federated(BY_NAME["pdp_prox_local"].experiment(), tmp_path, shares_scores=True)
    between.play()
    between.member("site-0").receipt()
    between.stop("site-0")
    run = between.place / "site-0"
    check([run])
    environment = run / "environment.json"
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "shares_scores": False}))
    assert any("clients that grant" in line for line in verify.examine(run, None, None).wrong)


@pytest.mark.slow
def test_hundreds_of_random_receipts_hold(tmp_path: Path) -> None:
    runs = some(tmp_path, 300, first=10_000, sampled=0.05)
    check(runs)
    steps = {"gdp, two steps of the client row", "gdp, 5 steps of the example row", "pld, 2 steps of the example row"}
    assert {"gdp", "pure", "pld", "none"} | steps < accountants(runs)
    assert any(name.startswith("rdp") for name in accountants(runs))


@pytest.mark.slow
def test_it_is_short_and_needs_neither_torch_nor_sordino(tmp_path: Path) -> None:
    files = sorted(VERIFIER.rglob("*.py"))
    assert files
    assert sum(map(house_size.code_lines, files)) <= MOST
    [run] = some(tmp_path, 1)
    said = asked(run)
    assert (said.returncode, said.stderr) == (0, ""), said
    assert "epsilon" in said.stdout


def test_a_signature_is_checked_where_it_can_be(
    tmp_path: Path, spoken: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = some(tmp_path, 1)
    for name in ("site", "other"):
        generate(tmp_path / name)
    key = "--key", tmp_path / "site.pub"
    assert spoken(run, *key)[0] == 1  # there is none
    sign(run, tmp_path / "site")
    ended, said = spoken(run, *key)
    assert (ended, "holds: it is signed by" in said) == (0, True)
    ended, said = spoken(run)
    assert (ended, "note: it is signed by" in said) == (0, True)
    assert spoken(run, "--key", tmp_path / "other.pub")[0] == 1
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    ended, said = spoken(run, *key)
    assert (ended, "not checked: the signature" in said, "it is signed" in said) == (3, True, False)


def test_a_ledger_that_runs_share_is_read_from_where_it_lies(tmp_path: Path) -> None:
    shared = tmp_path / "all.sqlite"
    small = {"rounds": 1, "partition": {"scheme": "iid", "clients": 2}, "data": {"train": 80, "test": 40}}
    private = {"algorithm": {"name": "gaussian_gdp", "multiplier": 2.0}, "privacy": {"ledger": str(shared)}}
    for name in ("first", "second"):
        sordino.run(small | private, f"name={name}", out=tmp_path / name)
    for name in ("first", "second"):
        said = verify.examine(tmp_path / name, shared, None)
        assert (said.wrong, said.unseen) == ([], [])
        assert finite(tmp_path / name / "privacy.json") > 0
        with pytest.raises(ValueError, match="no file"):
            verify.examine(tmp_path / name, None, None)


def test_what_the_page_does_not_name_is_not_checked() -> None:
    subject = {"unit": "example", "neighbours": "replace", "adversary": "server", "status": "proved", "because": []}
    for event in ({"kind": "cauchy", "scale": 1.0}, {"kind": "laplace", "scale": 1.0, "shifted": True}):
        note = {"releases": [{"clients": "*", "claims": [{**subject, "event": event}]}]}
        with pytest.raises(epsilons.NotChecked):
            verify.histories([note], 3)
    with pytest.raises(epsilons.NotChecked):
        epsilons.read_claim({**subject, "unit": "household", "event": {"kind": "nothing"}})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("privacy.json", b"[" * 100_000),
        ("privacy.json", b"\xff\xfe"),
        ("privacy.json", b"{}"),
        ("privacy.json", b'{"format": 1, "format": 1}'),
        ("privacy.json", b'{"format": NaN}'),
        ("agreement.json", b'{"a": ' * 5000),
        ("ledger.sqlite", b""),
        ("ledger.sqlite", b"SQLite format 3\0" + bytes(100)),
        ("ledger.sqlite", None),
        ("privacy.sig", b'{"public_key": 3}'),
    ],
)
def test_a_hostile_file_is_refused_without_a_traceback(
    name: str, content: bytes | None, tmp_path: Path, spoken: Callable[..., tuple[int, str]]
) -> None:
    [run] = some(tmp_path, 1)
    (run / name).unlink(missing_ok=True)
    if content is not None:
        (run / name).write_bytes(content)
    ended, said = spoken(run)
    assert ended in (1, 2)
    assert 10 < len(said) < 5000


def test_sizes_and_nesting_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event: dict[str, object] = {"kind": "gaussian", "noise_multiplier": 1.0}
    for _ in range(60):
        event = {"kind": "repeat", "count": 10**6, "event": event}
    with pytest.raises(epsilons.NotChecked):
        epsilons.draws(event)
    huge = frozenset({(("laplace", 1, 2.0), 10**400)})
    with pytest.raises(ArithmeticError):
        epsilons.bounds(huge, "replace", 1e-5)
    monkeypatch.setattr(verify, "MOST_JSON", 100)
    (tmp_path / "large").write_bytes(bytes(101))
    with pytest.raises(ValueError, match="larger"):
        verify.read(tmp_path / "large")
    with pytest.raises(epsilons.Wrong):
        epsilons.number(math.inf)


@pytest.mark.parametrize("forged", FORGED)
def test_a_record_that_could_be_read_in_two_ways_is_refused_by_both(tmp_path: Path, forged: str) -> None:
    """As by the ledger's own reader."""
    sound = verify.Ledger(ledger_with(tmp_path / "sound", GOOD), "run")
    assert dict(sound.spent) == {("ada", 0): 5, ("ben", 0): 5}
    place = ledger_with(tmp_path / "forged", GOOD.replace(*FORGED[forged]))
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError, epsilons.Wrong)):
        verify.Ledger(place, "run")
