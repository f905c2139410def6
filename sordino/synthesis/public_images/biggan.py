"""Candidates from a pretrained BigGAN-deep (Brock, Donahue and Simonyan, ICLR 2019), by ImageNet classes in place of
prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch

from sordino import keys
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import COUNT, FRACTION, ConfigError, DataError
from sordino.synthesis.public_images.drawing import Draw, draw_all
from sordino.synthesis.public_images.model_files import Device, device, identity, model_folder
from sordino.synthesis.public_images.pixels import to_bytes
from sordino.synthesis.public_images.store import gathered, spoken

BOUND = 2.0  # of the truncated normal distribution of noise, in deviations


@dataclass(frozen=True)
class BigGan:
    """Images of a class-conditional network trained on ImageNet."""

    path: str  # a folder with config.json and model.safetensors
    truncation: Annotated[float, FRACTION] = 0.4
    ids: str | None = None  # a JSON file: class -> ImageNet ids; none: that of the package
    batch: Annotated[int, COUNT] = 16
    device: Device = "auto"
    label: ClassVar[str] = "candidates of a GAN trained on ImageNet - not text-to-image output"
    pool: ClassVar[float] = 0.0

    def build(self, wanted: ImageNeeds) -> Candidates:
        known = _ids(self.ids)
        texts = [_chosen(name, known, wanted) for name in wanted.classes]
        folder = model_folder(self.path, network=False, fetch=_nowhere)
        model = identity(self.path, folder)
        depends = {"backend": "biggan", "model": model, "truncation": self.truncation}
        drawn = draw_all(wanted, texts, depends, self.batch, lambda: self._start(folder))
        settings = {"truncation": self.truncation}
        return gathered("biggan", self.label, wanted, drawn.images, model=model, settings=settings, **drawn.facts)

    def _start(self, folder: Path) -> Draw:
        from sordino.synthesis.public_images import biggan_network

        where = device(self.device)
        network = biggan_network.load(folder).to(where)

        def draw(prompts: list[str], seeds: list[int]) -> Array:
            z = torch.stack([noise(seed, network.plan.z_dim, self.truncation) for seed in seeds]).float()
            of = torch.tensor([int(prompt.removeprefix(NAME)) for prompt in prompts])
            if of.max() >= network.plan.num_classes:
                raise ConfigError(
                    f"the model in {folder} has {network.plan.num_classes} classes, and none of them has the id "
                    f"{int(of.max())}",
                    fix="give a file with the ids of this model as candidates.ids",
                    code="bad-imagenet-ids",
                )
            with torch.inference_mode():
                made = network(z.to(where), of.to(where), self.truncation)
            return to_bytes((made.float().cpu() + 1) / 2)

        return draw


NAME = "imagenet "


def noise(key: int, count: int, truncation: float) -> torch.Tensor:
    """Normal noise truncated at two deviations, times the truncation."""
    tail = torch.special.ndtr(torch.tensor(-BOUND, dtype=torch.float64))
    drawn: torch.Tensor = torch.special.ndtri(tail + keys.uniform(key, count) * (1 - 2 * tail)) * truncation
    return drawn


def _nowhere(_: bool) -> str:
    raise OSError("a BigGAN is read from a folder")


def _ids(path: str | None) -> dict[str, list[int]]:
    place = (
        files("sordino.synthesis.public_images").joinpath("imagenet_ids.json")
        if path is None
        else Path(path).expanduser()
    )
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
        return {spoken(name).casefold(): [of for part in parts for of in _range(part)] for name, parts in told.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"cannot read the ImageNet ids {path}",
            why=str(error),
            fix='write a JSON file such as {"cat": ["281-285"], "frog": [30, 31, 32]}',
            code="bad-imagenet-ids",
        ) from None


def _range(part: object) -> range:
    first, _, last = str(part).partition("-")
    return range(int(first), int(last or first) + 1)


def _chosen(name: str, known: Mapping[str, list[int]], wanted: ImageNeeds) -> tuple[str, ...]:
    ids = known.get(spoken(name).casefold())
    if not ids:
        raise ConfigError(
            f"ImageNet has no class for {name!r}",
            why="BigGAN draws only the 1,000 classes that it was trained on",
            fix="drop the class, or give its ids in a file of your own (candidates.ids)",
            code="no-imagenet-id",
        )
    drawn = keys.integers(keys.fold(wanted.key, "imagenet", name), wanted.per_class, len(ids)).numpy()
    return tuple(f"{NAME}{of}" for of in np.array(ids)[drawn])
