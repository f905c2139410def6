"""Public images (candidates) from pretrained networks: BigGAN-deep (Brock, Donahue and Simonyan, ICLR 2019), by
ImageNet classes in place of prompts; or a text-to-image model through the package diffusers, one prompt and seed each,
reduced to the size of the task's images.

Names and shapes of BigGAN are those of the published PyTorch weights, read from safetensors. Spectral norms are
folded into the weights on loading, which changes no image.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino import keys
from sordino.accounting.events import Json
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import COUNT, FRACTION, ConfigError, DataError, Range, extra
from sordino.synthesis.public_images.model_files import Device, bad_model, device, identity, model_folder
from sordino.synthesis.public_images.prompts import chosen, writers
from sordino.synthesis.public_images.store import Draw, draw_all, gathered, spoken, to_bytes

DEEP_128 = (
    (False, 16, 16), (True, 16, 16), (False, 16, 16), (True, 16, 8), (False, 8, 8), (True, 8, 4), (False, 4, 4),
    (True, 4, 2), (False, 2, 2), (True, 2, 1),
)  # fmt: skip


class NetworkConfig(NamedTuple):
    """Content of config.json; the defaults are the network for 128x128."""

    z_dim: int = 128
    channel_width: int = 128
    num_classes: int = 1000
    layers: tuple[tuple[bool, int, int], ...] = DEEP_128  # doubles the size, channels in and out in channel widths
    attention_layer_position: int = 8
    eps: float = 1e-4
    n_stats: int = 51  # moments of activations, for that many truncations from 0 to 1


class TruncatedNorm(nn.Module):
    """Batch norm with the stored moments of the truncation in use; scale and offset may depend on noise and class."""

    def __init__(self, width: int, plan: NetworkConfig, conditional: bool = True) -> None:
        super().__init__()
        self.eps = plan.eps
        self.register_buffer("running_means", torch.zeros(plan.n_stats, width))
        self.register_buffer("running_vars", torch.ones(plan.n_stats, width))
        if conditional:
            self.scale = nn.Linear(2 * plan.z_dim, width, bias=False)
            self.offset = nn.Linear(2 * plan.z_dim, width, bias=False)
        else:
            self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.conditional = conditional

    def forward(self, x: Tensor, truncation: float, condition: Tensor) -> Tensor:
        mean, var = (_between(table, truncation) for table in (self.running_means, self.running_vars))
        weight, bias = (
            (1 + self.scale(condition), self.offset(condition)) if self.conditional else (self.weight, self.bias)
        )
        normed = (x - mean[:, None, None]) / torch.sqrt(var[:, None, None] + self.eps)
        return normed * weight[..., None, None] + bias[..., None, None]


def _between(table: Tensor | nn.Module, truncation: float) -> Tensor:
    assert isinstance(table, Tensor)
    part, low = math.modf(truncation * (len(table) - 1))
    return torch.lerp(table[int(low)], table[min(int(low) + 1, len(table) - 1)], part)


class ResidualBlock(nn.Module):
    """Residual block of BigGAN-deep."""

    def __init__(self, wide: int, out: int, doubles: bool, plan: NetworkConfig) -> None:
        super().__init__()
        thin = wide // 4
        self.doubles, self.out = doubles, out
        self.bn_0, self.conv_0 = TruncatedNorm(wide, plan), nn.Conv2d(wide, thin, 1)
        self.bn_1, self.conv_1 = TruncatedNorm(thin, plan), nn.Conv2d(thin, thin, 3, padding=1)
        self.bn_2, self.conv_2 = TruncatedNorm(thin, plan), nn.Conv2d(thin, thin, 3, padding=1)
        self.bn_3, self.conv_3 = TruncatedNorm(thin, plan), nn.Conv2d(thin, out, 1)

    def forward(self, x: Tensor, truncation: float, condition: Tensor) -> Tensor:
        inner: Tensor = self.conv_0(functional.relu(self.bn_0(x, truncation, condition)))
        inner = functional.relu(self.bn_1(inner, truncation, condition))
        inner = self.conv_1(_doubled(inner) if self.doubles else inner)
        inner = self.conv_2(functional.relu(self.bn_2(inner, truncation, condition)))
        inner = self.conv_3(functional.relu(self.bn_3(inner, truncation, condition)))
        short = x[:, : self.out]
        return inner + (_doubled(short) if self.doubles else short)


def _doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


class Attention(nn.Module):
    """Self-attention of BigGAN-deep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.snconv1x1_theta = nn.Conv2d(width, width // 8, 1, bias=False)
        self.snconv1x1_phi = nn.Conv2d(width, width // 8, 1, bias=False)
        self.snconv1x1_g = nn.Conv2d(width, width // 2, 1, bias=False)
        self.snconv1x1_o_conv = nn.Conv2d(width // 2, width, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, truncation: float, condition: Tensor) -> Tensor:
        theta = self.snconv1x1_theta(x).flatten(2)
        phi = functional.max_pool2d(self.snconv1x1_phi(x), 2).flatten(2)
        value = functional.max_pool2d(self.snconv1x1_g(x), 2).flatten(2)
        weights = torch.softmax(theta.transpose(1, 2) @ phi, -1)
        seen = (value @ weights.transpose(1, 2)).view(len(x), -1, *x.shape[2:])
        out: Tensor = x + self.gamma * self.snconv1x1_o_conv(seen)
        return out


class BigGanGenerator(nn.Module):
    """The layers of BigGAN-deep that draw an image from a condition."""

    def __init__(self, plan: NetworkConfig) -> None:
        super().__init__()
        width = plan.channel_width
        self.start = plan.layers[0][1] * width
        self.gen_z = nn.Linear(2 * plan.z_dim, 16 * self.start)
        made: list[nn.Module] = []
        for at, (doubles, wide, out) in enumerate(plan.layers):
            if at == plan.attention_layer_position:
                made.append(Attention(wide * width))
            made.append(ResidualBlock(wide * width, out * width, doubles, plan))
        self.layers = nn.ModuleList(made)
        last = plan.layers[-1][2] * width
        self.bn = TruncatedNorm(last, plan, conditional=False)
        self.conv_to_rgb = nn.Conv2d(last, last, 3, padding=1)

    def forward(self, condition: Tensor, truncation: float) -> Tensor:
        # the published weights have another layout
        x = self.gen_z(condition).view(-1, 4, 4, self.start).permute(0, 3, 1, 2)
        for layer in self.layers:
            x = layer(x, truncation, condition)
        x = functional.relu(self.bn(x, truncation, condition))
        return torch.tanh(self.conv_to_rgb(x)[:, :3])


class BigGanNetwork(nn.Module):
    """BigGAN-deep: embedding of the class, and generator."""

    def __init__(self, plan: NetworkConfig) -> None:
        super().__init__()
        self.plan = plan
        self.embeddings = nn.Linear(plan.num_classes, plan.z_dim, bias=False)
        self.generator = BigGanGenerator(plan)

    def forward(self, z: Tensor, of: Tensor, truncation: float) -> Tensor:
        """Images from -1 to 1 for noise `z` and ImageNet class numbers `of`."""
        made: Tensor = self.generator(torch.cat([z, self.embeddings.weight.T[of]], 1), truncation)
        return made


def load(folder: Path) -> BigGanNetwork:
    """Load the network from a folder with config.json and model.safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        plan = NetworkConfig(**{name: settings[name] for name in NetworkConfig._fields if name in settings})
        with torch.device("meta"):  # no weights are drawn in vain
            network = BigGanNetwork(plan)
        weights = {name: value.float() for name, value in _folded(load_file(folder / "model.safetensors")).items()}
        network.load_state_dict(weights, assign=True)
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        fix = "give a folder with config.json and the published weights as model.safetensors"
        raise bad_model(folder, "a BigGAN-deep generator", error, fix) from None
    return network.eval().requires_grad_(False)


def _folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights divided by their spectral norm, which is computed from the stored singular vectors u and v."""
    found = {name: value for name, value in weights.items() if not name.endswith(("_orig", "_u", "_v"))}
    for name, value in weights.items():
        if name.endswith("_orig"):
            stem = name.removesuffix("_orig")
            norm = weights[f"{stem}_u"] @ (value.flatten(1) @ weights[f"{stem}_v"])
            found[stem] = value / norm
    return found


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

        where = device(self.device)
        network = load(folder).to(where)

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
        ranges = json.loads(place.read_text(encoding="utf-8"))
        return {
            spoken(name).casefold(): [of for part in parts for of in _range(part)] for name, parts in ranges.items()
        }
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
        facts = {"model": model, "revision": self.revision, "settings": settings}
        return gathered("diffusers", self.label, wanted, drawn.images, **writers(asked), **facts, **drawn.facts)

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
        fix = "give a folder with model_index.json and weights in safetensors"
        raise bad_model(folder, "a text-to-image model that diffusers can read", error, fix) from None
