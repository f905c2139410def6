"""`sordino check`: an algorithm of one's own passes, and for each law a broken twin is caught by that law."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.checks import LAWS, Law, Report, check
from sordino.cli import main
from sordino.errors import ConfigError
from sordino.transport import message
from tests.checks.broken_twins import PRELUDE, TWINS
from tests.laws import warm

FEDPROX = '''"""FedProx over FedAvg. Li et al., MLSys 2020."""

from dataclasses import dataclass

from sordino import tree
from sordino.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = 0.01

    def direction(self, g, y, x):
        return tree.axpy(self.mu, tree.sub(y, x), g)
'''


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())

    def call(source: str, *words: str, name: str | None = "Mine") -> Report:
        file = tmp_path / f"algorithm_{tmp_path.name}.py"
        file.write_text(source)
        return check(file, name, words)

    return call


def code_lines(source: str) -> int:
    """Lines that hold code: no comments, no docstrings, no blank lines."""
    module = ast.parse(source)
    prose = {
        line
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.split("#")[0].strip()) and number not in prose for number, line in lines)


@pytest.mark.slow
def test_fedprox_of_ones_own_passes(judged: Callable[..., Report]) -> None:
    assert code_lines(FEDPROX) <= 15
    report = judged(FEDPROX, "algorithm.mu=0.5", name=None)
    assert report.algorithm.endswith(":FedProx")
    assert [v.verdict for v in report.verdicts] == ["holds"] * len(LAWS), report.broken


# a law's second and third twin, and the dear ones
AGAIN = {
    "a process that knows its number",
    "a list of tensors",
    "a truth value in a message",
    "a state that loses a name",
    "a model in double precision",
    "the model moved in place",
    "losses that keep a label in a global",
    "a mean divided by its own norm",
    "a decoder that sees the crowd",
    "a weight that the denominator does not know",
    "momentum on the instance",
    "a private gate that promises nothing",
    "one batch of many",
}


DEAR = {"processes", "learns", "noisy", "resume", "order"}  # laws that run federations of their own


BASE = {"runs", "ledger", "receipt"}  # laws that share one


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *(pytest.param(name, False, id=name) for name in TWINS if name not in AGAIN),
        *(pytest.param(name, True, id=f"{name}, every law", marks=pytest.mark.slow) for name in TWINS),
    ],
)
def test_a_broken_twin_is_caught_by_its_law(
    name: str, whole: bool, judged: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast tier leaves out federations that are not needed to break this one; the slow tier the dearest only."""
    twin = TWINS[name]
    spared = DEAR if twin.breaks & (BASE | DEAR) else DEAR | BASE
    for law in ({"processes"} if whole else spared) - twin.breaks:
        monkeypatch.setitem(LAWS, law, Law("not tried here", lambda trial: None))
    report = judged(PRELUDE + twin.source)
    broken = {v.law: v for v in report.verdicts if v.verdict == "broken"}
    assert set(broken) == twin.breaks, broken
    assert any(twin.says in v.why for v in broken.values()), broken
    assert all(v.fix for v in broken.values())


def test_every_law_has_a_twin() -> None:
    assert set().union(*(twin.breaks for name, twin in TWINS.items() if name not in AGAIN)) == set(LAWS)


# no false alarms ------------------------------------------------------------------------------------------------------
SOUND = {
    "scaffold": "from sordino.algorithms.scaffold import Scaffold\n@dataclass(frozen=True)\nclass Mine(Scaffold):\n    pass\n",
    "decaying steps": "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    local_steps: int | None = 3\n    lr_decay: float = 0.9\n",
    "both words": "class Mine(FedAvg, takes_mean=True, carries_statistics=True):\n    pass\n",
    "a noisy reader": """
@dataclass(frozen=True)
class Mine(FedAvg):
    batch_size: int | str = "full"
    read: Reader = NoisyGradient(1.0)
""",
    "noise at the client": """
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink(client=(Clip(1.0), Noise(), Weigh()))
""",
    "noise over a hidden cohort": """
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink(client=(Clip(1.0),), server=(Noise(neighbours="zero_out"),))
""",
    "noise that no budget pays for": """
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink((ClipCoordinates(0.1),), (CoordinateLaplace(0.1, beta=0.01),))
""",
    "momentum at the server": """
class Kept(NamedTuple):
    x: dict
    round: torch.Tensor
    v: dict
@dataclass(frozen=True)
class Mine(FedAvg):
    beta: float = 0.5
    def init(self, task, key):
        x = task.init(key)
        return Kept(x, torch.tensor(0), tree.zeros_like(x))
    def broadcast(self, s):
        return Server(s.x, s.round)
    def update(self, s, r, home):
        v = tree.axpy(self.beta, s.v, r.mean.delta)
        return Kept(tree.add(s.x, v), s.round + 1, v)
""",
}


