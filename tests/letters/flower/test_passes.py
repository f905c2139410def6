"""Who may ask: one signature, one request, one path, one body, one run, for five minutes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.errors import ConfigError
from sordino.letters.flower import passes
from sordino.letters.flower.passes import DIGEST, SERVER, SIGNATURE, SITE, TIME, WINDOW, Pass, Passes

PATH, BODY = "/v1/fleet/pull-messages", b"the body"
KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
Headers = dict[str, str]


def door() -> Passes:
    return Passes("run", {"a": KEY.public_key(), "b": OTHER.public_key()})


def signed(site: str = "a", key: Ed25519PrivateKey = KEY, run: str = "run", path: str = PATH) -> Headers:
    return Pass(run, site, key).headers(path, BODY)


def at(seconds: float) -> Callable[[], Headers]:
    """Signed at another time."""

    def late() -> Headers:
        with pytest.MonkeyPatch.context() as patch:
            now = time.time_ns() + int(seconds * 1e9)
            patch.setattr(passes.time, "time_ns", lambda: now)
            return signed()

    return late


def changed(**headers: str) -> Callable[[], Headers]:
    return lambda: signed() | {name.replace("_", "-"): value for name, value in headers.items()}


def test_a_site_on_the_list_is_known_by_its_signature() -> None:
    assert door().site(PATH, signed()) == "a"
    assert door().site(PATH, signed("b", OTHER)) == "b"
    assert door().site(PATH, at(-WINDOW + 5)()) == "a"
    assert signed()[DIGEST] == hashlib.sha256(BODY).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        dict,
        lambda: signed("c", Ed25519PrivateKey.generate()),
        lambda: signed("a", OTHER),
        lambda: signed("b", KEY),
        lambda: signed(run="another run"),
        lambda: signed(path="/v1/fleet/push-object"),
        at(-WINDOW - 5),
        at(WINDOW + 5),
        changed(sordino_site="b"),
        changed(sordino_digest="0" * 64),
        changed(sordino_time=str(time.time_ns())),
        changed(sordino_time=""),
        changed(sordino_time="-1"),
        changed(sordino_time="٣"),
        changed(sordino_time="9" * 5000),
        changed(sordino_signature=""),
        changed(sordino_signature="00" * 64),
        changed(sordino_signature="no hex"),
        changed(sordino_signature="00" * 100_000),
        lambda: {name: value for name, value in signed().items() if name != SITE},
        lambda: {name: value for name, value in signed().items() if name != TIME},
        lambda: {name: value for name, value in signed().items() if name != SIGNATURE},
        lambda: {name: value for name, value in signed().items() if name != DIGEST},
    ],
)
def test_everybody_else_is_nobody(headers: Callable[[], Mapping[str, str]]) -> None:
    assert door().site(PATH, headers()) is None


@pytest.mark.parametrize("written", [str.lower, str.upper, lambda hex: f" {hex}", lambda hex: f"{hex[:2]}\n{hex[2:]}"])
def test_a_captured_request_is_worth_nothing(written: Callable[[str], str]) -> None:
    """Not even with its signature written differently; another door, which has not seen it, would take it."""
    guard, captured = door(), signed()
    again = captured | {SIGNATURE: written(captured[SIGNATURE])}
    assert guard.site(PATH, captured) == "a"
    assert guard.site(PATH, again) is None
    assert door().site(PATH, again) == "a"


def test_used_signatures_are_forgotten_when_they_are_too_old_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, now = door(), time.monotonic()
    for minute in range(60):
        monkeypatch.setattr(passes.time, "monotonic", lambda minute=minute: now + 60 * minute)
        assert guard.site(PATH, signed()) == "a"
    assert len(guard._used) <= 2 * WINDOW / 60 + 1


# what Flower's client does with a pass --------------------------------------------------------------------------------


class Url(NamedTuple):
    path: str = PATH
    netloc: bytes = b"host:1"


class Request:
    url, content = Url(), BODY

    def __init__(self) -> None:
        self.headers: Headers = {}


class Context(NamedTuple):
    request: Request


class Response(NamedTuple):
    headers: Headers
    status_code: int


def test_a_pass_signs_what_the_client_sends() -> None:
    def answered(context: Any) -> Response:
        assert door().site(PATH, context.request.headers) == "a"
        return Response({SERVER: "run"}, 200)

    Pass("run", "a", KEY).intercept(Context(Request()), answered)


@pytest.mark.parametrize("status", [200, 401, 404])
def test_an_answer_that_is_not_of_our_server_is_refused(status: int) -> None:
    with pytest.raises(ConfigError, match="host:1") as refusal:
        Pass("run", "a", KEY).intercept(Context(Request()), lambda _: Response({}, status))
    assert refusal.value.code == "stock-flower"


def test_a_proxy_that_reaches_nobody_is_no_server() -> None:
    """It is waited for."""
    assert Pass("run", "a", KEY).intercept(Context(Request()), lambda _: Response({}, 502)).status_code == 502
