"""Damaged run folders: whatever lies in a file of a run, every verb says in a line or two what is wrong and what to do,
or is not concerned. Never a traceback."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino import errors
from sordino.config import load
from sordino.runs.play import Progress
from sordino.runs.run import start
from tests.helpers.command_line import Said
from tests.helpers.prepared_runs import tiny

slow = pytest.mark.slow
Cli = Callable[..., Said]
SMALL = ("rounds=3", "partition=iid", "partition.clients=3", "evaluation.final=1", "model=logistic")
VERBS: dict[str, tuple[str, ...]] = {
    "resume": ("resume", "RUN", "-q"),
    "report": ("report", "RUN"),
    "watch": ("watch", "RUN", "--once"),
    "show": ("show", "RUN"),
    "list": ("list", "PLACE"),
    "spent": ("privacy", "spent", "RUN", "--by-client"),
    "verify": ("privacy", "verify", "RUN"),
}
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "a number": b"3",
    "a text": b'"text"',
    "a list": b"[]",
    "a list of numbers": b"[1, 2]\n",
    "a table": b"{}\n",
    "another table": b'{"round": "first", "run": 5, "guarantees": [{}], "budget": 3, "started": [], "rounds": {}}\n',
    "no text": bytes(range(256)),
    "deep": b"[" * 100_000,
    "a huge number": b"9" * 5000,
    "lines": b"\n\n\n",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that was stopped after its second round."""
    place = tmp_path_factory.mktemp("runs")
    start(load(None, SMALL), place / "finished" / "run")

    def stop(step: Progress) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    start(load(None, SMALL), place / "stopped" / "run", stop)
    return {kind: place / kind for kind in ("finished", "stopped")}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run with phases before its training, and one whose noise is real."""
    place = tmp_path_factory.mktemp("runs")
    start(tiny(), place / "prepared" / "run")
    real = ("algorithm=dp_sgd", "privacy.noise=system", "privacy.epsilon=8.0")
    start(load(None, (*SMALL, *real)), place / "real" / "run")
    return {kind: place / kind for kind in ("prepared", "real")}


def files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def harms(path: Path, rng: random.Random) -> dict[str, Callable[[Path], None]]:
    data = path.read_bytes()

    def flip(target: Path) -> None:
        changed = bytearray(data or b"x")
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        target.write_bytes(bytes(changed))

    def folder(target: Path) -> None:
        target.unlink()
        target.mkdir()

    def loop(target: Path) -> None:
        target.unlink()
        target.symlink_to(target.name)

    return {
        "gone": Path.unlink,
        "a folder": folder,
        "a loop": loop,
        "cut": lambda target: target.write_bytes(data[: len(data) // 2]),
        "zeros": lambda target: target.write_bytes(bytes(len(data))),
        "smaller": lambda target: target.write_bytes(re.sub(rb'"epsilon": [0-9.]+', b'"epsilon": 0.1', data)),
        "cut by a byte": lambda target: target.write_bytes(data[:-1]),
        "flipped": flip,
        **{name: lambda target, text=text: target.write_bytes(text) for name, text in TEXTS.items()},
        **{f"changed {i}": lambda target: target.write_bytes(changed(data, rng)) for i in range(6)},
    }


VALUES: list[Any] = [None, True, -1, 3, 1e308, "text", [], {}, [1], {"a": 1}, float("nan"), 10**30]


def changed(data: bytes, rng: random.Random) -> bytes:
    """JSON, or lines of it, in which one value somewhere is another one, or missing."""
    try:
        lines = [json.loads(line) for line in data.decode().splitlines()]
    except ValueError:
        try:
            lines = [json.loads(data)]
        except ValueError:
            return data[::-1]
    if not lines:
        return b"x"
    _change(lines[rng.randrange(len(lines))], rng)
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _change(value: Any, rng: random.Random) -> None:
    if not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = rng.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
        _change(value[key], rng)
    elif isinstance(value, dict) and rng.random() < 0.2:
        del value[key]
    else:
        value[key] = rng.choice(VALUES)


MOST = 700  # cases of one test: a fair part, another one for every seed
CODES = {0, 1, 130, *(kind.exit_code for kind in errors.SordinoError.__subclasses__())}


def tried(verb: str, place: Path, cli: Cli) -> None:
    said = cli(*(str({"RUN": place / "run", "PLACE": place}.get(word, word)) for word in VERBS[verb]))
    assert said.code in CODES
    assert said.code != 1 or verb == "watch", said.err  # where it means that the run was killed
    assert "Traceback" not in said.err
    assert said.code in (0, 1, 130) or "error" in said.err or "does not hold" in said.err


def all_cases(whole: dict[str, Path], seed: int) -> Iterator[tuple[str, str, str, str]]:
    for kind, place in whole.items():
        for name in files(place / "run"):
            for harm in harms(place / "run" / name, random.Random(seed)):
                for verb in VERBS:
                    yield kind, name, harm, verb


def torture(case: tuple[str, str, str, str], whole: dict[str, Path], scratch: Path, cli: Cli, seed: int) -> None:
    kind, name, harm, verb = case
    place = Path(shutil.copytree(whole[kind], scratch / "place"))
    try:
        harms(whole[kind] / "run" / name, random.Random(f"{seed} {case}"))[harm](place / "run" / name)
        tried(verb, place, cli)
    finally:
        shutil.rmtree(place)


SAMPLE = [  # file, harm, verb, exit code, what is said
    ("metrics.jsonl", "a list of numbers", "show", 6, "metrics.jsonl is damaged"),
    ("metrics.jsonl", "another table", "report", 6, "round: Input should be a valid integer"),
    ("metrics.jsonl", "no text", "watch", 6, "from a copy"),
    ("metrics.jsonl", "no text", "list", 0, "damaged"),
    ("metrics.jsonl", "zeros", "list", 0, "damaged"),
    ("metrics.jsonl", "zeros", "show", 6, "full of zeros"),
    ("metrics.jsonl", "zeros", "report", 6, "full of zeros"),
    ("metrics.jsonl", "zeros", "watch", 6, "full of zeros"),
    ("metrics.jsonl", "cut", "list", 0, "damaged"),
    ("metrics.jsonl", "cut", "show", 6, "there is a checkpoint of round"),
    ("metrics.jsonl", "gone", "report", 6, "there is a checkpoint of round"),
    ("privacy.json", "smaller", "show", 5, "its ledger has sealed another one"),
    ("privacy.json", "smaller", "list", 0, "does not hold"),
    ("privacy.json", "smaller", "report", 5, "its ledger has sealed another one"),
    ("privacy.json", "smaller", "watch", 5, "its ledger has sealed another one"),
    ("metrics.jsonl", "cut", "resume", 6, "but the checkpoint says"),
    ("metrics.jsonl", "gone", "resume", 6, "it has 0 bytes"),
    ("environment.json", "null", "resume", 6, "environment.json is damaged"),
    ("environment.json", "a folder", "spent", 6, "it has no environment.json"),
    ("environment.json", "cut", "verify", 6, "environment.json is damaged"),
    ("environment.json", "a text", "watch", 6, "from a copy"),
    ("environment.json", "a huge number", "report", 6, "environment.json is damaged"),
    ("environment.json", "gone", "list", 0, "it has no environment.json"),
    ("experiment.toml", "empty", "list", 0, "run"),
    ("experiment.toml", "gone", "show", 6, "it has no experiment.toml"),
    ("experiment.toml", "no text", "resume", 2, "unreadable-file"),
    ("privacy.json", "a table", "show", 6, "format: Field required"),
    ("privacy.json", "a number", "list", 0, "damaged"),
    ("privacy.json", "deep", "verify", 6, "no readable receipt"),
    ("privacy.json", "another table", "watch", 6, "`sordino privacy spent"),
    ("privacy.json", "gone", "show", 6, "it is written when a run ends"),
    ("ledger.sqlite", "a loop", "resume", 5, "ledger-damaged"),
    ("ledger.sqlite", "cut", "verify", 5, "ledger-damaged"),
    ("log.txt", "no text", "watch", 0, "finished"),
    ("checkpoints/round-000003.ckpt", "flipped", "resume", 6, "--fallback"),
]


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "harm", "verb", "code", "said"), SAMPLE)
def test_a_damaged_run_is_told_in_a_line_with_what_to_do(
    name: str, harm: str, verb: str, code: int, said: str, whole: dict[str, Path], tmp_path: Path, cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "400")
    place = Path(shutil.copytree(whole["finished"], tmp_path / "place"))
    path = place / "run" / name
    harms(path, random.Random(3))[harm](path)
    found = cli(*(str({"RUN": place / "run", "PLACE": place}.get(word, word)) for word in VERBS[verb]))
    assert (found.code, said in found.out + found.err) == (code, True), found
    assert "Traceback" not in found.err


@pytest.mark.slow
def test_what_is_whole_is_no_damage(whole: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    """The negative control, before anything resumes the stopped one."""
    for kind, place in whole.items():
        copy = Path(shutil.copytree(place, tmp_path / kind))
        assert [cli(*({"RUN": copy / "run", "PLACE": copy}.get(w, w) for w in VERBS[verb])).code for verb in VERBS] == [
            0
        ] * len(VERBS)


@slow
@pytest.mark.parametrize(("runs", "seed"), [("whole", 0), ("prepared", 2)])
def test_every_harm_to_every_file_is_told_by_every_verb(
    runs: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path, cli: Cli
) -> None:
    failed, places = [], request.getfixturevalue(runs)
    cases = list(all_cases(places, seed))
    for case in random.Random(seed).sample(cases, min(len(cases), MOST)):
        try:
            torture(case, places, tmp_path, cli, seed)
        except Exception as error:  # every case is tried, then all that went wrong is told
            failed.append((case, repr(error)[:300]))
    assert not failed, "\n".join(map(str, failed))
