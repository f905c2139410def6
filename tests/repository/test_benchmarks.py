"""The benchmark measures what it says: every side is run, and one that does less than the others is found out."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # before site-packages, where another package has a `benchmarks`

from benchmarks.rounds import COLUMNS, SIDES, Side, guard, measured, table  # noqa: E402
from benchmarks.workloads import WORKLOADS, Workload, network  # noqa: E402

# full batches: all sides do the very same arithmetic, so that their losses can be compared closely
TINY = Workload("tiny", (8, 8, 1), 6, 20, 3, "mlp", 0.1, batch=None, steps=3)
SORDINO = Side("sordino", "benchmarks.sides.sordino_rounds")
PLAIN = Side("plain", "benchmarks.sides.plain", reference=True)
IDLE = """
from benchmarks.meter import Meter
from benchmarks.workloads import network
meter = Meter()
net = network(meter.w)
print("a library that talks")
meter.drive(lambda: None, lambda: list(net.parameters()), "nothing")
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    place = tmp_path_factory.mktemp("sides")
    (place / "idle_side.py").write_text(IDLE)
    sides = [PLAIN, SORDINO, Side("idle", "idle_side"), Side("peer", "benchmarks.sides.flower", peer="nowhere")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place))
        yield measured(TINY, sides, repeats=2, peers=place)


LIMIT = {"side": "limit, fp32", "reference": False, "limit": True, "cpu": 1e-4, "wall": 1e-4}


