"""Sources of prompts: a language model, a grammar, files, or the class name alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sordino import config
from sordino.data.dataset import DISCLOSED
from sordino.synthesis.public_images.prompts.chat import OpenAIChat
from sordino.synthesis.public_images.prompts.local import Transformers
from sordino.synthesis.public_images.prompts.texts import File, LabelOnly, Prompts, PromptSource, Template

__all__ = ["PROMPTS", "PromptSource", "Prompts", "chosen", "writers"]

PROMPTS: dict[str, Callable[..., PromptSource]] = {
    "template": Template,
    "openai_chat": OpenAIChat,
    "transformers": Transformers,
    "file": File,
    "label_only": LabelOnly,
}


def chosen(table: Mapping[str, object]) -> PromptSource:
    return config.build(table, PROMPTS, "candidates.prompts")


def writers(asked: Iterable[Prompts]) -> dict[str, Any]:
    """Origin of prompts, for the manifest: their number by source, calls of a language model, and hosts that
    learned the names of classes.
    """
    by: Counter[str] = Counter()
    calls, hosts = 0, set[str]()
    for one in asked:
        by.update(one.by)
        calls += one.calls
        hosts |= {one.host} - {""}
    return {"prompts": dict(by), "calls": calls, DISCLOSED: sorted(hosts)}
