"""Letters over the locked link between real processes: bytes, deaths, restarts, and replies that come three times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: .ci/flower runs these tests in an environment of its own")

from sordino.deploy.certificates import make, of_server, of_site
from sordino.errors import ConfigError, RunError
from sordino.letters.flower import node
from tests.helpers.flower_links import (
    HOST,
    SITES,
    address_of,
    answers,
    attending,
    echo,
    in_thread,
    link,
    link_process,
    papers,
    site_key,
    site_process,
    until,
)

pytestmark = pytest.mark.slow
SIZES = 1_000, 3_200_000, 32_000_000, 100_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    papers(tmp_path)
    return tmp_path


@pytest.fixture
def fleet(folder: Path) -> Iterator[Any]:
    with link(folder) as opened:
        yield opened


def test_letters_of_every_size_come_back_whole(fleet: Any, folder: Path) -> None:
    sites = [site_process(name, address_of(fleet), folder) for name in SITES]
    try:
        until(lambda: fleet.peers() == set(SITES))
        for size in SIZES:
            letter = os.urandom(size)
            one = answers(fleet, {fleet.send("a", lambda letter=letter: letter): letter})
            both = answers(fleet, {fleet.send(name, lambda letter=letter: letter): letter for name in SITES})
            print(f"{size} bytes: {one:.3f} s there and back, {both:.3f} s for two sites")
            assert one < 1 + size / 2e6
    finally:
        for site in sites:
            site.kill()


def test_a_letter_of_equal_parts_and_an_empty_one_come_back(fleet: Any, folder: Path) -> None:
    with in_thread(fleet, folder, a=echo):
        for letter in (b"", b"x", bytes(20_000_000)):
            answers(fleet, {fleet.send("a", lambda letter=letter: letter): letter})


def test_a_site_that_is_killed_and_started_again_gets_its_letter_again(fleet: Any, folder: Path) -> None:
    """Flower bars a node that was killed for a minute; here it is back as soon as its process is."""
    site = site_process("a", address_of(fleet), folder)
    until(lambda: "a" in fleet.peers())
    for _ in range(3):
        letters = [os.urandom(8_000_000) for _ in range(3)]
        wanted = {fleet.send("a", lambda letter=letter: letter): letter for letter in letters}
        time.sleep(0.15)  # while it takes or answers one of them
        site.send_signal(signal.SIGKILL)
        site.wait()
        begun = time.monotonic()
        site = site_process("a", address_of(fleet), folder)
        answers(fleet, wanted)
        print(f"{time.monotonic() - begun:.2f} s from the new process to the last answer")
        assert time.monotonic() - begun < 20
    site.kill()


def test_a_link_that_is_started_again_knows_its_sites(folder: Path) -> None:
    """Nothing of it was kept: what was asked is asked again by who has asked."""
    stop, letter = threading.Event(), os.urandom(5_000_000)
    with link(folder) as first:
        port = first.port
        site = threading.Thread(target=attending, args=("a", address_of(first), folder, echo, stop.is_set), daemon=True)
        site.start()
        until(lambda: "a" in first.peers())
        first.send("a", lambda: letter)
    for away in (0, 3):
        time.sleep(away)
        begun = time.monotonic()
        with link(folder, port) as again:
            answers(again, {again.send("a", lambda: letter): letter})
            print(f"{time.monotonic() - begun:.2f} s after {away} s without a link")
            if away:
                stop.set()
    site.join(30)
    assert not site.is_alive()


def test_a_link_that_is_killed_and_started_again_knows_its_sites(folder: Path) -> None:
    link, address = link_process(folder)
    site = site_process("a", address, folder)
    try:
        for _ in range(3):
            assert link.stdout is not None
            assert link.stdout.readline() == b"a\n"
            link.kill()
            link.wait()
            begun = time.monotonic()
            link, _ = link_process(folder, int(address.rpartition(":")[2]))
            assert link.stdout is not None
            assert link.stdout.readline() == b"a\n"
            print(f"{time.monotonic() - begun:.2f} s from the new process to the first answer")
        assert site.poll() is None
    finally:
        site.kill()
        link.kill()


def test_a_run_that_nobody_asked_about_for_a_minute_begins_anew(
    fleet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower ends its run when the server was silent for too long, such as a laptop that slept."""
    with in_thread(fleet, folder, a=echo):
        answers(fleet, {fleet.send("a", lambda: b"first"): b"first"})
        state = fleet._exchange.state
        state.finish_task(fleet._exchange._task, "failed", "")
        answers(fleet, {fleet.send("a", lambda: b"second"): b"second"})


