"""Asking a language model for prompts: so many in one answer, then `continue`, until there are enough or nothing new
comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from sordino.data.candidates import Wanted
from sordino.errors import DataError
from sordino.synthesis.public_images.manifest import spoken
from sordino.synthesis.public_images.prompts.asked import Prompts
from sordino.synthesis.public_images.prompts.parsing import is_refusal, parse
from sordino.synthesis.public_images.prompts.template import Template

Message: TypeAlias = dict[str, str]
IDLE = 3  # answers without anything new, after which it has nothing more to say


class Reply(NamedTuple):
    text: str
    refused: bool = False  # where the model says so beside its words


def converse(
    backend: str, name: str, count: int, per_call: int, say: Callable[[list[Message]], Reply], wanted: Wanted
) -> Prompts:
    """Prompts from a dialogue, which `say` answers. What is missing at the end comes from the grammar; a model that
    never helped is an error.
    """
    dialogue: list[Message] = [{"role": "user", "content": _request(name, min(per_call, count))}]
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
            raise _useless(backend, name, "answers no list of prompts for", "chat-nonsense", reply.text)
        more = min(per_call, count - len(found))
        dialogue += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": f"Continue: {more} more, different from all above, as a JSON list of strings."},
        ]
    texts, by = list(found.values())[:count], {backend: min(count, len(found))}
    if len(texts) < count:
        grammar = Template().prompts(name, count, wanted).texts
        # as many of the grammar's prompts as are asked for hold enough that the model has not said
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