@pytest.mark.slow
def test_the_guard_lets_equal_work_pass_and_finds_the_side_that_does_nothing(rows: list[dict[str, Any]]) -> None:
    complaints = guard(TINY, rows)
    assert {line.partition(":")[0] for line in complaints} == {"idle"}
    plain, sordino = rows[0], rows[1]
    assert sordino["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert sordino["moved"] == pytest.approx(plain["moved"], rel=1e-4)
    assert plain["loss"] < plain["loss_before"]


@pytest.mark.slow
def test_the_table_has_a_row_for_every_side(rows: list[dict[str, Any]]) -> None:
    guard(TINY, rows)
    cells = {one[0]: dict(zip(COLUMNS[1:], one[1:], strict=True)) for one in table([*rows, LIMIT])}
    assert list(cells) == ["plain", "sordino", "idle", "peer", "limit, fp32"]
    assert cells["peer"]["CPU s"] == "not installed"
    for name in ("plain", "sordino"):
        assert float(cells[name]["CPU s"]) > 0
        assert cells[name]["faster"].endswith("x")
        assert cells[name]["of fp32 limit"].endswith("%")
    assert cells["plain"]["faster"] == "1.00x"
    assert cells["idle"]["faster"] == ""  # fast, but it did nothing: no ratio
    assert cells["limit, fp32"]["faster"] == ""


@pytest.mark.slow
def test_every_round_is_told(rows: list[dict[str, Any]]) -> None:
    for one in rows:
        if not one.get("absent"):
            assert len(one["cpu_all"]) == len(one["wall_all"]) == 2
            assert one["peak_kb"] >= one["base_kb"] > 10_000


SHARING = """
import os, signal, sys
from benchmarks.meter import peak
kept = bytearray(100 << 20)
for written, own in [(0, 0), (40, 0), (0, 60), (40, 60)]:
    (read, write), before = os.pipe(), peak()
    fork = os.fork()
    if not fork:
        kept[: written << 20 : 4096] = b"x" * (written << 8)
        mine = bytearray(own << 20)
        os.write(write, b"done")
        signal.pause()
    os.read(read, 4)
    print(peak() - before >> 10)
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
"""


@pytest.mark.slow
def test_memory_that_a_fork_shares_is_counted_once() -> None:
    """Of the 100 MB that it is forked with it adds what it writes to, and what it takes for itself."""
    ended = subprocess.run([sys.executable, "-c", SHARING], cwd=ROOT, capture_output=True, check=True)
    found = [int(line) for line in ended.stdout.split()]
    assert found == pytest.approx([0, 40, 60, 100], abs=25)  # an interpreter's own pages


def learner(name: str, loss: float, moved: float, **rest: Any) -> dict[str, Any]:
    return {"side": name, "reference": False, "limit": False, "loss_before": 2.3, "loss": loss, "moved": moved, **rest}


@pytest.mark.parametrize(
    ("multiplier", "cheat"),
    [
        (0.0, learner("half the steps", 2.05, 0.55)),
        (0.0, learner("another loss", 2.0, 1.0)),
        (1e-6, learner("unclipped", 1.3, 1.4)),
        (1.0, learner("no noise", 1.8, 0.2)),
        (1.0, learner("noise sized for one clip", 1.8, 0.53)),
    ],
)
def test_the_guard_finds_cheats(multiplier: float, cheat: dict[str, Any]) -> None:
    w = replace(TINY, clip=1.0 if multiplier else None, multiplier=multiplier)
    rows = [learner("plain", 1.8, 1.0) | {"reference": True}, learner("honest", 1.81, 1.01), cheat]
    assert {line.partition(":")[0] for line in guard(w, rows)} == {cheat["side"]}


def test_a_peer_that_fails_is_told_apart_from_one_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken" / "bin").mkdir(parents=True)
    (tmp_path / "broken" / "bin" / "python").symlink_to(sys.executable)
    sides = [Side(name, "benchmarks.sides.nowhere", peer=name) for name in ("broken", "missing")]
    assert [one["absent"] for one in measured(TINY, sides, repeats=0, peers=tmp_path)] == [
        "did not run",
        "not installed",
    ]
    assert "broken ended with status 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_private_round_without_noise_is_the_same_on_every_side() -> None:
    w = replace(TINY, clip=1.0, multiplier=1e-6)
    first = Side("public client code", "benchmarks.sides.public_client_code", reference=True)
    others = [Side(name, f"benchmarks.sides.{name}") for name in ("opacus_hooks", "vmap")]
    rows = measured(w, [first, SORDINO, *others], repeats=0)
    assert guard(w, rows) == []
    assert [one["loss"] for one in rows[1:]] == pytest.approx([rows[0]["loss"]] * 3, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w1", "w3"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "noise"])
def test_the_limit_runs(name: str, precision: str) -> None:
    w = replace(WORKLOADS[name], clients=2, cohort=1, examples=10, batch=WORKLOADS[name].batch and 5, steps=1)
    (found,) = measured(w, [Side("limit", "benchmarks.sides.limit", {"precision": precision}, limit=True)], repeats=1)
    assert found["cpu"] > 0


def test_a_side_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match=r"No module named benchmarks\.sides\.nowhere"):
        measured(TINY, [Side("nowhere", "benchmarks.sides.nowhere")], repeats=0)


def test_workloads_are_those_of_the_table() -> None:
    sizes = {name: sum(p.numel() for p in network(w).parameters()) for name, w in WORKLOADS.items()}
    assert sizes == {"w1": 797_962, "w2": 159_010, "w2u": 159_010, "w3": 159_010, "w4": 159_010, "w5": 797_962}
    assert set(SIDES) == set(WORKLOADS)
    for w in WORKLOADS.values():
        batches = list(w.batches(w.examples))
        assert [len(rows) for rows in batches] == [w.batch or w.examples] * w.steps
        seen = sum(map(len, batches)) // w.examples * w.examples
        once = [int(i) for rows in batches for i in rows][:seen]
        assert all(once.count(i) == seen // w.examples for i in range(0, w.examples, 7))


@pytest.mark.slow
def test_the_costs_of_secure_sums_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("gmpy2", "tenseal", "phe"):
        pytest.importorskip(package)
    from benchmarks import secure

    monkeypatch.setattr(sys, "argv", ["secure.py", "--quick", "--repeats", "1"])
    secure.main()
    said = capsys.readouterr().out
    rows = {
        cells[1].strip(): cells[2:-1] for cells in (line.split("|") for line in said.splitlines()) if len(cells) > 2
    }
    assert {"packed 2048, djn", "BFV", "CKKS", "secure aggregation", "Paillier 2048, authority"} <= rows.keys()
    for name in ("packed 2048, djn", "phe 2048 with gmpy2, one value each (from 3)"):
        *_, length, expansion = rows[name]
        assert float(expansion) == pytest.approx(int(length.replace(",", "")) / 2400, abs=0.005)
    ratio = re.search(r"takes ([\d,]+) times less CPU than phe 2048", said)
    assert ratio is not None
    assert int(ratio[1].replace(",", "")) > 0


def test_what_benchmarks_import_is_there() -> None:
    """They are run by hand, so a name that moves is noticed here."""
    for file in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sordino"):
                assert node.module
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                    importlib.import_module(f"{node.module}.{name}")


@pytest.mark.slow
def test_rounds_between_sites_are_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import sites

    monkeypatch.setattr(sys, "argv", ["sites.py", "--rounds", "2", "--repeats", "1"])
    sites.main()
    said = capsys.readouterr().out
    assert re.search(r"^\| between sites \| .*x \| +2 \|$", said, re.MULTILINE)


@pytest.mark.slow
def test_a_killed_run_of_many_ends_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import registered

    monkeypatch.setattr(sys, "argv", ["registered.py", "2000", "--cohort", "200", "--rounds", "30"])
    with pytest.raises(SystemExit) as ended:
        registered.main()
    said = capsys.readouterr().out
    assert not ended.value.code, said
    assert re.search(r"2,000 clients, 200 a round: .* at most [\d,]+ MB", said)
    assert "the same bytes" in said


@pytest.mark.slow
def test_an_upload_is_projected_by_its_ciphertexts_and_a_wrong_sum_is_no_work() -> None:
    pytest.importorskip("gmpy2")
    from benchmarks import secure
    from sordino.secagg import paillier

    key, values = paillier.generate(2048, testing=True), secure.integers(100_000)
    way = secure.sealed("packed 2048", key, values, measured=63)
    assert way.ciphertexts == 1613  # of 62 values and a guard
    assert way.play().bytes == 825_856
    wrong = SimpleNamespace(public=key.public, open=lambda total: key.open(total) + 1)
    with pytest.raises(SystemExit, match="1 steps off"):
        secure.sealed("off by one", wrong, values, measured=63).play()
