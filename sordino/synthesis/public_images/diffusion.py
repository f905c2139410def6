"""Public images (candidates) from a text-to-image model, through the package diffusers: one prompt and seed each,
reduced to the size of the task's images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from sordino import keys
from sordino.accounting.events import Json
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import COUNT, ConfigError, Range, extra
from sordino.synthesis.public_images.model_files import Device, device, identity, model_folder
from sordino.synthesis.public_images.prompts import chosen, writers
from sordino.synthesis.public_images.store import Draw, draw_all, gathered

STEPS = {False: 50, True: 25}


@dataclass(frozen=True)
class Diffusers:
    """Images of a text-to-image model on this machine."""

    model: str  # a folder with a pipeline saved by diffusers, or a hub id
    revision: str | None = None  # of a hub id
    steps: Annotated[int | None, COUNT] = None  # none: 50, or 25 with the fast solver
    fast: bool = False  # DPM-Solver++ (Lu et al., 2022) instead of the pipeline's own scheduler
    guidance: float = 7.5
    size: Annotated[int, Range(least=8, whole=True)] = 512  # side in pixels, before images are reduced
    batch: Annotated[int, COUNT] = 8
    device: Device = "auto"
    prompts: Json = field(default_factory=lambda: {"name": "template"})
    label: ClassVar[str] = ""
    pool: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        chosen(self.prompts)  # so that errors come before anything is drawn

    def build(self, wanted: ImageNeeds) -> Candidates:
        with extra("diffusion", "these candidates", "missing-diffusion-extra"):
            from diffusers import DiffusionPipeline

        def fetch(here: bool) -> str:
            found: str = DiffusionPipeline.download(
                self.model, revision=self.revision, use_safetensors=True, local_files_only=here
            )
            return found

        folder = model_folder(self.model, wanted.network, fetch)
        source = chosen(self.prompts)
        asked = [source.prompts(name, wanted.per_class, wanted) for name in wanted.classes]
        steps = self.steps or STEPS[self.fast]
        model = identity(self.model, folder)
        settings = {"steps": steps, "fast": self.fast, "guidance": self.guidance, "size": self.size}
        depends = {"backend": "diffusers", "model": model, "revision": self.revision, **settings}
        drawn = draw_all(wanted, [one.texts for one in asked], depends, self.batch, lambda: self._start(folder, steps))
        told = {"model": model, "revision": self.revision, "settings": settings}
        return gathered("diffusers", self.label, wanted, drawn.images, **writers(asked), **told, **drawn.facts)

    def _start(self, folder: Path, steps: int) -> Draw:
        import torch

        where = device(self.device)
        with torch.random.fork_rng(devices=[]):  # loading layers draws weights from the global generator first
            pipe = _pipeline(folder)
        pipe.to(where, torch.float16 if where == "cuda" else torch.float32)
        pipe.set_progress_bar_config(disable=True)
        if self.fast:
            from diffusers import DPMSolverMultistepScheduler

            pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
        return self._drawer(pipe, steps)

    def _drawer(self, pipe: Callable[..., Any], steps: int) -> Draw:

        def draw(prompts: list[str], seeds: list[int]) -> Array:
            made = pipe(
                prompt=prompts,
                height=self.size,
                width=self.size,
                num_inference_steps=steps,
                guidance_scale=self.guidance,
                generator=[keys.generator(seed) for seed in seeds],
                output_type="np",
            )
            images: Array = np.nan_to_num(np.asarray(made.images, np.float32))  # half precision overflows at times
            levels: Array = np.rint(images.clip(0, 1) * 255).astype(np.uint8)
            return levels

        return draw


def _pipeline(folder: Path) -> Any:
    from diffusers import AutoPipelineForText2Image

    try:
        return AutoPipelineForText2Image.from_pretrained(str(folder), use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{folder} does not hold a text-to-image model that diffusers can read",
            why=" ".join(str(error).split())[:300],
            fix="give a folder with model_index.json and weights in safetensors",
            code="bad-model",
        ) from None
