"""What a start does not pay for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from sordino.cli.program import app, only


def told(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_nothing_is_collected_while_modules_load_and_all_that_is_made_later_is(tmp_path: Path) -> None:
    program = """
import gc, weakref
from sordino.branches import loading

class Ring: pass

def dropped():
    ring = Ring()
    ring.itself = ring
    return weakref.ref(ring)

with loading():
    assert not gc.isenabled()
    import torch
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 100_000
with loading():  # everything is there
    assert gc.isenabled()
assert gc.get_freeze_count() == frozen
later = dropped()
gc.collect()
assert later() is None
"""
    told(program, tmp_path)


def test_who_collects_nothing_goes_on_collecting_nothing(tmp_path: Path) -> None:
    program = """
import gc
from sordino.branches import loading
gc.disable()
with loading():
    pass
print(gc.isenabled(), gc.get_freeze_count())
"""
    assert told(program, tmp_path) == "False 0\n"


@pytest.mark.slow
def test_a_run_with_exact_accounts_asks_no_other_accountant(tmp_path: Path) -> None:
    program = """
import sys
sys.argv = ["sordino", "run", "rounds=1", "--quiet", "--out", "run"]
from sordino.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
print({"dp_accounting", "scipy.stats", "scipy.signal", "sklearn", "pandas", "matplotlib"} & set(sys.modules))
"""
    assert told(program, tmp_path) == "set()\n"


@pytest.mark.slow
def test_a_verb_that_is_built_alone_is_the_one_of_the_whole_command() -> None:
    whole = get_command(app)
    assert isinstance(whole, TyperGroup)
    for name, verb in whole.commands.items():
        alone = get_command(only(name))
        assert isinstance(alone, TyperGroup)
        assert list(alone.commands) == [name]
        assert [p.opts for p in alone.commands[name].params] == [p.opts for p in verb.params]
        helped, asked = (CliRunner().invoke(verbs, [name, "--help"]) for verbs in (app, only(name)))
        assert (helped.output, helped.exit_code) == (asked.output, asked.exit_code)


def test_a_word_that_is_no_verb_is_looked_for_among_all() -> None:
    assert all(only(word) is app for word in ("", "nonsense", "--help", "--version"))


@pytest.mark.slow
def test_a_command_hardly_collects(tmp_path: Path) -> None:
    """Of what it loads nearly all stays."""
    program = """
import gc, sys
from sordino.cli import main
before = gc.get_stats()[0]["collections"]
sys.argv = ["sordino", "--version"]
try:
    main()
except SystemExit:
    print(gc.get_stats()[0]["collections"] - before)
"""
    assert int(told(program, tmp_path).split()[-1]) < 20


@pytest.mark.slow
@pytest.mark.parametrize(("words", "library"), [("rounds=1", "torch"), ("--epsilon 3", "scipy")])
def test_a_plan_loads_its_libraries_without_collecting(words: str, library: str, tmp_path: Path) -> None:
    program = f"""
import gc, sys
from sordino.cli import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "{library}":
            print("collects", gc.isenabled())

sys.meta_path.insert(0, Watch())
sys.argv = ["sordino", "privacy", "plan", *"{words}".split()]
main()
"""
    assert [line for line in told(program, tmp_path).splitlines() if "collects" in line] == ["collects False"]


@pytest.mark.slow
def test_a_command_leaves_nothing_to_look_at_when_it_ends(tmp_path: Path) -> None:
    program = """
import atexit, gc, sys
from sordino.cli import main
atexit.register(lambda: print(len(gc.get_objects()) < 1000 < gc.get_freeze_count()))
sys.argv = ["sordino", "--version"]
main()
"""
    assert told(program, tmp_path).split()[-1] == "True"


@pytest.mark.slow
def test_a_listing_loads_no_numpy(tmp_path: Path) -> None:
    program = """
import sys
from sordino.cli.program import app
app(["list", "."], standalone_mode=False)
print("numpy" in sys.modules)
"""
    assert told(program, tmp_path).split()[-1] == "False"


@pytest.mark.slow
def test_a_listing_parses_the_experiment_of_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the receipt is compared with the ledger, whose place the experiment names."""
    from sordino.config import reading
    from sordino.runs.listing import listed
    from sordino.runs.run import start
    from tests.laws.cases import BY_NAME

    for name in ("a", "b"):
        start(BY_NAME["fedavg"].experiment(), tmp_path / name)
    seen: list[str] = []
    loads = reading.tomllib.loads
    monkeypatch.setattr(reading.tomllib, "loads", lambda text: (seen.append(text), loads(text))[1])
    assert [one.state for one in listed(tmp_path)] == ["finished", "finished"]
    assert len(seen) == 2
