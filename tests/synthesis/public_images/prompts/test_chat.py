"""Prompts from a chat server: what it is asked, what it may answer, and who learns what."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.data.dataset import ImageNeeds
from sordino.errors import SordinoError
from sordino.synthesis.public_images import PROMPTS, SOURCES, PromptSource
from tests.synthesis.public_images.chatting import Server, cats, chat, serving


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serving()


other = pytest.fixture(name="other")(lambda: (yield from serving()))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def source(url: str, slept: list[float] | None = None, **settings: Any) -> PromptSource:
    waited = [] if slept is None else slept
    return PROMPTS["openai_chat"](url, "tiny", **settings, _sleep=waited.append)


def test_the_dialogue_is_kept_and_continued(server: Server, wanted: Callable[..., ImageNeeds]) -> None:
    server.says(cats(0, 50), cats(40, 90), cats(90, 140))
    made = source(server.url).prompts("cat", 120, wanted())
    assert made.texts == tuple(f"cat number {n}" for n in range(120))
    assert made.by == {"openai_chat": 120}
    assert made.calls == 3
    paths, _, bodies = zip(*server.heard, strict=True)
    assert set(paths) == {"/v1/chat/completions"}
    first, second, third = (body["messages"] for body in bodies)
    assert [turn["role"] for turn in third] == ["user", "assistant", "user", "assistant", "user"]
    assert third[:3] == second
    assert second[:1] == first
    assert second[1]["content"] == cats(0, 50)
    assert "50 different" in first[0]["content"]
    assert second[2]["content"].startswith("Continue: 50 more")
    assert third[4]["content"].startswith("Continue: 30 more")
    assert {body["model"] for body in bodies} == {"tiny"}


def test_a_busy_server_is_given_time(server: Server, wanted: Callable[..., ImageNeeds]) -> None:
    slept: list[float] = []
    server.answers = [(429, {"Retry-After": "7"}, b""), (503, {"Retry-After": "\u00b2"}, b""), (500, {}, b"")]
    server.says(cats(0, 2))
    assert source(server.url, slept).prompts("cat", 2, wanted()).calls == 1
    assert slept == [7, 2, 4]


def test_a_dry_server_is_helped_out_by_the_grammar(server: Server, wanted: Callable[..., ImageNeeds]) -> None:
    server.says(cats(0, 3))
    made = source(server.url).prompts("cat", 10, wanted())
    assert made.by == {"openai_chat": 3, "template": 7}
    assert len(server.heard) == 4


BAD: dict[str, tuple[list[tuple[int, dict[str, str], bytes]], str, int]] = {
    "busy for ever": ([(429, {}, b"slow down")], "chat-busy", 3),
    "no such model": ([(404, {}, b'{"error": "no such model"}')], "chat-status", 1),
    "no entry": ([(401, {}, b"")], "chat-denied", 1),
    "no JSON": ([(200, {}, b"<html>hello</html>")], "chat-protocol", 1),
    "no choices": ([(200, {}, b'{"choices": []}')], "chat-protocol", 1),
    "choices of another kind": ([(200, {}, b'{"choices": [{"message": {"content": 3}}]}')], "chat-protocol", 1),
    "deep JSON": ([(200, {}, b"[" * 100_000)], "chat-protocol", 1),
    "a refusal in words": ([(200, {}, chat(content="I'm sorry, I can't do that."))], "chat-refused", 1),
    "a refusal beside the words": ([(200, {}, chat(content=None, refusal="No."))], "chat-refused", 1),
    "a filter": ([(200, {}, chat("content_filter", content=""))], "chat-refused", 1),
    "nonsense": ([(200, {}, chat(content="Cats are nice animals."))], "chat-nonsense", 3),
}


@pytest.mark.parametrize(("answers", "code", "calls"), BAD.values(), ids=BAD.keys())
def test_a_bad_server_is_a_clear_error_and_leaves_nothing_behind(
    answers: list[Any], code: str, calls: int, server: Server, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    server.answers = answers
    with pytest.raises(SordinoError) as refused:
        source(server.url, retries=2).prompts("cat", 5, wanted(cache=tmp_path))
    assert refused.value.code == code
    assert refused.value.fix
    assert len(server.heard) == calls
    assert list(tmp_path.rglob("*")) == []


def test_a_server_that_says_nothing_is_not_waited_for(server: Server, wanted: Callable[..., ImageNeeds]) -> None:
    server.slow = 0.6
    server.says(cats(0, 5))
    with pytest.raises(SordinoError) as refused:
        source(server.url, timeout=0.15).prompts("cat", 5, wanted())
    assert refused.value.code == "chat-timeout"


def test_a_server_that_is_not_there(wanted: Callable[..., ImageNeeds]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        with pytest.raises(SordinoError) as refused:
            source(f"http://127.0.0.1:{free.getsockname()[1]}/v1").prompts("cat", 5, wanted())
    assert refused.value.code == "chat-unreachable"


def test_a_redirect_leads_nowhere(server: Server, other: Server, wanted: Callable[..., ImageNeeds]) -> None:
    other.says(cats(0, 5))
    server.answers = [(302, {"Location": f"{other.url}/chat/completions"}, b"")]
    with pytest.raises(SordinoError) as refused:
        source(server.url).prompts("cat", 5, wanted())
    assert refused.value.code == "chat-status"
    assert other.heard == []


def test_a_proxy_does_not_see_what_stays_on_this_machine(
    server: Server, other: Server, wanted: Callable[..., ImageNeeds], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other.server_port}")
    server.says(cats(0, 5))
    other.says(cats(0, 5))
    source(server.url).prompts("cat", 5, wanted())
    assert (len(server.heard), len(other.heard)) == (1, 0)


@pytest.mark.usefixtures("no_sockets")
def test_another_machine_is_asked_only_where_the_network_is_allowed(wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(SordinoError) as refused:
        source("https://chat.example/v1").prompts("cat", 5, wanted())
    assert refused.value.code == "network-off"
    with pytest.raises(AssertionError, match="a socket was opened"):  # the control
        source("https://chat.example/v1").prompts("cat", 5, wanted(network=True))


@pytest.mark.parametrize(
    "url", ["chat.example", "file:///etc/passwd", "http://", "http://[", "http://me:secret@127.0.0.1/v1", ""]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SordinoError) as refused:
        source(url)
    assert refused.value.code == "bad-base-url"


def test_the_key_goes_to_the_server_and_nowhere_else(
    server: Server, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret-key")
    server.says(cats(0, 5))
    made = SOURCES["procedural"](
        prompts={"name": "openai_chat", "base_url": server.url, "model": "tiny", "key_env": "MY_KEY"}
    )
    built = made.build(wanted(classes=("cat",), per_class=5, cache=tmp_path))
    assert server.heard[0][1]["Authorization"] == "Bearer s3cret-key"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 1
    assert not any(b"s3cret" in text for text in [*written, repr(made).encode(), json.dumps(built.manifest).encode()])
    assert built.manifest["prompts"] == {"openai_chat": 5}
    assert built.manifest["calls"] == 1
    assert built.manifest["class_names_disclosed_to"] == ["127.0.0.1"]


def test_a_key_does_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    source("http://chat.example/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret-key")
    source("https://chat.example/v1")
    source("http://127.0.0.1:9/v1")
    with pytest.raises(SordinoError) as refused:
        source("http://chat.example/v1")
    assert refused.value.code == "key-in-the-clear"
    assert "s3cret" not in str(refused.value)


def test_the_log_says_who_learns_the_names(
    server: Server, wanted: Callable[..., ImageNeeds], caplog: pytest.LogCaptureFixture
) -> None:
    server.says(cats(0, 5))
    with caplog.at_level(logging.WARNING, "sordino"):
        source(server.url).prompts("cat", 5, wanted())
    assert "'cat' is disclosed to 127.0.0.1" in caplog.text


def test_what_was_said_once_is_not_asked_again(
    server: Server, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    server.says(cats(0, 5))
    first = source(server.url).prompts("cat", 5, wanted(cache=tmp_path))
    again = source(server.url).prompts("cat", 5, wanted(cache=tmp_path))
    assert again == first._replace(calls=0)
    assert len(server.heard) == 1
    source(server.url).prompts("cat", 4, wanted(cache=tmp_path))
    source(server.url, temperature=0.5).prompts("cat", 5, wanted(cache=tmp_path))
    source(server.url).prompts("dog", 5, wanted(cache=tmp_path))
    assert len(server.heard) == 4


def test_settings_out_of_range_are_refused_before_anything_is_asked(server: Server) -> None:
    table = {"source": "procedural", "prompts": {"name": "openai_chat", "base_url": server.url, "model": "tiny"}}
    for wrong in ({"per_call": 0}, {"timeout": 0.0}, {"retries": -1}):
        with pytest.raises(SordinoError) as refused:
            config.build(table | {"prompts": table["prompts"] | wrong}, SOURCES, "candidates", "source")  # type: ignore[operator]
        assert refused.value.code == "out-of-range"
    assert server.heard == []
