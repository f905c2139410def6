"""Prompts from any server with OpenAI's /v1/chat/completions interface, a hosted one or one on this machine.

The server learns the names of the classes and nothing else. The API key is read from the environment, sent to no other
address, and never stored.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from sordino.data.dataset import ImageNeeds
from sordino.errors import COUNT, NOT_NEGATIVE, POSITIVE, BackendUnavailable, ConfigError, SordinoError, WireError
from sordino.synthesis.public_images.prompts.dialogue import Reply, Turn, converse
from sordino.synthesis.public_images.prompts.texts import Prompts, kept

LARGEST = 4 << 20  # bytes of an answer, at most
BUSY = {429, 500, 502, 503, 504}
LONGEST_WAIT = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenAIChat:
    base_url: str  # including /v1
    model: str
    key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key; a local server may need none
    per_call: Annotated[int, COUNT] = 50
    temperature: float = 1.0
    timeout: Annotated[float, POSITIVE] = 60.0  # seconds
    retries: Annotated[int, NOT_NEGATIVE] = 5  # where a server is busy
    _sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        try:
            url = urllib.parse.urlsplit(self.base_url)
        except ValueError:
            url = urllib.parse.urlsplit("")
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ConfigError(
                f"{self.base_url!r} is not the address of a chat server",
                fix="use an address such as http://127.0.0.1:8000/v1, and put the key into an environment variable",
                code="bad-base-url",
            )
        if url.scheme == "http" and os.environ.get(self.key_env) and not self.local:
            raise ConfigError(
                f"the key in {self.key_env} would be sent unencrypted to {url.hostname}",
                why="it could be read on the way",
                fix="use https, or set key_env to the name of a variable that does not exist",
                code="key-in-the-clear",
            )

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.base_url).hostname or ""

    @property
    def local(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        if not (wanted.network or self.local):
            raise ConfigError(
                f"the chat server {self.host} is another machine, but the network is not allowed",
                fix="set candidates.network = true, or use a server on 127.0.0.1",
                code="network-off",
            )
        depends = {"backend": "openai_chat", "url": self.base_url, "model": self.model, "class": name, "count": count}
        depends |= {"temperature": self.temperature, "key": wanted.key}
        return kept(wanted, depends, lambda: self._ask(name, count, wanted))

    def _ask(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        _log.warning("the class name %r is disclosed to %s", name, self.host)
        said = converse("openai_chat", name, count, self.per_call, self._say, wanted)
        return said._replace(told=self.host)

    def _say(self, dialogue: list[Turn]) -> Reply:
        for attempt in range(self.retries + 1):
            try:
                return _reply(self._post(dialogue))
            except urllib.error.HTTPError as error:
                said = _said(error)
                if error.code not in BUSY or attempt == self.retries:
                    raise self._status(error.code, said) from None
                self._sleep(_pause(attempt, error.headers.get("Retry-After", "")))
            except TimeoutError:
                raise self._unavailable(f"does not answer within {self.timeout:g} s", "chat-timeout") from None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", None), TimeoutError):
                    raise self._unavailable(f"does not answer within {self.timeout:g} s", "chat-timeout") from None
                raise self._unavailable(
                    f"cannot be reached: {getattr(error, 'reason', error)}", "chat-unreachable"
                ) from None
        raise AssertionError("the last attempt answers or raises")

    def _post(self, dialogue: list[Turn]) -> bytes:
        body = {"model": self.model, "messages": dialogue, "temperature": self.temperature}
        headers = {"Content-Type": "application/json", "User-Agent": "sordino"}
        if key := os.environ.get(self.key_env):
            headers["Authorization"] = f"Bearer {key}"
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        # a proxy of the environment must not see requests to this machine; nor may a redirect take the key elsewhere
        proxies = urllib.request.ProxyHandler({} if self.local else None)
        with urllib.request.build_opener(proxies, _Stay()).open(request, timeout=self.timeout) as answer:
            found: bytes = answer.read(LARGEST)
            return found

    def _status(self, code: int, said: str) -> SordinoError:
        if code in (401, 403):
            return ConfigError(
                f"the chat server {self.host} refuses access ({code})",
                fix=f"put a valid key into the environment variable {self.key_env}",
                code="chat-denied",
            )
        busy = code in BUSY
        wait = (
            "run it again later: prompts of the classes before this one are kept; `retries` says how often it is tried"
        )
        return BackendUnavailable(
            f"the chat server {self.host} answers with status {code}",
            why=" ".join(said.split())[:200],
            fix=wait
            if busy
            else "check base_url and model; a dialogue too long for the model wants a smaller per_class",
            code="chat-busy" if busy else "chat-status",
        )

    def _unavailable(self, what: str, code: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"the chat server {self.host} {what}",
            fix='check base_url, or use prompts = { name = "template" }, which needs no server',
            code=code,
        )


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None  # the redirect is then an error like any other status


def _said(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, http.client.HTTPException), error:
        return error.read(2000).decode("utf-8", "replace")
    return ""


def _pause(attempt: int, asked: str) -> float:
    """Seconds until the next attempt: doubled each time, or as the server asks."""
    wait = float(asked) if asked.isdigit() else 2.0**attempt
    return min(wait, LONGEST_WAIT)


def _reply(body: bytes) -> Reply:
    try:
        choice = json.loads(body)["choices"][0]
        text, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        if not isinstance(text, str | None) or not isinstance(refusal, str | None):
            raise TypeError("its content is not text")
        return Reply(text or refusal or "", bool(refusal) or choice.get("finish_reason") == "content_filter")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(
            "the chat server does not answer as /v1/chat/completions must",
            why=f"{type(error).__name__}: {error}; it said: {body[:100].decode('utf-8', 'replace')}",
            fix="check base_url: it usually ends with /v1",
            code="chat-protocol",
        ) from None
