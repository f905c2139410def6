"""Prompts from any server with OpenAI's /v1/chat/completions interface, a hosted one or one on this machine; and the
dialogue with a language model, which asks until there are enough prompts or it repeats itself.

The server learns the names of the classes and nothing else. The API key is read from the environment, sent to no other
address, and never stored.

An answer is a JSON list, or numbered or bulleted lines, possibly cut off.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeAlias

from sordino.data.dataset import ImageNeeds
from sordino.errors import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    BackendUnavailable,
    ConfigError,
    DataError,
    SordinoError,
    WireError,
)
from sordino.synthesis.public_images.prompts.texts import Prompts, Template, kept, unique
from sordino.synthesis.public_images.store import spoken

Turn: TypeAlias = dict[str, str]
SHORTEST, LONGEST = 3, 600  # characters of a description of a picture
KEYS = ("prompt", "text", "description", "caption")
ANNOUNCED = re.compile(rf'"(?:{"|".join(KEYS)})"\s*:\s*$')
THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)  # reasoning that some models print first
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
LINE = re.compile(r"^\s*(?:[(\[]?\d{1,4}\s*[.):\]-]|[-*+\u2022\u2013\u2014])\s*(?P<text>\S.*)$")
# beginning of an answer without a list
REFUSAL = re.compile(
    r"^\W*(?:(?:i['\u2019]?m|i am|we['\u2019]?re) (?:very )?(?:sorry|unable|not able)|sorry\b|i "
    r"(?:can(?:not|['\u2019]?t)|won['\u2019]?t|must decline)|as an ai\b)",
    re.IGNORECASE,
)
IDLE = 3  # answers without anything new that end a dialogue


class Reply(NamedTuple):
    """Reply of a language model."""

    text: str
    refused: bool = False  # by a field of the answer


def converse(
    backend: str, name: str, count: int, per_call: int, say: Callable[[list[Turn]], Reply], wanted: ImageNeeds
) -> Prompts:
    """Prompts from a dialogue with a language model, called by `say`, which is asked for `per_call` of them at a time.
    The grammar supplies missing prompts; a model that gives none at all is an error.
    """
    dialogue: list[Turn] = [{"role": "user", "content": _request(name, min(per_call, count))}]
    found: dict[str, str] = {}
    calls = idle = 0
    while len(found) < count and idle < IDLE:
        reply = say(dialogue)
        calls += 1
        new = {text.casefold(): text for text in parse(reply.text) if text.casefold() not in found}
        found |= new
        idle = 0 if new else idle + 1
        if not found and (reply.refused or is_refusal(reply.text)):
            raise _useless(backend, name, "refuses to describe", "chat-refused", reply.text)
        if not found and idle == IDLE:
            raise _useless(backend, name, "does not list prompts for", "chat-nonsense", reply.text)
        more = min(per_call, count - len(found))
        dialogue += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": f"Continue: {more} more, different from all above, as a JSON list of strings."},
        ]
    texts, by = list(found.values())[:count], {backend: min(count, len(found))}
    if len(texts) < count:
        grammar = Template().prompts(name, count, wanted).texts
        # `count` prompts of the grammar hold enough that the model has not written
        extra = [text for text in grammar if text.casefold() not in found][: count - len(texts)]
        texts, by = texts + extra, by | {"template": len(extra)}
    return Prompts(tuple(texts), by, calls)


def _request(name: str, count: int) -> str:
    return (
        f"Generate {count} different prompts for a text-to-image model, each describing a picture of this: "
        f"{spoken(name)}. "
        "Vary kind, pose, place, light and viewpoint; a sentence each. Answer with a JSON list of strings and "
        "nothing else."
    )


def _useless(backend: str, name: str, does: str, code: str, text: str) -> DataError:
    return DataError(
        f"the language model {does} {name!r}",
        why=f"it said: {' '.join(text.split())[:160] or 'nothing'}",
        fix='use another model, or prompts = { name = "template" }, which needs no model',
        code=code,
    )


# prompts in an answer -------------------------------------------------------------------------------------------------


def parse(reply: str) -> list[str]:
    """Prompts in a reply, in order, without duplicates (case is ignored)."""
    reply = THOUGHT.sub("", reply)
    found = _listed(reply)
    if found is None:
        found = [line["text"] for line in map(LINE.match, reply.splitlines()) if line]
    return unique(filter(None, map(_cleaned, found)))


def is_refusal(reply: str) -> bool:
    return bool(REFUSAL.match(reply)) and not parse(reply)


def _listed(reply: str) -> list[str] | None:
    """Complete entries of a JSON list anywhere in the reply, whole or cut off."""
    for start in (found.start() for found in re.finditer(r"\[(?=\s*[\"{])", reply)):
        try:
            value, _ = json.JSONDecoder().raw_decode(reply, start)
        except ValueError:
            return _cut_off(reply[start:])
        except RecursionError:
            return None
        return [text for item in value for text in _texts(item)]
    return None


def _texts(item: object) -> list[str]:
    if isinstance(item, dict):
        item = next((item[key] for key in KEYS if key in item), None)
    return [item] if isinstance(item, str) else []


def _cut_off(text: str) -> list[str]:
    """Complete strings of a list that is cut off; in objects, the strings of a known key."""
    found = []
    for match in STRING.finditer(text):
        try:
            value = json.loads(match[0])
        except ValueError:
            continue
        before, after = text[: match.start()].rstrip()[-1:], text[match.end() :].lstrip()[:1]
        if after == ":" or (before == ":" and not ANNOUNCED.search(text[: match.start()][-40:])):
            continue
        found.append(value)
    return found


def _cleaned(text: str) -> str:
    text = " ".join(text.replace("**", "").split()).strip(" \t,;*_`\"'\u201c\u201d")
    return text if SHORTEST <= len(text) <= LONGEST else ""


LARGEST = 4 << 20  # bytes of an answer, at most
BUSY = {429, 500, 502, 503, 504}
LONGEST_WAIT = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenAIChat:
    """Prompts written by a language model behind an API of the kind of OpenAI's."""

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
        prompts = converse("openai_chat", name, count, self.per_call, self._say, wanted)
        return prompts._replace(host=self.host)

    def _say(self, dialogue: list[Turn]) -> Reply:
        for attempt in range(self.retries + 1):
            try:
                return _reply(self._post(dialogue))
            except urllib.error.HTTPError as error:
                text = _said(error)
                if error.code not in BUSY or attempt == self.retries:
                    raise self._status(error.code, text) from None
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
        with urllib.request.build_opener(proxies, _NoRedirects()).open(request, timeout=self.timeout) as answer:
            found: bytes = answer.read(LARGEST)
            return found

    def _status(self, code: int, text: str) -> SordinoError:
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
            why=" ".join(text.split())[:200],
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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None  # the redirect is then an error like any other status


def _said(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, http.client.HTTPException), error:
        return error.read(2000).decode("utf-8", "replace")
    return ""


def _pause(attempt: int, asked: str) -> float:
    """Seconds until the next attempt: doubled each time, or as the server asks."""
    wait = float(asked) if asked.isascii() and asked.isdigit() else 2.0**attempt
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