@pytest.mark.slow  # the fast twins break no law but their own
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_algorithm_passes(name: str, judged: Callable[..., Report]) -> None:
    report = judged(PRELUDE + SOUND[name])
    assert [v.verdict for v in report.verdicts] == ["holds"] * len(LAWS), report.verdicts


@pytest.mark.slow
def test_a_step_too_large_is_no_learning(judged: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    for law in DEAR - {"learns"}:
        monkeypatch.setitem(LAWS, law, Law("not tried here", lambda trial: None))
    report = judged(FEDPROX, "lr=3.0", name=None)  # the algorithm's own key
    assert report.broken == ["learns"]


# the file and the command ---------------------------------------------------------------------------------------------
FILES: dict[str, tuple[str, str, str, str | None]] = {  # code, file name, its text, --class
    "text": ("no-algorithm-file", "algorithm.txt", FEDPROX, None),
    "a package's name": ("module-name", "torch.py", FEDPROX, None),
    "a builtin's name": ("module-name", "math.py", FEDPROX, None),
    "no name": ("module-name", "my-algorithm.py", FEDPROX, None),
    "a dot": ("module-name", "my.algorithm.py", FEDPROX, None),
    "no import": ("algorithm-import", "no_import.py", "import nothing_of_this_name\n", None),
    "no syntax": ("algorithm-import", "no_syntax.py", "class Mine(:\n", None),
    "nothing": ("which-class", "nothing_in_it.py", "x = 1\n", None),
    "two": ("which-class", "two_in_it.py", FEDPROX + "class Other(FedProx):\n    pass\n", None),
    "another": ("which-class", "another_in_it.py", FEDPROX, "FedPox"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_checked_is_refused(name: str, tmp_path: Path) -> None:
    code, file, text, wanted = FILES[name]
    (tmp_path / file).write_text(text)
    before, here = (sys.path.copy(), set(sys.modules)), os.getcwd()
    with pytest.raises(ConfigError) as refusal:
        check(tmp_path / file, wanted)
    assert refusal.value.code == code
    assert refusal.value.fix
    assert (sys.path, os.getcwd()) == (before[0], here)
    assert Path(file).stem not in set(sys.modules) - before[1]


@pytest.mark.parametrize("word", ["rounds=3", "algorithm=fedavg", "data.source=quadratic"])
def test_a_check_sets_parameters_only(word: str, tmp_path: Path) -> None:
    (tmp_path / "parameters_only.py").write_text(FEDPROX)
    with pytest.raises(ConfigError) as refusal:
        check(tmp_path / "parameters_only.py", None, [word])
    assert refusal.value.code == "not-for-a-check"


@pytest.mark.slow
def test_the_command_says_what_is_broken_and_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "my_mine.py").write_text(PRELUDE + TWINS["uphill"].source)
    (tmp_path / "my_prox.py").write_text(FEDPROX)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sordino", "check", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().out

    code, out = call(str(tmp_path / "my_mine.py"), "--class", "Mine")
    assert code == 2
    assert "1 broken: learns" in out
    assert "end at" in out
    code, out = call(str(tmp_path / "my_prox.py"), "--set", "algorithm.mu=0.1", "--json")
    assert code == 0
    found = json.loads(out)  # one object, whatever the algorithm prints
    assert found["holds"] is True
    assert found["algorithm"] == "my_prox:FedProx"
    assert [row["law"] for row in found["laws"]] == list(LAWS)


def test_the_readme_counts_the_laws() -> None:
    readme = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    assert "`sordino check` tests twenty properties of it" in readme
    assert len(LAWS) == 20
