"""SlaugFL: training with images that a generator draws. "SlaugFL: Efficient federated learning via selective GAN-based
data augmentation", IEEE Transactions on Mobile Computing, 2024.

This file composes it: a preparation that makes the generator (`slaug_prepare`, or `slaug_pool`, then
`slaug_generator`), and the training with it (`slaug_training`, or `slaug_served`). The variants that promise something
are ours; so is `default`, where the paper's text and its released code disagree.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Literal

from sordino.algorithms.phases import Phased
from sordino.algorithms.slaug.generator import PLAIN, Kind, Recipe
from sordino.algorithms.slaug.pool import Pool
from sordino.algorithms.slaug.prepare import Ask, Train
from sordino.algorithms.slaug.served import Served
from sordino.algorithms.slaug.training import SlaugFL
from sordino.generators import acgan, matching
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.privacy.uplink.stages import Weigh

COUNT = 200  # drawn images of a client whose size is nobody's business
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper_text": {
        "momentum": 0.0,
        "rank": "recall",
        "probe": "test",
        "gan_lr": 0.01,
        "gan_decay": 1e-4,
        "diversity": "published",
    },
    "released_code": {
        "lr_decay": 1.0,
        "keeps_momentum": True,
        "label_mode": "shifted",
        "proto_scope": "local+syn",
        "rank": "recall",
        "probe": "test",
        "rescale": "minmax",
        "diversity": "published",
    },
}


Variant = Literal["as_published", "secagg", "dp_proto_only", "pooled", "rigorous_a", "rigorous_b"]


def slaug_fl(
    variant: Variant = "as_published",
    preset: Literal["default", "paper_text", "released_code"] = "default",
    scenario: Literal[1, 2] = 1,
    generator: Kind = "auto",
    lr: float = 0.01,
    momentum: float = 0.9,
    keeps_momentum: bool = False,
    weight_decay: float = 5e-4,
    lr_decay: float = 0.998,
    local_epochs: int = 10,
    batch_size: int = 64,
    synthetic: float = 0.5,
    separation: float = 1.0,
    temperature: float = 0.5,
    label_mode: Literal["shared", "shifted"] = "shared",
    proto_scope: Literal["local", "local+syn", "sample"] = "local",
    rescale: Literal["fixed", "minmax"] = "fixed",
    proto_upload: Literal["devices", "server_side"] = "devices",
    match_steps: bool = False,
    prepare_epochs: int = 10,
    patience: int = 3,
    rank: Literal["f1", "recall"] = "f1",
    probe: Literal["holdout", "test", "candidates"] = "holdout",
    least: int = 1,
    prototypes: int | None = None,
    merge: Literal["mean_distance", "mean"] = "mean_distance",
    keep: int = 1000,
    threshold: float | None = None,
    gan_epochs: int = 500,
    gan_lr: float = 2e-4,
    gan_decay: float = 0.0,
    gan_batch: int = 64,
    match_updates: int = 10_000,
    match_lr: float = 2e-4,
    diversity: float | Literal["auto", "published"] = "auto",
    diversity_sign: Literal["reciprocal", "literal"] = "reciprocal",
    extractor: str | None = None,
    project: int = 32,
    clip: float = 1.0,
    rate: float = 0.1,
    private_steps: int = 10,
    count: int | None = None,
    share: float = 0.2,
) -> Phased:
    """Scenario 1 chooses candidates and trains an ACGAN on them, scenario 2 has prototypes alone. A preset fills in
    what is not set.

    as_published   models and prototypes go out as they are
    secagg         the same, but in the rounds of training only sums are opened
    dp_proto_only  prototypes are noised; models are not
    pooled         no models and no prototypes of single devices: sums of features of a public extractor
    rigorous_b     pooled, with noise, and noised gradients in training: private for every example, end to end
    rigorous_a     models trained by noised gradients, noised prototypes, noised gradients in training: likewise
    """
    chosen = {name: value for name, value in locals().items() if name != "preset"}
    defaults = {name: p.default for name, p in inspect.signature(slaug_fl).parameters.items()}
    chosen |= {name: value for name, value in PRESETS[preset].items() if chosen[name] == defaults[name]}
    return _composed(**chosen)


def _composed(**given: Any) -> Phased:
    variant: str = given["variant"]
    private = variant.startswith("rigorous")
    sgd = {name: given[name] for name in ("lr", "momentum", "weight_decay", "batch_size")}
    gan = acgan.AcganSettings(given["gan_epochs"], given["gan_batch"], given["gan_lr"], weight_decay=given["gan_decay"])
    match = matching.MatchingSettings(
        given["match_updates"],
        given["gan_batch"],
        given["match_lr"],
        diversity=given["diversity"] if isinstance(given["diversity"], float) else None,
        sign=given["diversity_sign"],
    )
    as_text = given["diversity"] == "published"
    recipe = Recipe(
        given["generator"], given["scenario"], given["keep"], given["merge"], gan, match, given["threshold"], as_text
    )
    noisy = NoisyGradient(given["clip"], sampling="poisson", rate=given["rate"], neighbours="add_remove")
    steps = {"local_steps": given["private_steps"]} if private else {"local_epochs": given["local_epochs"]}
    names = ("scenario", "generator", "lr_decay", "synthetic", "separation", "temperature", "label_mode", "rescale")
    more = ("match_steps", "proto_scope", "count", "keeps_momentum")
    kind = SlaugFL if given["proto_upload"] == "devices" else Served
    training = kind(**sgd, **steps, **{name: given[name] for name in (*names, *more)})
    # the sum of losses of single examples is all that can be clipped; a public number of drawn images tells nobody's
    # size
    if private:
        training = replace(training, proto_scope="sample", count=given["count"] or COUNT, uplink=PLAIN, read=noisy)
    if variant == "secagg":
        training = replace(training, uplink=Uplink((Weigh(), Aggregated())))
    epochs = {"local_epochs": given["prepare_epochs"]}
    if variant in ("pooled", "rigorous_b"):
        pool = Pool(**sgd, **epochs, recipe=recipe, project=given["project"], extractor=given["extractor"])
        pool = replace(pool, read=ClassSums(1.0)) if private else pool
        return Phased((pool,), training, (given["share"],))
    alone = Train(**sgd, **epochs, patience=given["patience"], rank=given["rank"], probe=given["probe"])
    ask = Ask(recipe=recipe, least=given["least"], prototypes=given["prototypes"])
    if variant in ("dp_proto_only", "rigorous_a"):
        ask = replace(ask, read=ClassSums(1.0), project=given["project"])
    if private:
        alone = replace(alone, local_epochs=None, local_steps=given["private_steps"], stops=False, read=noisy)
    return Phased((alone, ask), training, (given["share"], given["share"]))
