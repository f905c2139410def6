"""Cache on disk of expensive results, keyed by the hash of everything that they depend on; the manifest that every
source of candidates writes for its images; and the drawing of images, each cached by itself, so that an interrupted run
continues where it stopped.

Each file holds the SHA-256 of its content, then the content, and is written atomically. A damaged file is made again.

Operations on uint8 images, channels last, with torch alone: size, colour, position, blur.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sordino import keys
from sordino.data.dataset import DISCLOSED, Array, Candidates, ImageNeeds
from sordino.errors import DataError
from sordino.ledger.files import atomic_write

GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601
Shape = tuple[int, int, int]


def fit(images: Array, shape: Shape) -> Array:
    """Images [n, h, w, c] converted to the given size and number of channels."""
    if images.shape[1:] == shape:
        return np.ascontiguousarray(images)
    return to_bytes(resized(recoloured(to_float(images), shape[2]), shape))


def to_float(images: Array) -> Tensor:
    """Images as float32 [n, c, h, w] from 0 to 1."""
    return torch.from_numpy(np.array(images, np.uint8)).permute(0, 3, 1, 2).float() / 255


def to_bytes(images: Tensor) -> Array:
    return (images * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def recoloured(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images[:, :1].repeat(1, 3, 1, 1)
    return (images[:, :3] * torch.tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def resized(images: Tensor, shape: Shape) -> Tensor:
    if images.shape[2:] == shape[:2]:
        return images
    return torch.nn.functional.interpolate(images, shape[:2], mode="bilinear", antialias=True)


def is_blank(image: Array) -> bool:
    """True for an image of a single colour, which a safety filter returns in place of a blocked one."""
    return bool((image == image[0, 0]).all())


def moved(images: Tensor, key: int) -> Tensor:
    """The images, each rotated by up to 15 degrees, sheared, scaled by up to a sixth and shifted by up to a tenth, with
    margins as in MNIST (a figure of 20 pixels in a frame of 28).
    """
    u = keys.uniform(key, 5 * len(images)).float().reshape(5, -1) * 2 - 1
    angle, shear, grow = u[0] * (math.pi / 12), u[1] * 0.15, 1.4 * torch.exp(u[2] * math.log(7 / 6))
    cos, sin = torch.cos(angle) * grow, torch.sin(angle) * grow
    rows = [torch.stack([cos, shear - sin, u[3] * 0.2], 1), torch.stack([sin, cos, u[4] * 0.2], 1)]
    grid = torch.nn.functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def shifted(images: Tensor, strength: float, key: int) -> Tensor:
    """The images as if taken by another camera: lower contrast, rotated hue, blur and noise, the same for all images.
    Strength 0 changes nothing.
    """
    grey = images.mean((1, 2, 3), keepdim=True)
    images = grey + (images - grey) * 0.75**strength + 0.04 * strength
    if images.shape[1] == 3:
        images = _turned(images, 0.6 * strength)
    near = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = torch.lerp(images, near, 0.5 * min(strength, 2.0))
    noise = torch.randn(images.shape, generator=keys.generator(key))
    return (images + 0.03 * strength * noise).clamp(0, 1)


def _turned(images: Tensor, angle: float) -> Tensor:
    """Colours rotated about the grey axis (Rodrigues)."""
    cos, third = math.cos(angle), (1 - math.cos(angle)) / 3
    side = math.sin(angle) / math.sqrt(3)
    a, b, c = cos + third, third - side, third + side
    turn = torch.tensor([[a, b, c], [c, a, b], [b, c, a]])
    return torch.einsum("ij,njhw->nihw", turn, images)


DIGEST = hashlib.sha256().digest_size


def name(**depends: object) -> str:
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def place(cache: Path, kind: str, called: str) -> Path:
    return cache / kind / called[:2] / called


def get(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, error) from None
    content = stored[DIGEST:]
    return content if stored[:DIGEST] == hashlib.sha256(content).digest() else None


def put(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, hashlib.sha256(content).digest() + content)
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(
        f"the cache of candidates cannot use the directory {path}",
        why=str(error),
        fix="set engine.cache to a directory that has space and that you may write to",
        code="candidate-cache",
    )


PROXY = "proxy candidates - not text-to-image output"
PUBLIC = f"{PROXY}; uses labelled public data"


def spoken(name: str) -> str:
    """A class name in words: "pickup truck" for `pickup_truck`."""
    return " ".join(name.replace("_", " ").split())


def gathered(source: str, label: str, wanted: ImageNeeds, images: Sequence[Array], **more: object) -> Candidates:
    """Candidates (public images) with their manifest, from one array of images per class."""
    counts = [len(of_class) for of_class in images]
    x = np.concatenate([np.asarray(of_class, np.uint8).reshape(-1, *wanted.shape) for of_class in images])
    y = np.repeat(np.arange(len(images), dtype=np.int64), counts)
    different = {(int(of), hashlib.sha256(image.tobytes()).digest()) for image, of in zip(x, y, strict=True)}
    manifest = {
        "source": source,
        "label": label,
        "model": None,
        "shape": list(wanted.shape),
        "wanted": wanted.per_class,
        "counts": dict(zip(wanted.classes, counts, strict=True)),
        "duplicates": len(x) - len(different),  # images that equal another one of their class to the last bit
        "blanks": 0,
        "prompts": {},
        "calls": 0,
        DISCLOSED: [],
        "made": len(x),
        "cached": 0,
        **more,
    }
    return Candidates(x, y, manifest)


REDRAWN = 3  # retries of an image of one colour, as a safety filter leaves it
Draw: TypeAlias = Callable[[list[str], list[int]], Array]  # prompts and seeds -> uint8 [n, h, w, 3], of any size


class DrawnImages(NamedTuple):
    """Images that were drawn for each class, and counts of them."""

    images: list[Array]  # per class, without the blanks
    facts: dict[str, int]


class _ImageOrder(NamedTuple):
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
) -> DrawnImages:
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
                    put(place(wanted.cache, "images", order.name), image.tobytes())
    blank = {name for name, image in found.items() if is_blank(image)}
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
    return DrawnImages([np.stack(of_class) for of_class in images], facts)


def _order(wanted: ImageNeeds, of: int, at: int, text: str, depends: Mapping[str, object]) -> _ImageOrder:
    # keyed by the name of the class: its images do not depend on other classes
    key = keys.fold(wanted.key, "image", wanted.classes[of], at)
    seeds = tuple(keys.word(keys.fold(key, attempt)) for attempt in range(1 + REDRAWN))
    return _ImageOrder(of, text, seeds, name(prompt=text, seed=seeds[0], shape=wanted.shape, **depends))


def _from_cache(wanted: ImageNeeds, order: _ImageOrder) -> Array | None:
    stored = get(place(wanted.cache, "images", order.name)) if wanted.cache is not None else None
    return None if stored is None else np.frombuffer(stored, np.uint8).reshape(wanted.shape)


def _drawn(orders: list[_ImageOrder], draw: Draw, wanted: ImageNeeds) -> Iterator[Array]:
    images: dict[int, Array] = {}
    todo = list(range(len(orders)))
    for attempt in range(1 + REDRAWN):
        made = draw([orders[at].prompt for at in todo], [orders[at].seeds[attempt] for at in todo])
        images |= dict(zip(todo, made, strict=True))
        todo = [at for at in todo if is_blank(images[at])]
        if not todo:
            break
    for at in range(len(orders)):
        yield fit(images[at][None], wanted.shape)[0]
