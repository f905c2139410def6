"""Candidates in a run: what [candidates] permits, what is kept where, what the run folder says of them, and who learns
what.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sordino import config
from sordino.data.dataset import Candidates, ImageNeeds, cache_folder
from sordino.errors import SordinoError
from sordino.runs.backend import ServerData
from sordino.runs.simulation import simulated
from sordino.synthesis.public_images import SOURCES
from sordino.synthesis.public_images.store import gathered
from tests.helpers.command_line import Said
from tests.helpers.slaug_runs import FILE
from tests.synthesis.public_images.chatting import Server, chat, serving

Cli = Callable[..., Said]
CHAT = 'candidates={{source="procedural", per_class=6, prompts={{name="openai_chat", base_url="{}", model="tiny"}}}}'


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serving()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment in a folder of its own, and a user whose caches lie there."""
    (tmp_path / "slaug.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for name in ("SORDINO_CACHE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    return tmp_path


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that this process has connected to."""
    found: list[Any] = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        found.append(address)
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    return found


@dataclass(frozen=True)
class Spy:
    """A source that notes what is wanted of it."""

    tone: int = 7
    label: ClassVar[str] = "spied"
    pool: ClassVar[float] = 0.0
    seen: ClassVar[list[ImageNeeds]] = []

    def build(self, wanted: ImageNeeds) -> Candidates:
        self.seen.append(wanted)
        images = [np.full((wanted.per_class, *wanted.shape), self.tone, np.uint8) for _ in wanted.classes]
        return gathered("spy", self.label, wanted, images)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[ImageNeeds]:
    monkeypatch.setitem(SOURCES, "spy", Spy)
    Spy.seen.clear()
    return Spy.seen


def held(candidates: Any, **more: Any) -> ServerData:
    return simulated(config.validate({"privacy": {}, "candidates": candidates, **more})).home


# what the table says --------------------------------------------------------------------------------------------------


def test_the_table_and_the_engine_reach_the_source(spy: list[ImageNeeds], here: Path) -> None:
    _ = held({"source": "spy"}).drawn
    _ = held({"source": "spy", "per_class": 3, "network": True, "tone": 9}, engine={"cache": str(here / "mine")}).drawn
    assert [(w.per_class, w.network, w.cache) for w in spy] == [
        (200, False, here / "kept" / "sordino" / "candidates"),
        (3, True, here / "mine"),
    ]


def test_where_it_is_kept_is_no_part_of_the_experiment_but_the_network_is() -> None:
    plain = held({"source": "procedural"}).whole.experiment
    elsewhere = held({"source": "procedural"}, engine={"cache": "elsewhere"}).whole.experiment
    assert elsewhere.digest() == plain.digest()
    assert held({"source": "procedural", "network": True}).whole.experiment.digest() != plain.digest()


def test_the_users_own_cache_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("given") == Path("given")
    assert cache_folder("~/given") == Path.home() / "given"
    assert cache_folder(None, "candidates") == here / "kept" / "sordino" / "candidates"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(None, "candidates") == Path.home() / ".cache" / "sordino" / "candidates"
    monkeypatch.setenv("SORDINO_CACHE", str(here / "own"))
    assert cache_folder(None, "candidates") == here / "own" / "candidates"


@pytest.mark.parametrize(
    ("table", "code", "says"),
    [
        ({"source": "procedual"}, "unknown-choice", "did you mean 'procedural'"),
        ({"per_class": 3}, "unknown-choice", "public_split, sklearn_digits"),
        ({"source": "procedural", "netwrok": True}, "unknown-key", "did you mean 'network'"),
        ({"source": "procedural", "bad_fracton": 0.1}, "unknown-key", "did you mean 'bad_fraction'"),
        ({"source": "folder", "path": "x", "bad_fraction": 0.1}, "unknown-key", "one of: source, per_class"),
        ({"source": "procedural", "network": "yes"}, "wrong-type", "network = 'yes'"),
        ({"source": "procedural", "per_class": "many"}, "wrong-type", "per_class = 'many'"),
        ({"source": "procedural", "per_class": 0}, "out-of-range", "per_class is 0"),
        ({"source": "folder"}, "wrong-type", "folder needs path"),
        ({"source": "folder", "path": "nowhere"}, "missing-candidate-folder", "nowhere"),
    ],
)
def test_a_table_that_cannot_be_is_refused(table: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(SordinoError) as refused:
        _ = held(table).drawn
    assert refused.value.code == code
    assert says in str(refused.value)


def test_only_images_have_candidates() -> None:
    with pytest.raises(SordinoError) as refused:
        _ = held({"source": "procedural"}, data={"source": "synthetic", "clients": 3}).drawn
    assert refused.value.code == "candidates-are-images"


# what is kept ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("source", ["procedural", "public_split", "sklearn_digits"])
def test_what_costs_nothing_is_not_kept_and_asks_nobody(source: str, here: Path) -> None:
    made = held({"source": source, "per_class": 3}, data={"source": "digits"}).drawn
    assert made is not None
    assert len(made.y) == 30
    assert not (here / "kept").exists()


def test_phases_share_one_set(spy: list[ImageNeeds]) -> None:
    table = {"source": "spy", "per_class": 5}
    algorithm = {"name": "slaug_fl", "probe": "candidates"}
    parts = simulated(config.validate({"candidates": table, "algorithm": algorithm, "model": {"name": "cnn_norm"}}))
    first, second = parts.preparation  # made before anything is drawn
    assert first.home.story is None
    assert first.home.drawn is second.home.drawn is parts.home.drawn is not None
    assert len(spy) == 1
    assert parts.home.story is not None
    assert parts.home.story["seconds"] >= 0


# in a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chat_server_of_this_machine_writes_the_prompts_of_a_run(
    server: Server, called: list[Any], cli: Cli, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """End to end, the network off: nobody but it is asked, the result says who was told, and a second run asks nobody."""
    server.answers = [(429, {"Retry-After": "0"}, b"")]
    server.answers += [(200, {}, chat(content=json.dumps([f"a bold picture, number {n}" for n in range(6)])))]
    words = ("run", "slaug.toml", CHAT.format(server.url), "engine.cache=prompts")
    said = cli(*words, "--out", "first")
    assert said.code == 0, said.err
    assert "the class name '7' is disclosed to 127.0.0.1" in caplog.text
    assert len(server.heard) == 1 + 10
    assert set(called) == {("127.0.0.1", server.server_port)}
    told = json.loads((here / "first" / "candidates.json").read_text())
    assert told["prompts"] == {"openai_chat": 60}
    assert told["calls"] == 10
    assert told["class_names_disclosed_to"] == ["127.0.0.1"]
    assert told["counts"] == {str(digit): 6 for digit in range(10)}
    note = "the names of the classes were disclosed to 127.0.0.1, which wrote prompts"
    assert note in (here / "first" / "log.txt").read_text()
    kept = sorted(path for path in (here / "prompts").rglob("*") if path.is_file())
    assert len(kept) == 10
    assert not (here / "kept").exists()

    called.clear()
    again = simulated(config.load(here / "first" / "experiment.toml")).home.drawn  # from the cache
    assert called == []
    assert again is not None
    assert again.manifest["prompts"] == told["prompts"]
    assert (again.manifest["calls"], again.manifest["class_names_disclosed_to"]) == (0, ["127.0.0.1"])
    shutil.rmtree(here / "prompts")
    assert cli("report", "first").code == 0
    assert called == []  # nor does a page ask again what was said


BAD: dict[str, tuple[list[tuple[int, dict[str, str], bytes]], str, int, str]] = {
    "denied": ([(401, {}, b"")], "", 2, "chat-denied"),
    "busy": ([(429, {"Retry-After": "0"}, b"slow down")], ", retries=1", 2, "chat-busy"),
    "nonsense": ([(200, {}, chat(content="Cats are nice."))], "", 3, "chat-nonsense"),
    "no protocol": ([(200, {}, b"<html>")], "", 7, "chat-protocol"),
    "silent": ([(200, {}, b"")], ", timeout=0.05", 2, "chat-timeout"),
}


@pytest.mark.one_fast
@pytest.mark.parametrize(("answers", "more", "exit", "code"), BAD.values(), ids=BAD.keys())
def test_a_bad_chat_server_stops_a_run_before_it_begins(
    answers: list[Any], more: str, exit: int, code: str, server: Server, cli: Cli, here: Path
) -> None:
    server.answers, server.slow = answers, 0.2 if "timeout" in more else 0.0
    table = CHAT.format(server.url).replace('"tiny"', f'"tiny"{more}')
    refused(cli("run", "slaug.toml", table, "--out", "run"), exit, code, here)


def test_a_chat_server_that_is_not_there_stops_a_run_before_it_begins(cli: Cli, here: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        refused(cli("run", "slaug.toml", CHAT.format(url), "--out", "run"), 2, "chat-unreachable", here)


def refused(said: Said, exit: int, code: str, here: Path) -> None:
    """In words, and nothing is left: no run folder, none half-made, nothing in a cache."""
    assert said.code == exit, said.err
    assert f"({code})" in said.err
    assert "Traceback" not in said.err
    assert [path.name for path in here.iterdir()] == ["slaug.toml"]


@pytest.mark.slow
def test_another_machine_is_asked_only_where_the_table_says_so(
    cli: Cli, here: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def unknown(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror("a name that nobody has")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    table = CHAT.format("https://chat.example/v1")
    refused(cli("run", "slaug.toml", table, "--out", "run"), 2, "network-off", here)
    assert asked == []
    said = cli("run", "slaug.toml", table, "candidates.network=true", "--out", "run")
    refused(said, 2, "chat-unreachable", here)
    assert "disclosed to chat.example" in caplog.text
    assert (asked, called) == (["chat.example"], [])


@pytest.mark.slow
def test_a_run_says_once_how_its_candidates_were_made(cli: Cli, here: Path, called: list[Any]) -> None:
    assert cli("run", "slaug.toml", "--out", "run").code == 0
    place = here / "run" / "candidates.json"
    told = json.loads(place.read_text())
    assert told["source"] == "procedural"
    assert told["class_names_disclosed_to"] == []
    place.write_text("as it was")  # nobody writes it again, though the report draws the candidates anew
    assert cli("report", "run").code == 0
    assert cli("resume", "run").code == 0
    assert place.read_text() == "as it was"
    assert called == []
    assert not (here / "kept").exists()


@pytest.mark.slow
def test_a_run_that_needs_none_draws_none(spy: list[ImageNeeds], cli: Cli, here: Path) -> None:
    words = ('candidates={source="spy"}', 'algorithm={name="fedavg"}', "--out", "run")
    assert cli("run", "slaug.toml", *words).code == 0
    assert spy == []
    assert not (here / "run" / "candidates.json").exists()


@pytest.mark.slow
def test_what_is_over_needs_no_candidates(spy: list[ImageNeeds], cli: Cli) -> None:
    words = ('candidates={source="spy", per_class=6}', "algorithm.variant=pooled", "--out", "run")
    assert cli("run", "slaug.toml", *words).code == 0
    assert cli("resume", "run").code == 0
    assert len(spy) == 1


def test_the_spy_is_a_source_like_the_others() -> None:
    assert config.build({"source": "spy"}, SOURCES | {"spy": Spy}, "candidates", "source") == Spy()
