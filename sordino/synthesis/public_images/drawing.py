"""Generation of images that are expensive to draw: each is cached by itself, so that an interrupted run continues where
it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from sordino import keys
from sordino.data.dataset import Array, ImageNeeds
from sordino.errors import DataError
from sordino.synthesis.public_images import pixels, store

REDRAWN = 3  # retries of an image of one colour, as a safety filter leaves it
Draw: TypeAlias = Callable[[list[str], list[int]], Array]  # prompts and seeds -> uint8 [n, h, w, 3], of any size


class Drawn(NamedTuple):
    images: list[Array]  # per class, without the blanks
    facts: dict[str, int]


class _Order(NamedTuple):
    of: int
    prompt: str
    seeds: tuple[int, ...]  # the first, and those of another try
    name: str  # in the cache


def draw_all(
    wanted: ImageNeeds,
    texts: Sequence[Sequence[str]],
    depends: Mapping[str, object],
    batch: int,
    start: Callable[[], Draw],
) -> Drawn:
    """An image for every text, from the cache where possible. `depends`: everything that determines an image beside its
    text and seed; `start` loads the model, if any image is missing.
    """
    orders = [_order(wanted, of, at, text, depends) for of, own in enumerate(texts) for at, text in enumerate(own)]
    found = {order.name: image for order in orders if (image := _from_cache(wanted, order)) is not None}
    missing = [order for order in orders if order.name not in found]
    if missing:
        draw = start()
        for at in range(0, len(missing), batch):
            some = missing[at : at + batch]
            for order, image in zip(some, _drawn(some, draw, wanted), strict=True):
                found[order.name] = image
                if wanted.cache is not None:
                    store.put(store.place(wanted.cache, "images", order.name), image.tobytes())
    blank = {name for name, image in found.items() if pixels.is_blank(image)}
    images = [
        [found[order.name] for order in orders if order.of == of and order.name not in blank]
        for of in range(len(texts))
    ]
    for name, of_class in zip(wanted.classes, images, strict=True):
        if not of_class:
            raise DataError(
                f"every image of {name!r} is blank",
                why=f"the model's safety filter removed them, after {1 + REDRAWN} attempts for each image",
                fix="use other prompts, or another model",
                code="all-blank",
            )
    facts = {"made": len(missing), "cached": len(orders) - len(missing), "blanks": len(blank)}
    return Drawn([np.stack(of_class) for of_class in images], facts)


def _order(wanted: ImageNeeds, of: int, at: int, text: str, depends: Mapping[str, object]) -> _Order:
    # keyed by the name of the class: its images do not depend on other classes
    key = keys.fold(wanted.key, "image", wanted.classes[of], at)
    seeds = tuple(keys.word(keys.fold(key, attempt)) for attempt in range(1 + REDRAWN))
    return _Order(of, text, seeds, store.name(prompt=text, seed=seeds[0], shape=wanted.shape, **depends))


def _from_cache(wanted: ImageNeeds, order: _Order) -> Array | None:
    stored = store.get(store.place(wanted.cache, "images", order.name)) if wanted.cache is not None else None
    return None if stored is None else np.frombuffer(stored, np.uint8).reshape(wanted.shape)


def _drawn(orders: list[_Order], draw: Draw, wanted: ImageNeeds) -> Iterator[Array]:
    images: dict[int, Array] = {}
    todo = list(range(len(orders)))
    for attempt in range(1 + REDRAWN):
        made = draw([orders[at].prompt for at in todo], [orders[at].seeds[attempt] for at in todo])
        images |= dict(zip(todo, made, strict=True))
        todo = [at for at in todo if pixels.is_blank(images[at])]
        if not todo:
            break
    for at in range(len(orders)):
        yield pixels.fit(images[at][None], wanted.shape)[0]
