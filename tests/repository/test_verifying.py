"""A receipt stands alone: verifying it loads what declares and prices, and nothing that trains, reads data or serves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import sordino

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import house  # noqa: E402
import house_size  # noqa: E402

ROOMS = {"accounting", "algorithms", "budget", "config", "ledger", "planning", "privacy", "receipts", "sampling"}
# of other rooms: lazy matrices that types name, what a task and a label declare
FILES = {"data/label_kinds.py", "fast/factored.py", "tasks/personalise.py"}
SHARED = ["branches", "device", "errors", "keys", "tree", "types", "user_code", "version"]
MOST = 12_000  # lines of code
HEAVY = "torch", "pyarrow", "PIL", "grpc", "matplotlib", "tenseal", "dp_accounting", "scipy.stats"
# the command, as it is given; then all that is loaded when it is done
COMMAND = """
import sys
from sordino.cli import main
sys.argv = ["sordino", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    print(*sys.modules, sep="\\n")
    raise
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"rounds": 1, "partition": {"scheme": "iid", "clients": 2}, "data": {"train": 80, "test": 40}}
    private = {"algorithm": {"name": "gaussian_gdp", "clip": 1.0}, "privacy": {"epsilon": 8.0, "delta": 1e-3}}
    folder = tmp_path_factory.mktemp("verified") / "run"
    sordino.run(small | private, out=folder)
    return folder


def strangers(files: Iterable[Path]) -> list[str]:
    """Files of the package that a reader of a receipt has no use for."""
    names = (file.relative_to(house.PACKAGE) for file in files)
    return sorted(
        name.as_posix()
        for name in names
        if name.parts[0] not in ROOMS
        and name.as_posix() not in FILES
        and not (len(name.parts) == 1 and name.stem in (*SHARED, "__init__"))
        and name.name != "__init__.py"
    )


@pytest.mark.slow
def test_verifying_loads_what_declares_and_prices(run: Path) -> None:
    loaded = house_size.verified(run)
    assert house.PACKAGE / "accounting" / "accountants.py" in loaded
    assert strangers(loaded) == []
    assert {file.relative_to(house.PACKAGE).as_posix() for file in loaded} >= FILES  # the list allows no more
    assert sum(map(house_size.code_lines, loaded)) <= MOST


@pytest.mark.slow
def test_one_algorithm_is_loaded_by_its_name(run: Path) -> None:
    loaded = {file.stem for file in house_size.verified(run) if file.parent.name == "algorithms"}
    assert "client_noise" in loaded
    assert not loaded & {"scaffold", "moon", "pfl_dyn", "ditto", "udp"}


@pytest.mark.parametrize("name", ["engine/server.py", "data/images.py", "sites/serve.py", "tasks/nets.py", "round.py"])
def test_what_trains_reads_or_serves_is_noticed(name: str) -> None:
    """The negative control."""
    assert (house.PACKAGE / name).is_file()
    assert strangers([house.PACKAGE / name]) == [name]


@pytest.mark.slow
def test_the_command_loads_no_library_that_trains_or_draws(run: Path) -> None:
    asked = [sys.executable, "-c", COMMAND, "privacy", "verify", str(run)]
    ended = subprocess.run(asked, check=True, capture_output=True, text=True)
    assert "The receipt holds" in ended.stdout
    loaded = set(ended.stdout.splitlines())
    assert "numpy" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("report",), ("show",), ("privacy", "spent")])
def test_verbs_that_only_look_load_no_torch(run: Path, words: tuple[str, ...]) -> None:
    asked = [sys.executable, "-c", COMMAND, *words, str(run)]
    ended = subprocess.run(asked, check=True, capture_output=True, text=True)
    assert "torch" not in ended.stdout.splitlines()
