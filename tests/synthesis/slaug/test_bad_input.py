"""SlaugFL as a newcomer may set it up wrongly, through the command line: refused in words before anything exists, or
declined as documented.

Sources of candidates by themselves are in tests/candidates, image folders in test_folders.py, what a chat server may
answer in candidates/test_wiring.py.
"""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from sordino import config
from sordino.algorithms.phases import Phased
from sordino.errors import ConfigError
from sordino.runs.population import Population
from tests.helpers.command_line import Said
from tests.helpers.slaug_runs import FILE

Cli = Callable[..., Said]
TINY = ("data.train=30", "data.probe=1", 'partition={scheme="iid", clients=10}')  # three images each


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slaug.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "kept"))
    return tmp_path


def image(place: Path, level: int = 0) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    levels = np.random.default_rng(level).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(levels).save(place)


def candidates_of_all_but_one() -> None:
    for digit in range(9):
        image(Path(f"drawn/{digit}/a.png"), digit)


def candidates_with_an_empty_class() -> None:
    candidates_of_all_but_one()
    Path("drawn/9").mkdir()


def a_corrupt_candidate() -> None:
    candidates_of_all_but_one()
    Path("drawn/9").mkdir()
    Path("drawn/9/a.png").write_bytes(b"no image")


def an_empty_folder() -> None:
    Path("drawn").mkdir()


def photographs() -> None:
    for name in "ab":
        for number in range(20):
            image(Path(f"taken/train/{name}/{number}.png"), number)


def a_corrupt_photograph() -> None:
    photographs()
    Path("taken/train/b/7.png").write_bytes(b"no image")


def a_class_without_tests() -> None:
    photographs()
    image(Path("taken/test/a/1.png"))


def a_class_without_photographs() -> None:
    photographs()
    Path("taken/train/c").mkdir()


def another_network() -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, "public.safetensors")


def no_safetensors() -> None:
    Path("public.safetensors").write_text("hello")


class Wrong(NamedTuple):
    words: tuple[str, ...]
    exit: int
    code: str
    says: str = ""
    before: Callable[[], None] | None = None