def test_replies_that_come_three_times_count_once(fleet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push = node._push
    pushed = []

    def three_times(*told: Any) -> None:
        for _ in range(3):
            push(*told)
            pushed.append(told)

    monkeypatch.setattr(node, "_push", three_times)
    with in_thread(fleet, folder, a=echo):
        for size in (10, 6_000_000):
            letter = os.urandom(size)
            answers(fleet, {fleet.send("a", lambda letter=letter: letter): letter})
        assert fleet.came(0.5) == []
    assert len(pushed) == 6


@pytest.mark.parametrize("lost", ["PullMessages", "PullObject", "ConfirmMessageReceived", "PushMessages", "PushObject"])
def test_a_request_that_is_lost_costs_no_letter(
    fleet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The server has done what was asked, and its answer does not arrive: once for each kind of request."""
    client, whole = node.flower.FleetHttpClient, getattr(node.flower.FleetHttpClient, lost)
    broken = []

    def cut(self: Any, request: Any) -> Any:
        answer = whole(self, request)
        if not broken and (lost != "PullMessages" or answer.messages_list):
            broken.append(lost)
            raise node.flower.httpx.ReadError("cut")
        return answer

    monkeypatch.setattr(client, lost, cut)
    letter = os.urandom(6_000_000)
    with in_thread(fleet, folder, a=echo):
        answers(fleet, {fleet.send("a", lambda: letter): letter})
    assert broken == [lost]


def test_a_letter_that_is_cancelled_is_not_delivered(fleet: Any, folder: Path) -> None:
    heard: list[bytes] = []

    def slow(letter: bytes) -> bytes:
        heard.append(letter)
        time.sleep(0.5)
        return echo(letter)

    with in_thread(fleet, folder, a=slow):
        busy = fleet.send("a", lambda: b"0")
        gone = fleet.send("a", lambda: b"1")
        until(lambda: heard)
        fleet.cancel(gone)
        fleet.cancel(busy)  # it is at work: its answer is thrown away
        answers(fleet, {fleet.send("a", lambda: b"2"): b"2"})
    assert heard == [b"0", b"2"]


def test_an_error_in_writing_reaches_who_waits(fleet: Any, folder: Path) -> None:
    def broken() -> bytes:
        raise RunError("it cannot be written", code="broken")

    with in_thread(fleet, folder, a=echo):
        fleet.send("a", broken)
        with pytest.raises(RunError, match="cannot be written"):
            fleet.came(20)
        answers(fleet, {fleet.send("a", lambda: b"next"): b"next"})


def standing(fleet: Any, folder: Path, wanted: str, **told: Any) -> str:
    """What a site says of how it stands, once it stands like that; it is stopped then."""
    said: list[tuple[str, str]] = []

    def stop() -> bool:
        return any(how == wanted for how, _ in said)

    attending("a", address_of(fleet), folder, stop=stop, say=lambda *how: said.append(how), **told)
    return next(why for how, why in said if how == wanted)


def test_a_site_that_is_not_let_in_is_told(fleet: Any, folder: Path) -> None:
    assert "does not know this name" in standing(fleet, folder, "refused", key=site_key("thief"))
    assert "runs something else" in standing(fleet, folder, "refused", run="another")
    make(folder / "strangers", [HOST], ["a"], 1)
    foreign = of_site(folder / "strangers" / "a", "a")
    assert "CERTIFICATE_VERIFY_FAILED" in standing(fleet, folder, "cut off", tls=foreign)
    uncertified = replace(foreign, ca=folder / "both.pem")
    both = [(folder / "ca" / "ca.pem").read_text(), (folder / "strangers" / "ca.pem").read_text()]
    uncertified.ca.write_text("".join(both))
    assert standing(fleet, folder, "cut off", tls=uncertified)
    assert fleet.peers() == frozenset()


def test_a_site_that_is_revoked_is_away_and_gets_no_letter(folder: Path, fleet: Any) -> None:
    keys, heard = fleet._passes._keys, list[bytes]()

    def hear(letter: bytes) -> bytes:
        heard.append(letter)
        return echo(letter)

    with in_thread(fleet, folder, a=hear):
        answers(fleet, {fleet.send("a", lambda: b"before"): b"before"})
        gone = keys.pop("a")
        assert fleet.peers() == frozenset()
        fleet.send("a", lambda: b"after")
        assert fleet.came(1.0) == []
        keys["a"] = gone
        until(lambda: fleet.came(0.1))
    assert heard == [b"before", b"after"]


def test_a_list_that_cannot_be_read_allows_nobody(folder: Path, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise ConfigError("no list")

    with in_thread(fleet, folder, a=echo):
        monkeypatch.setattr(fleet._passes, "_keys", Unreadable())
        assert fleet.peers() == frozenset()
        assert "does not know" in standing(fleet, folder, "refused")


def test_a_site_that_is_killed_while_it_waits_is_gone_at_once(folder: Path, fleet: Any) -> None:
    site = site_process("a", address_of(fleet), folder)
    until(lambda: "a" in fleet.peers())
    time.sleep(0.5)
    site.kill()
    assert until(lambda: not fleet.peers()) < 1


def test_the_later_of_two_processes_of_a_site_goes_on(fleet: Any, folder: Path) -> None:
    said: list[tuple[str, str]] = []
    stop = threading.Event()
    first = threading.Thread(
        target=lambda: attending("a", address_of(fleet), folder, stop=stop.is_set, say=lambda *how: said.append(how)),
        daemon=True,
    )
    first.start()
    until(lambda: "a" in fleet.peers())
    node = fleet._exchange.boxes["a"].node
    with in_thread(fleet, folder, a=echo):
        until(lambda: fleet._exchange.boxes["a"].node != node)
        answers(fleet, {fleet.send("a", lambda: b"x"): b"x"})
        until(lambda: ("cut off", "another process of this name has connected") in said)
        stop.set()
        first.join(30)


def test_a_server_that_is_not_ours_is_refused(folder: Path) -> None:
    """It answers in HTTPS, as a stock SuperLink does, and not as our door does."""

    async def stock(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    files = of_server(papers(folder))
    config = node.flower.uvicorn.Config(
        stock, port=0, lifespan="off", ws="none", log_config=None, ssl_certfile=files.chain, ssl_keyfile=files.key
    )
    server = node.flower.uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with pytest.raises(ConfigError) as refused:
        attending("a", f"{HOST}:{port}", folder)
    assert refused.value.code == "stock-flower"
    server.should_exit = True
    thread.join()


def test_a_link_that_cannot_listen_says_so(fleet: Any, folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        link(folder, fleet.port)
    assert refused.value.code == "no-port"
    (folder / "ca" / "server.pem").write_text("none")
    with pytest.raises(ConfigError) as refused, link(folder):
        pass
    assert refused.value.code == "no-certificate"


def test_nothing_leaves_the_folder_of_the_run(folder: Path) -> None:
    """No telemetry, no look for updates, no files in the home of the user."""
    program = (
        "import os, pathlib; import sordino.letters.flower.fleet as fleet; fleet.hush(pathlib.Path(os.environ['PLACE']));"
        "from flwr.supercore import telemetry, update_check; from flwr.supercore.utils import get_flwr_home;"
        "print(telemetry.FLWR_TELEMETRY_ENABLED, os.environ['FLWR_DISABLE_UPDATE_CHECK'], get_flwr_home())"
    )
    home = folder / "user"
    home.mkdir()
    environment = os.environ | {"PLACE": str(folder / "home"), "HOME": str(home)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert ended.stdout.decode().split() == ["0", "1", str(folder / "home")]
    assert not list(home.iterdir())
