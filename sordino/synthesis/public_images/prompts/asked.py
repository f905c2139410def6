"""What a source of prompts is: so many descriptions of pictures of one class, and who wrote how many of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol

from sordino.data.candidates import Wanted
from sordino.synthesis.public_images import store


class Prompts(NamedTuple):
    texts: tuple[str, ...]
    by: dict[str, int]  # how many each backend wrote
    calls: int = 0  # of a language model, of which some cost money
    told: str = ""  # the host of a chat server that has learnt the name of the class; "": nobody


class PromptSource(Protocol):
    def prompts(self, name: str, count: int, wanted: Wanted) -> Prompts:
        """`count` prompts for the class `name`: the same ones for the same key."""
        ...


def kept(wanted: Wanted, depends: dict[str, object], make: Callable[[], Prompts]) -> Prompts:
    """Prompts from the cache, where there is one: a language model would not say the same again, and the images hang
    on its words.
    """
    if wanted.cache is None:
        return make()
    place = store.place(wanted.cache, "prompts", store.name(**depends))
    said = json.loads(store.get(place) or b"{}")
    if "told" in said:  # not in what versions before wrote, who did not remember whom they told
        return Prompts(tuple(said["texts"]), said["by"], 0, said["told"])
    made = make()
    store.put(place, json.dumps({"texts": made.texts, "by": made.by, "told": made.told}).encode())
    return made