FOLDER = ('candidates={source="folder", path="drawn"}',)
TAKEN = ('data={source="folder", path="taken", side=8, probe=2}',)
POOLED = ("algorithm.variant=pooled", "algorithm.extractor=public.safetensors")
PRIVATE = ("algorithm.variant=rigorous_b", "algorithm.rate=0.3", "privacy.delta=1e-4")
WRONG: dict[str, Wrong] = {
    "an unknown source": Wrong(('candidates={source="procedual"}',), 2, "unknown-choice", "did you mean 'procedural'"),
    "no source": Wrong(("candidates={per_class=3}",), 2, "unknown-choice", "one of: public_split"),
    "a key that the source does not take": Wrong(("candidates.shift=1.0",), 2, "unknown-key", "no key 'shift'"),
    "no candidates": Wrong(("algorithm.scenario=1", "candidates={}"), 2, "unknown-choice"),
    "a folder that is not there": Wrong(FOLDER, 3, "missing-candidate-folder", "drawn"),
    "an empty folder": Wrong(FOLDER, 3, "class-without-candidates", "put images into drawn/0", an_empty_folder),
    "a class without candidates": Wrong(FOLDER, 3, "class-without-candidates", "'9'", candidates_of_all_but_one),
    "a class of no files": Wrong(FOLDER, 3, "class-without-candidates", "drawn/9", candidates_with_an_empty_class),
    "a corrupt candidate": Wrong(FOLDER, 3, "corrupt-image", "drawn/9/a.png", a_corrupt_candidate),
    "a class that ImageNet has not": Wrong(('candidates={source="biggan", path="nowhere"}',), 2, "no-imagenet-id"),
    "digits for photographs": Wrong(
        (*TAKEN, 'candidates={source="sklearn_digits"}'), 2, "class-without-candidates", "cannot draw a", photographs
    ),
    "a corrupt photograph": Wrong(TAKEN, 3, "corrupt-image", "taken/train/b/7.png", a_corrupt_photograph),
    "a class without tests": Wrong(TAKEN, 3, "class-folders-differ", "b", a_class_without_tests),
    "a class without photographs": Wrong(TAKEN, 3, "empty-class-folder", "c", a_class_without_photographs),
    "no photographs": Wrong(TAKEN, 3, "missing-image-folder", "taken"),
    "a class without a device": Wrong(
        ('partition={scheme="classes", clients=3, k=2}',), 3, "unheld-class", "no client holds class 4"
    ),
    "prototypes of nobody": Wrong((*TINY, "algorithm.scenario=2"), 2, "nobody-holds-back", "at least 4"),
    "a probe of nothing": Wrong(("data.probe=0",), 3, "bad-reserve", "data.probe = 0"),
    "a negative probe": Wrong(("data.probe=-3",), 3, "bad-reserve", "data.probe = -3"),
    "a probe of all": Wrong(("data.probe=1.0",), 3, "bad-reserve", "a share of each class"),
    "a negative share": Wrong(("data.probe=-0.1",), 3, "bad-reserve"),
    "a probe of more than there is": Wrong(("data.probe=500",), 3, "class-too-small", "class 0 of digits"),
    "a share that leaves nobody any": Wrong(("data.probe=0.9999",), 3, "class-too-small", "clients need at least one"),
    "a probe in words": Wrong(("data.probe=half",), 2, "wrong-type", "data.probe = 'half'"),
    "no extractor": Wrong(POOLED, 2, "no-extractor", "public.safetensors"),
    "an extractor that is none": Wrong(POOLED, 2, "no-extractor", "public.safetensors", no_safetensors),
    "an extractor of other shapes": Wrong(POOLED, 2, "extractor-does-not-fit", "same [model]", another_network),
    "nothing to keep": Wrong(("algorithm.keep=0",), 2, "out-of-range", "keep is 0"),
    "no temperature": Wrong(("algorithm.temperature=0.0",), 2, "out-of-range", "algorithm.temperature is 0.0"),
    "a negative weight": Wrong(("algorithm.separation=-1.0",), 2, "out-of-range", "algorithm.separation is -1.0"),
    "no drawn image": Wrong(("algorithm.count=0",), 2, "out-of-range", "algorithm.count is 0"),
    "no distance": Wrong(("algorithm.threshold=0.0",), 2, "out-of-range", "threshold is 0.0"),
    "rows of a table": Wrong(
        ('data={source="synthetic"}', "model=logistic", "partition=natural"), 2, "nothing-to-draw"
    ),
    "a budget of nothing": Wrong((*PRIVATE, "privacy.epsilon=0"), 4, "epsilon-not-positive"),
    "a budget too small": Wrong((*PRIVATE, "privacy.epsilon=0.001"), 4, "budget-below-conversion", "cannot reach"),
    "no budget": Wrong(PRIVATE, 4, "mechanism-without-budget"),
    "a preparation that spends everything": Wrong(
        (*PRIVATE, "privacy.epsilon=4", "algorithm.share=1.0"), 2, "shares-out-of-range"
    ),
    "prototypes without candidates": Wrong(
        ('algorithm={name="fedavg_prototypes"}', *FOLDER), 3, "missing-candidate-folder"
    ),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_it_is_refused_in_words_and_nothing_is_left(wrong: Wrong, cli: Cli, here: Path) -> None:
    if wrong.before is not None:
        wrong.before()
    before = sorted(here.rglob("*"))
    said = cli("run", "slaug.toml", *wrong.words, "--out", "run")
    refused(said, wrong)
    left = [path for path in here.rglob("*") if path not in before and path != here / "kept"]
    # no run folder, none half-made, nothing in the cache but whole splits of decoded photographs (test_folders.py)
    assert [path for path in left if path.suffix != ".u8"] == []


def refused(said: Said, wrong: Wrong) -> None:
    assert said.code == wrong.exit, said.err
    text = " ".join(said.err.split())
    assert f"({wrong.code})" in text
    assert wrong.says in text
    assert "Traceback" not in text
    assert len(said.err.splitlines()) <= 4


@pytest.mark.parametrize(
    ("without", "code", "says"),
    [
        ("probe = 2\n", "no-probe", "set data.probe = 50"),
        ('[candidates]\nsource = "procedural"\nper_class = 6\n', "no-candidates", "a [candidates] table"),
    ],
)
def test_what_is_left_out_is_named(without: str, code: str, says: str, cli: Cli, here: Path) -> None:
    assert without in FILE
    (here / "slaug.toml").write_text(FILE.replace(without, ""))
    refused(cli("run", "slaug.toml", "--out", "run"), Wrong((), 2, code, says))
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    "prompts", ['name="transformers", model="nowhere"', 'name="transformers", model="nobody/nothing"']
)
@pytest.mark.slow  # loads transformers
def test_a_model_that_is_not_there_is_not_asked_for(
    prompts: str, cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: called.append(address))
    said = cli("run", "slaug.toml", f'candidates={{source="procedural", prompts={{{prompts}}}}}', "--out", "run")
    refused(said, Wrong((), 2, "no-model"))
    assert not (here / "run").exists()
    assert called == []


