"""Prompts from a grammar: a style, the class by one of its names, what it is like, where, in what light, seen from
where. Needs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sordino import keys
from sordino.data.candidates import Wanted
from sordino.errors import ConfigError
from sordino.synthesis.public_images.manifest import spoken
from sordino.synthesis.public_images.prompts.asked import Prompts

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


@dataclass(frozen=True)
class Template:
    def prompts(self, name: str, count: int, wanted: Wanted) -> Prompts:
        word = spoken(name).casefold()
        parts = (STYLES, LOOKS, SYNONYMS.get(word, (word,)), POSES, PLACES, LIGHTS, VIEWS)
        total = prod(map(len, parts))
        if count > total // 2:
            raise ConfigError(
                f"the template has only {total // 2} prompts for {name}, and {count} are needed",
                fix="ask for fewer images per class, or use another source of prompts",
                code="too-few-prompts",
            )
        # four times as many draws as prompts: none comes twice, and more than half of the grammar is never wanted
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
