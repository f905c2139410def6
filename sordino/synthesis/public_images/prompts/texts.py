"""Prompts without a language model: from a grammar, from files, or the class name alone.

The grammar combines a style, the class by one of its names, its look, pose, place, light and viewpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino import keys
from sordino.data.dataset import ImageNeeds
from sordino.errors import ConfigError, DataError
from sordino.synthesis.public_images import store
from sordino.synthesis.public_images.store import spoken

SYNONYMS = {
    "airplane": ("airplane", "airliner", "passenger plane", "propeller plane"),
    "automobile": ("automobile", "car", "sedan", "hatchback"),
    "bird": ("bird", "songbird", "garden bird", "wild bird"),
    "cat": ("cat", "domestic cat", "kitten", "house cat"),
    "deer": ("deer", "stag", "doe", "fawn"),
    "dog": ("dog", "puppy", "hound", "terrier"),
    "frog": ("frog", "tree frog", "toad", "common frog"),
    "horse": ("horse", "mare", "pony", "stallion"),
    "ship": ("ship", "boat", "cargo ship", "sailing ship"),
    "truck": ("truck", "lorry", "delivery truck", "pickup truck"),
    "car": ("car", "sedan", "hatchback", "estate car"),
    "bus": ("bus", "city bus", "coach", "school bus"),
    "motorcycle": ("motorcycle", "motorbike", "scooter", "moped"),
    "bicycle": ("bicycle", "bike", "mountain bike", "city bike"),
    "pedestrian": ("pedestrian", "person walking", "person on foot", "passer-by"),
    "background": ("empty street", "road without vehicles", "empty crossing", "street scene"),
}
STYLES = (
    "a photo of", "a blurry photo of", "a close-up photo of", "a drawing of", "a sketch of", "a bold picture of",
    "a low resolution photo of", "a painting of",
)  # fmt: skip
LOOKS = (
    "", "a small", "a large", "a bright", "a dark", "a red", "a green", "a blue", "a yellow", "a white", "an old",
    "a new",
)  # fmt: skip
POSES = (
    "", "tilted to the left", "tilted to the right", "in motion", "at rest", "partly hidden", "upright",
    "leaning forward",
)  # fmt: skip
PLACES = (
    "on a plain background", "in a city", "in the countryside", "near the water", "in a park",
    "on a cluttered background", "in front of a wall", "in an open field",
)  # fmt: skip
LIGHTS = (
    "in daylight", "at night", "at sunset", "in fog", "in bright sunshine", "under artificial light", "in the rain",
    "with strong shadows",
)  # fmt: skip
VIEWS = (
    "seen from the front", "seen from the side", "seen from above", "seen from below", "seen from far away",
    "seen from behind",
)  # fmt: skip


class Prompts(NamedTuple):
    """Prompts for the images of one class, and where they came from."""

    texts: tuple[str, ...]
    by: dict[str, int]  # number by backend
    calls: int = 0  # of a language model, of which some cost money
    host: str = ""  # host of a chat server that learned the name of the class; "": none


class PromptSource(Protocol):
    """Interface of sources of prompts."""

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        """Prompts, `count` of them, for images of the class `name`; equal keys in `wanted` give equal prompts."""
        ...


def kept(wanted: ImageNeeds, depends: dict[str, object], make: Callable[[], Prompts]) -> Prompts:
    """Prompts from the cache, else made by `make` and cached: a language model would not repeat them, and images depend
    on them."""
    if wanted.cache is None:
        return make()
    place = store.place(wanted.cache, "prompts", store.name(**depends))
    entry = json.loads(store.get(place) or b"{}")
    if "told" in entry:  # damaged or foreign entries have none
        return Prompts(tuple(entry["texts"]), entry["by"], 0, entry["told"])
    made = make()
    store.put(place, json.dumps({"texts": made.texts, "by": made.by, "told": made.host}).encode())
    return made


@dataclass(frozen=True)
class Template:
    """Prompts drawn from a grammar, without a language model."""

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        word = spoken(name).casefold()
        parts = (STYLES, LOOKS, SYNONYMS.get(word, (word,)), POSES, PLACES, LIGHTS, VIEWS)
        total = prod(map(len, parts))
        if count > total // 2:
            raise ConfigError(
                f"the template has only {total // 2} prompts for {name}, and {count} are needed",
                fix="ask for fewer images per class, or use another source of prompts",
                code="too-few-prompts",
            )
        # four times as many draws as prompts, since none may repeat and at most half of the grammar is used
        drawn = keys.integers(keys.fold(wanted.key, "template", name), 4 * count + 64, total)
        order = list(dict.fromkeys(drawn.tolist()))[:count]
        return Prompts(tuple(_sentence(parts, number) for number in order), {"template": count})


def _sentence(parts: tuple[tuple[str, ...], ...], number: int) -> str:
    chosen = []
    for part in parts:
        number, at = divmod(number, len(part))
        chosen.append(part[at])
    style, look, what, pose, place, light, view = chosen
    look = look or ("an" if what[0] in "aeiou" else "a")
    return " ".join(filter(None, [style, look, what, pose, place, light + ",", view]))


@dataclass(frozen=True)
class File:
    """Prompts from files: `<path>/<class name or number>.txt`, a prompt on each line, or `.jsonl`, each line a
    string or an object with `prompt`.
    """

    path: str

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        folder, number = Path(self.path).expanduser(), wanted.classes.index(name)
        places = [folder / f"{stem}{suffix}" for stem in (name, number) for suffix in (".txt", ".jsonl")]
        place = next((file for file in places if file.is_file()), None)
        if place is None:
            raise DataError(
                f"{folder} has no prompts for {name}",
                fix=f"add {name}.txt or {name}.jsonl to the folder",
                code="no-prompt-file",
            )
        found = _read(place)
        # a repeated prompt gives another image, from another seed
        again = {"file, again": count - len(found)} if count > len(found) else {}
        texts = tuple(found[at % len(found)] for at in range(count))
        return Prompts(texts, {"file": min(count, len(found)), **again})


def _read(place: Path) -> list[str]:
    try:
        lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the prompts {place}", why=str(error), fix="give a text file in UTF-8", code="bad-prompt-file"
        ) from None
    texts = [_of_json(place, line) for line in lines] if place.suffix == ".jsonl" else lines
    if not texts:
        raise DataError(f"{place} is empty", fix="write one prompt on each line", code="bad-prompt-file")
    return unique(texts)


def _of_json(place: Path, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{place} has a line that is not a prompt: {line[:60]}",
            fix='write "text" or {"prompt": "text"} on each line',
            code="bad-prompt-file",
        )
    return text.strip()


@dataclass(frozen=True)
class LabelOnly:
    """The class name alone, with another seed for each image: a baseline for the prompts of a language model."""

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        return Prompts((spoken(name),) * count, {"label_only": count})


def unique(texts: Iterable[str]) -> list[str]:
    """The texts without duplicates; of texts that differ only in case the first is kept."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.casefold(), text)
    return list(first.values())
