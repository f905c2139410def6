"""Dialogue that asks a language model for prompts until there are enough or it repeats itself, and the parser of its
answers.

An answer is a JSON list, or numbered or bulleted lines, possibly cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from sordino.data.dataset import ImageNeeds
from sordino.errors import DataError
from sordino.synthesis.public_images.prompts.texts import Prompts, Template, unique
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
