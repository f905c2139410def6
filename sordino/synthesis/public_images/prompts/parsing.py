"""Prompts out of what a language model answered: a JSON list, numbered or bulleted lines, also cut off half-way."""

from __future__ import annotations

import json
import re
from typing import Any

SHORTEST, LONGEST = 3, 600  # characters: what is outside is no description of a picture
KEYS = ("prompt", "text", "description", "caption")
ANNOUNCED = re.compile(rf'"(?:{"|".join(KEYS)})"\s*:\s*$')
THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)  # what some models say to themselves first
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
LINE = re.compile(r"^\s*(?:[(\[]?\d{1,4}\s*[.):\]-]|[-*+\u2022\u2013\u2014])\s*(?P<text>\S.*)$")
# answers without a list, and the whole of them begins like this
REFUSAL = re.compile(
    r"^\W*(?:(?:i['\u2019]?m|i am|we['\u2019]?re) (?:very )?(?:sorry|unable|not able)|sorry\b|i "
    r"(?:can(?:not|['\u2019]?t)|won['\u2019]?t|must decline)|as an ai\b)",
    re.IGNORECASE,
)


def parse(reply: str) -> list[str]:
    """The prompts of a reply in its order, none twice (upper and lower case are the same)."""
    reply = THOUGHT.sub("", reply)
    found = _listed(reply)
    if found is None:
        found = [line["text"] for line in map(LINE.match, reply.splitlines()) if line]
    return unique(filter(None, map(_cleaned, found)))


def unique(texts: Any) -> list[str]:
    """The first of all texts that differ only in case."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.casefold(), text)
    return list(first.values())


def is_refusal(reply: str) -> bool:
    return bool(REFUSAL.match(reply)) and not parse(reply)


def _listed(reply: str) -> list[str] | None:
    """A JSON list anywhere in the reply, whole or cut off: what is complete in it counts."""
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
    """Every finished string of a list that never ends; of objects, those that a key announces."""
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