@pytest.mark.parametrize(
    ("package", "table"),
    [
        ("diffusers", 'source="diffusers", model="m"'),
        ("transformers", 'source="procedural", prompts={name="transformers", model="m"}'),
    ],
)
def test_a_package_that_is_missing_is_named(
    package: str, table: str, cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = cli("run", "slaug.toml", f"candidates={{{table}}}", "--out", "run")
    refused(said, Wrong((), 2, "missing-diffusion-extra", "pip install 'sordino[diffusion]'"))
    assert not (here / "run").exists()


@pytest.mark.slow
def test_after_a_refusal_the_next_try_works_and_says_what_is_not_as_one_might_think(cli: Cli, here: Path) -> None:
    """More to keep than there is, and no validation images anywhere: all are kept, nobody has a prototype, and the run
    says so.
    """
    assert cli("run", "slaug.toml", *TINY, "algorithm.keep=0", "--out", "run").code == 2
    said = cli("run", "slaug.toml", *TINY, "algorithm.keep=50", "--out", "run")
    assert said.code == 0, said.err
    log = (here / "run" / "log.txt").read_text()
    assert "10 classes have fewer candidates than keep = 50 (at least 6): all of them are kept" in log
    assert "there are no prototypes, and candidates are taken at random" in log
    asked = [json.loads(line) for line in (here / "run" / "preparation.jsonl").read_text().splitlines()]
    declined = [row for row in asked if row["phase"] == "ask"]
    assert len(declined) >= 3  # as often as devices are ranked
    assert all(row["answered"] == row["active"] for row in declined)  # to decline is an answer


@pytest.mark.slow
def test_who_has_spent_its_budget_is_silent_and_the_run_says_so(cli: Cli, here: Path) -> None:
    """The second run of one ledger: nothing is released, and nothing is a traceback."""
    words = ("run", "slaug.toml", *PRIVATE, "privacy.epsilon=8", "privacy.ledger=all.sqlite")
    assert cli(*words, "--out", "first").code == 0
    assert cli(*words, "name=second", "--out", "second").code == 0  # another name is another run
    log = (here / "second" / "log.txt").read_text()
    assert "phase pool, round 1: nobody could take part" in log
    assert "nobody could take part, the model stays as it was" in log


def test_the_parts_of_a_budget_are_parts() -> None:
    for shares in ((0.0,), (1.0,), (0.5, 0.5), (-0.1, 0.3), (math.nan,)):
        with pytest.raises(ConfigError) as refusal:
            Phased((), None, shares)
        assert refusal.value.code == "shares-out-of-range"
    Phased((), None, (0.2, 0.7))
    Phased((), None)


def test_a_share_of_a_traffic_set_is_its_probe(here: Path) -> None:
    """As published for MIO-TCD, on eleven small classes: a tenth of each, a fifth of that to test, two in a hundred of
    the rest as a probe.
    """
    sizes = dict(zip("abcdefghijk", (20, 201, 30, 25, 600, 20, 20, 20, 20, 20, 20), strict=True))
    for name, size in sizes.items():
        image(here / "taken" / "train" / name / "0.png", size)
        content = (here / "taken" / "train" / name / "0.png").read_bytes()
        for number in range(1, size):
            (here / "taken" / "train" / name / f"{number}.png").write_bytes(content)
    data = {"source": "folder", "path": "taken", "side": 4, "fraction": 0.1, "at_least": 20, "probe": 0.02}
    held = Population(config.validate({"data": data, "privacy": {}}))
    drawn = np.array([max(math.ceil(size / 10), min(20, size)) for size in sizes.values()])
    tests = np.bincount(held.dataset.test.y)
    assert tests.tolist() == [round(n / 5) for n in drawn.tolist()]
    assert held.kept.probe is not None
    probed = np.bincount(held.kept.probe.y)
    assert probed.tolist() == [math.ceil(0.02 * n) for n in (drawn - tests).tolist()]
    assert (probed + tests + np.bincount(held.dataset.train.y) == drawn).all()
