"""Who gets in: nobody by another name, by another verb, without the token; and nothing lies behind the five doors."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sordino.errors import ConfigError
from sordino.report import dashboard as door
from sordino.report.dashboard import Dashboard, check, new_token, token_of
from sordino.report.dashboard.run_state import WatchedRun
from sordino.sites import identity
from sordino.transport.tls import of_server
from tests.report.dashboard.conftest import go_on

TOKEN = new_token()
Served = Callable[..., Dashboard]


@pytest.fixture
def served() -> Iterator[Served]:
    with ExitStack() as stack:

        def serve(folder: Path, token: str | None = None, **more: object) -> Dashboard:
            server = stack.enter_context(Dashboard(WatchedRun(folder), "127.0.0.1:0", token=token, **more))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield serve


def ask(server: Dashboard, path: str = "/", verb: str = "GET", **headers: str) -> http.client.HTTPResponse:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    line.request(verb, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return line.getresponse()


# without a token ------------------------------------------------------------------------------------------------------


def test_the_page_comes_with_all_that_keeps_others_out(served: Served, simulated: Path) -> None:
    found = ask(served(simulated))
    policy, text = found.headers["Content-Security-Policy"], found.read().decode()
    assert found.status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in found.headers
    assert text.count("<script") == 1  # a file of this server
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_only_five_things_are_there_and_nothing_beside_them(served: Served, simulated: Path) -> None:
    server = served(simulated)
    assert [ask(server, path).status for path in ("/", "/page.css", "/page.js", "/metrics")] == [200] * 4
    for path in (
        "/privacy.json", "/../privacy.json", "/%2e%2e/privacy.json", "/page.js/../../privacy.json", "//etc/passwd",
        "/private/data.key", "/data.key", "/page.css%00", "/\\..\\data.key", "file:///etc/passwd",
    ):  # fmt: skip
        found = ask(server, path)
        assert found.status == 404, path
        assert b"epsilon" not in found.read()


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_nothing_is_done_but_reading(verb: str, served: Served, simulated: Path) -> None:
    found = ask(served(simulated), verb=verb)
    assert (found.status, found.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "", "[", "localhost:x"],
)
def test_a_page_that_points_its_own_name_here_is_turned_away(host: str, served: Served, simulated: Path) -> None:
    server = served(simulated)
    assert ask(server, Host=f"localhost:{server.port}").status == 200
    for path in ("/", "/stream", "/metrics"):
        assert ask(server, path, Host=host.format(port=server.port)).status == 421


def test_a_stranger_is_answered_in_our_own_words(served: Served, simulated: Path) -> None:
    with socket.create_connection(("127.0.0.1", served(simulated).port), timeout=20) as line:
        line.sendall(b"<script>alert(1)</script> / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b"".join(iter(lambda: line.recv(4096), b"")).decode()
    assert "501" in said.split("\r\n")[0]
    assert "<script" not in said
    assert "Content-Security-Policy" in said


def test_there_is_room_for_so_many_and_no_more(
    served: Served, simulated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "READERS", 2)
    server = served(simulated)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(server)


# with a token ---------------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_told(served: Served, simulated: Path) -> None:
    server = served(simulated, TOKEN)
    wrong = ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.swapcase(), "\xff")
    for path in ("/", "/page.css", "/page.js", "/stream", "/metrics", f"/stream?token={TOKEN}", "/privacy.json"):
        assert ask(server, path).status == 401
    for token in wrong:
        assert ask(server, f"/?token={token.encode('latin-1').hex() if token == wrong[-1] else token}").status == 401
        assert ask(server, Authorization=f"Bearer {token}").status == 401
        assert ask(server, Cookie=f"sordino-{server.port}={token}").status == 401
    assert ask(server, Cookie=f"sordino-1={TOKEN}").status == 401  # of another run on this machine
    assert ask(server, Authorization=f"Bearer {TOKEN}").status == 200


def test_the_token_leaves_the_address_at_once_and_is_never_logged(
    served: Served, simulated: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = served(simulated, TOKEN)
    found = ask(server, f"/?token={TOKEN}")
    cookie = found.headers["Set-Cookie"]
    assert (found.status, found.headers["Location"]) == (303, "/")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    page = ask(server, Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert TOKEN not in page.read().decode()
    assert capfd.readouterr() == ("", "")


def test_a_token_file_is_made_once_and_must_be_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token, new = token_of(file)
    assert new
    assert len(token) >= 22  # 128 bits
    assert file.stat().st_mode & 0o777 == 0o600
    assert token_of(file) == (token, False)
    assert token_of(tmp_path / "other")[0] != token
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="other users"):
        token_of(file)
    file.chmod(0o600)
    for weak in ("short", "x" * 30 + ";", "x" * 30 + "\n" + "y" * 30):
        file.write_text(weak)
        with pytest.raises(ConfigError):
            token_of(file)


# other addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org"])
def test_another_address_wants_a_certificate_and_a_token(host: str, simulated: Path) -> None:
    run = WatchedRun(simulated)
    for tls, token in ((False, False), (True, False), (False, True)):
        with pytest.raises(ConfigError) as refused:
            check(host, run, tls, token)
        assert refused.value.code == "open-dashboard"
    check(host, run, True, True)
    for own in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        check(own, run, False, False)


@pytest.mark.slow
def test_what_only_the_evaluator_may_see_wants_a_token_on_this_machine_too(hidden: Path, simulated: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Dashboard(WatchedRun(hidden, evaluator=True), "127.0.0.1:0")
    assert refused.value.code == "open-dashboard"
    Dashboard(WatchedRun(hidden, evaluator=True), "127.0.0.1:0", token=TOKEN).server_close()
    Dashboard(WatchedRun(simulated, evaluator=True), "127.0.0.1:0").server_close()


@pytest.mark.parametrize("bind", ["", "127.0.0.1", ":0", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(bind: str, simulated: Path) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Dashboard(WatchedRun(simulated), bind)


def test_with_a_certificate_it_speaks_tls_and_knows_its_names(tmp_path: Path, served: Served, simulated: Path) -> None:
    identity.make_certificates(tmp_path / "ca", ["localhost", "board.example"], [], 2)
    server = served(simulated, TOKEN, tls=of_server(tmp_path / "ca"))
    context = ssl.create_default_context(cafile=tmp_path / "ca" / "ca.pem")
    for host, status in (("board.example", 200), ("localhost", 200), ("evil.example", 421)):
        line = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=20)
        line.request("GET", "/", headers={"Host": f"{host}:{server.port}", "Authorization": f"Bearer {TOKEN}"})
        assert line.getresponse().status == status
    line.request("GET", f"/?token={TOKEN}")
    assert "; Secure" in line.getresponse().headers["Set-Cookie"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:  # keeps nobody waiting
        line.request("GET", "/page.css", headers={"Authorization": f"Bearer {TOKEN}"})
        assert line.getresponse().status == 200
        silent.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"200" not in silent.recv(100)


# a run that goes on ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_new_round_comes_down_the_stream_and_nothing_is_touched(
    served: Served, simulated: Path, live: Callable[[Path], Path]
) -> None:
    folder = live(simulated)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    stream = ask(served(folder), "/stream")
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    seen: list[str] = []
    while not seen or "round 3 of 3" not in seen[-1]:
        line = stream.readline().decode()
        assert line
        if line.startswith("data: ") and "status" in (parts := json.loads(line[6:]) or {}):
            seen.append(parts["status"])
            assert "charts" in parts
        if "round 2 of 3" in line:
            assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
            go_on(folder)
    assert sorted(os.listdir(folder)) == sorted({path.name for path in before if path.parent == folder})


def test_a_probe_needs_no_token_and_no_name_and_learns_nothing(served: Served, simulated: Path) -> None:
    server = served(simulated, token=TOKEN)
    found = ask(server, "/healthz", Host="10.0.0.7")
    assert (found.status, found.read()) == (200, b"ok")
    assert ask(server, "/").status == 401
    assert ask(server, "/healthz/../", Host="10.0.0.7").status == 421
