"""What the laws are tried on: one row per algorithm and gate. A new algorithm joins every law by one row.

A row says what the algorithm is, which budget it runs under, who is finite in its receipt, and maybe two tables that
must train the same model: `silent` (next to no noise, a clip that never bites) and `plain` (no privacy at all).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sordino import config
from sordino.config import Experiment

Table = dict[str, Any]
Reach = Literal["example", "cell", "client", "central", ""]
ROUNDS, CLIENTS = 4, 5


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: Table
    privacy: Table = field(default_factory=dict)  # no budget
    cohort: Table = field(default_factory=lambda: {"name": "round_robin", "size": 2})
    uplink: Table | None = None
    model: Table = field(default_factory=lambda: {"name": "logistic"})
    more: Table = field(default_factory=dict)  # other tables of the experiment
    protects: Reach = ""  # what is finite: examples, whole clients, or clients against everybody but the server
    status: str = "proved"
    answers: bool = False  # images are answered for: single values and images have finite rows, too
    printed: str = ""  # the unit about which a number is printed that proves nothing: its rows stay infinite
    silent: Table | None = None  # what changes the case into its twin without noise
    plain: Table | None = None  # and the experiment without privacy that it must equal

    def experiment(self, **changes: Any) -> Experiment:
        table = {
            "name": self.name,
            "rounds": ROUNDS,
            "partition": {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 1.0},
            "model": self.model,
            "cohort": self.cohort,
            "algorithm": self.algorithm,
            "privacy": self.privacy,
            "evaluation": {"every": 2, "final": 1},
            "engine": {"executor": "loop", "workers": 3},
        }
        if self.uplink is not None:
            table["uplink"] = self.uplink
        return config.validate(table | self.more | changes)

    def finite(self) -> set[tuple[str, str]]:
        """(unit, adversary) with a finite epsilon."""
        everybody = ("server", "participants", "public")
        by: dict[str, set[tuple[str, str]]] = {
            "": set(),
            "example": {("example", a) for a in everybody},
            "cell": {(unit, a) for unit in ("example", "cell") for a in everybody},  # examples by two steps
            "client": {(unit, a) for unit in ("example", "client") for a in everybody},  # replace: examples are implied
            "central": {
                (unit, a) for unit in ("example", "client") for a in everybody[1:]
            },  # examples by group privacy
        }
        return by[self.protects] | {(unit, a) for unit in ("pixel", "image") for a in everybody if self.answers}


BUDGET = {"epsilon": 4.0, "delta": 1e-5}
FOUND = {"epsilon": 4.4814535, "delta": 1e-3}  # kept by a noise multiplier of 1, where the search for it begins
OFF = 1e-9  # a noise multiplier that is as good as none
ONE_STEP = {"name": "fedavg", "lr": 0.5, "local_steps": 1, "batch_size": "full"}
FIVE_STEPS = {"name": "fedavg", "lr": 0.5, "local_steps": 3, "batch_size": "full"}

PERSONAL = {"linspace": [4.0, 12.0], "levels": 3}

CENTRAL: Table = {
    "client": [{"name": "clip", "radius": 1.0}],
    "server": [{"name": "noise", "neighbours": "zero_out"}],
}
CENTRAL_OFF: Table = {
    "client": [{"name": "clip", "radius": 1e4}],
    "server": [{"name": "noise", "neighbours": "zero_out", "multiplier": OFF}],
}
LOCAL: Table = {"client": [{"name": "clip", "radius": 0.5}, "noise", "weigh"]}
LOCAL_OFF: Table = {"client": [{"name": "clip", "radius": 100.0}, {"name": "noise", "multiplier": OFF}, "weigh"]}

FEW_STEPS, SMALL = {"local_steps": 3, "batch_size": 16}, {"name": "mlp", "hidden": 16}
PRIVATE_STEPS = {"name": "prifedsync", "level": "step_level", "sigma": 4.0, **FEW_STEPS}
NORMED = {"name": "resnet18", "norm": "batch", "width": 4}  # with running statistics
SLAUG = {"name": "slaug_fl", "prepare_epochs": 1, "keep": 6, "gan_epochs": 1, "local_epochs": 1, "batch_size": 32}
DRAWN = {
    "data": {"source": "digits", "train": 240, "test": 60, "probe": 5},
    "candidates": {"source": "procedural", "per_class": 12},
}
MEDIAN: Table = {"client": [], "server": [{"name": "median", "f": 2}]}
TURNS = {"name": "round_robin", "size": 2}
# everything kept, nothing cut, next to no noise
LIKE_PFL_DYN = {"name": "cuag_pfl", "variant": "local_client", "rate": 1.0, "clip": 10.0, "multiplier": OFF}

CASES = [
    Case("fedavg", {"name": "fedavg", "local_epochs": 2, "lr_decay": 0.9, "lr_decay_per": "participation"}),
    Case("fedavg_batch_norm", {"name": "fedavg", "local_steps": 2, "batch_size": "full"}, model=NORMED),
    Case("scaffold_batch_norm", {"name": "scaffold", "local_steps": 2, "batch_size": "full"}, model=NORMED),
    Case("robust", {"name": "fedavg"}, {}, {"name": "everyone"}, MEDIAN),
    Case("fedopt", {"name": "fedopt", "local_epochs": 2, "lr_decay": 0.9}),
    Case("ditto", {"name": "ditto", "local_epochs": 2, "pull": 0.5}),
    Case("fedprox", {"name": "fedprox", "mu": 0.1, "local_epochs": 2, "batch_size": 32}),
    Case("scaffold", {"name": "scaffold", "local_steps": 3, "batch_size": 32, "lr_decay": 0.9}),
    Case(
        "laplace",
        {"name": "laplace", "clip": 5.0, "lr": 0.5},
        privacy={"epsilon": 8.0, "schedule": {"name": "linear_front"}},
        protects="example",
        silent={"algorithm": {"name": "laplace", "clip": 1e5, "lr": 0.5, "multiplier": OFF}},
        plain={"algorithm": ONE_STEP},
    ),
    Case(
        "gaussian_simple",
        {"name": "gaussian_simple", "clip": 1.0, "lr": 0.5, "lr_decay": 0.9},
        privacy={"epsilon": 0.9, "delta": 1e-5},  # the theorem ends at 1
        protects="example",
    ),
    Case(
        "gaussian_gdp",
        {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5},
        privacy=BUDGET,
        protects="example",
        silent={"algorithm": {"name": "gaussian_gdp", "clip": 1e4, "lr": 0.5, "multiplier": OFF}},
        plain={"algorithm": ONE_STEP},
    ),
    Case(
        "gaussian_gdp_adaptive",
        {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5},
        privacy={**BUDGET, "schedule": {"name": "adaptive"}},
        cohort={"name": "everyone"},
        protects="example",
        status="conditional",
    ),
    Case(
        "dp_sgd",
        {"name": "dp_sgd", "clip": 1.0, "rate": 0.2, "lr": 0.5},
        privacy=BUDGET,
        protects="example",
        silent={"algorithm": {"name": "dp_sgd", "clip": 1e4, "rate": 1.0, "lr": 0.5, "multiplier": OFF}},
        plain={"algorithm": ONE_STEP},
    ),
    Case(
        "gaussian_sampled",
        {"name": "gaussian_sampled", "clip": 1.0, "rate": 0.2, "lr": 0.5},
        privacy={**BUDGET, "schedule": {"name": "list", "values": [1] * 30}},  # listed: priced release by release
        protects="example",
        silent={"algorithm": {"name": "gaussian_sampled", "clip": 1e4, "rate": 1.0, "lr": 0.5, "multiplier": OFF}},
        plain={"algorithm": ONE_STEP},
    ),
    Case(
        "gaussian_sampled_published",
        {"name": "gaussian_sampled", "variant": "published", "clip": 1.0, "rate": 0.2, "lr": 0.5},
        privacy=BUDGET,
        protects="example",
        status="nominal",
        silent={
            "algorithm": {
                "name": "gaussian_sampled",
                "variant": "published",
                "clip": 1e4,
                "rate": 1.0,
                "lr": 0.5,
                "multiplier": OFF,
            }
        },
        plain={"algorithm": ONE_STEP},
    ),
    Case(
        "whole_update",
        {"name": "whole_update", "radius": 0.5, "local_steps": 3, "batch_size": 16, "lr": 0.5},
        privacy={"epsilon": 4.0, "delta": 1e-3},
        protects="client",
        silent={"algorithm": FIVE_STEPS | {"name": "whole_update", "radius": 100.0, "multiplier": OFF}},
        plain={"algorithm": FIVE_STEPS},
    ),
    Case("trainer", {"name": "trainer", "of": "tests.helpers.trainers:draws"}),
    Case(
        "trainer_whole_update",
        {"name": "trainer", "of": "tests.helpers.trainers:sgd"},
        privacy={"epsilon": 4.0, "delta": 1e-3},
        uplink=LOCAL,
        protects="client",
        status="conditional",
        silent={"uplink": LOCAL_OFF},
        plain={"algorithm": FIVE_STEPS, "uplink": {"client": ["weigh"]}},
    ),
    Case(
        "noisy_steps",
        {"name": "noisy_steps", "clip": 1.0, "lr": 0.5, "local_steps": 3},
        privacy=BUDGET,
        protects="example",
        silent={"algorithm": {"name": "noisy_steps", "clip": 1e4, "lr": 0.5, "local_steps": 3, "multiplier": OFF}},
        plain={"algorithm": FIVE_STEPS},
    ),
    Case(
        "noisy_steps_batches",
        {"name": "noisy_steps", "clip": 1.0, "lr": 0.1, "local_epochs": 2, "batch_size": 64},
        privacy=BUDGET,
        protects="example",
        silent={
            "algorithm": {
                "name": "noisy_steps",
                "clip": 1e4,
                "lr": 0.5,
                "local_epochs": 3,
                "batch_size": 10_000,  # one batch holds everything, so that the order of rows cannot matter
                "multiplier": OFF,
            }
        },
        plain={"algorithm": FIVE_STEPS},
    ),
    Case(
        "convex_stable",
        {"name": "convex_stable", "radius": 4.0, "local_steps": 3, "lr": 0.2},
        privacy=BUDGET,
        model={"name": "logistic", "radius": 4.0},
        protects="example",
        silent={
            "algorithm": {"name": "convex_stable", "radius": 4.0, "local_steps": 3, "lr": 0.2, "multiplier": OFF},
        },
        plain={"algorithm": {"name": "fedavg", "lr": 0.2, "local_steps": 3, "batch_size": "full"}},
    ),
    Case(
        "central",
        {"name": "fedavg", "local_steps": 3, "batch_size": "full", "lr": 0.5},
        privacy=FOUND,
        cohort={"name": "poisson", "rate": 0.5},
        uplink=CENTRAL,
        protects="central",
        silent={"uplink": CENTRAL_OFF},
        plain={"uplink": {"client": [], "denominator": "expected"}},
    ),
    Case(
        "central_visible",
        {"name": "fedavg", "local_steps": 3, "batch_size": "full", "lr": 0.5},
        privacy={"epsilon": 8.0, "delta": 1e-3, "schedule": {"name": "geometric", "ratio": 0.5}},
        cohort={"name": "round_robin", "size": 2},
        uplink={
            "client": [{"name": "clip", "radius": 1.0}, {"name": "weigh"}],
            "server": [{"name": "noise", "neighbours": "zero_out"}],
        },
        protects="central",
    ),
    Case(
        "dp_prox",
        {"name": "dp_prox", "clip": 1.0, "mu": 0.1, "local_epochs": 2, "batch_size": 32, "lr": 0.2},
        privacy=FOUND,
        cohort={"name": "poisson", "rate": 0.5},
        protects="central",
        silent={
            "algorithm": {
                "name": "dp_prox",
                "clip": 1e4,
                "mu": 0.1,
                "local_steps": 3,
                "batch_size": "full",
                "lr": 0.5,
                "multiplier": OFF,
            }
        },
        plain={
            "algorithm": {"name": "fedprox", "mu": 0.1, "local_steps": 3, "batch_size": "full", "lr": 0.5},
            "uplink": {"client": [], "denominator": "expected"},
        },
    ),
    Case(
        "dp_prox_published",
        {"name": "dp_prox", "variant": "published", "clip": 1.0, "local_epochs": 1, "batch_size": 32, "lr": 0.2},
        privacy={"epsilon": 8.0, "delta": 1e-3},
        cohort={"name": "random", "size": 2},
        printed="client",
    ),
    Case(
        "dp_fedavg",
        {"name": "dp_fedavg", "clip": 1.0, "neighbours": "replace", "local_epochs": 1, "batch_size": 32, "lr": 0.2},
        privacy={"epsilon": 8.0, "delta": 1e-3},
        cohort={"name": "round_robin", "size": 2},
        protects="central",
    ),
    *(
        Case(
            f"pdp_prox_{mechanism}",
            {"name": "pdp_prox", "mechanism": mechanism, "clip": 1.0, "local_epochs": 1, "batch_size": 32, "lr": 0.2},
            privacy={"epsilon": PERSONAL, "delta": 1e-3},
            cohort=cohort,
            protects=protects,
        )
        for mechanism, cohort, protects in (
            ("bounds", {"name": "round_robin", "size": 2}, "central"),
            ("local", {"name": "round_robin", "size": 2}, "client"),
            ("rates", {"name": "by_budget", "size": 2}, "central"),
            ("threshold", {"name": "threshold"}, "central"),
            ("published", {"name": "threshold_published"}, "client"),
        )
    ),
    Case("pfl_dyn", {"name": "pfl_dyn", **FEW_STEPS}, model=SMALL),
    *(
        Case(
            f"cuag_pfl_{name}",
            {"name": "cuag_pfl", **FEW_STEPS, **rest},
            privacy,
            cohort,
            model=SMALL,
            protects=protects,
            printed="" if name == "no_noise" or protects else "client",
            silent={"algorithm": LIKE_PFL_DYN | FEW_STEPS} if name == "local_client" else None,
            plain={"algorithm": {"name": "pfl_dyn", **FEW_STEPS}} if name == "local_client" else None,
        )
        for name, rest, privacy, cohort, protects in (
            ("no_noise", {"variant": "no_noise"}, {}, TURNS, ""),
            ("published", {"variant": "published", "mu": [0.1, 4.0]}, {}, TURNS, ""),
            ("oracle", {"variant": "published", "server_state": "oracle"}, {}, TURNS, ""),
            (
                "local_client",
                {"variant": "local_client", "matrix": "gaussian"},
                {"epsilon": 4.0, "delta": 1e-3},
                TURNS,
                "client",
            ),
            ("central_client", {"adapt": 1.0}, FOUND, {"name": "poisson", "rate": 0.5}, "central"),
            ("local_sample", {"variant": "local_sample", "cells": 4}, BUDGET, TURNS, "cell"),
        )
    ),
    Case("ldp_fl", {"name": "ldp_fl", **FEW_STEPS}, answers=True),
    Case("lc_fl", {"name": "lc_fl", **FEW_STEPS}, answers=True),
    Case(
        "cdp_fl",
        {"name": "cdp_fl", **FEW_STEPS},
        protects="central",
        status="conditional",
        silent={"algorithm": {"name": "cdp_fl", "beta": OFF, "max_abs": 1e4, **FEW_STEPS}},
        plain={"algorithm": {"name": "fedavg", "lr": 0.1, **FEW_STEPS}},
    ),
    Case("secagg_fl", {"name": "secagg_fl", **FEW_STEPS}, cohort={"name": "round_robin", "size": 3}),
    # a probe encrypts a part of the numbers, and masks the others
    Case(
        "paillier_fl", {"name": "paillier_fl", "mode": "probe", **FEW_STEPS}, cohort={"name": "round_robin", "size": 3}
    ),
    Case("lattice_fl", {"name": "lattice_fl", "mode": "probe", **FEW_STEPS}, cohort={"name": "round_robin", "size": 3}),
    Case(
        "privunit",
        {"name": "fedavg", **FEW_STEPS},
        privacy={"epsilon": 8.0, "delta": 1e-3},
        uplink={"client": [{"name": "clip", "radius": 1.0}, {"name": "privunit"}]},
        protects="client",
    ),
    Case("prifedsync", {"name": "prifedsync", **FEW_STEPS}, model=SMALL, printed="client"),
    Case("prifedsync_steps", PRIVATE_STEPS, model=SMALL, protects="example"),
    Case("udp", {"name": "udp", **FEW_STEPS}, printed="client"),
    Case("udp_discount", {"name": "udp", "discount": True, "horizon": 4, **FEW_STEPS}, printed="client"),
    Case(
        "dp_scaffold",
        {"name": "dp_scaffold", "local_steps": 3},
        privacy=BUDGET,
        protects="example",
        silent={"algorithm": {"name": "dp_scaffold", "local_steps": 3, "clip": 1e4, "rate": 1.0, "multiplier": OFF}},
        plain={
            "algorithm": {
                "name": "scaffold",
                "lr": 0.1,
                "lr_decay": 0.997,
                "local_steps": 3,
                "batch_size": "full",
                "weight_decay": 1e-3,
                "most_grad": 10.0,
            }
        },
    ),
    # a network in front of whose last layer there is something to contrast; images, so that noise may lie beside them
    Case("moon", {"name": "moon", "local_epochs": 2, "batch_size": 32}, model=SMALL),
    Case("fedgen", {"name": "fedgen", "updates": 5, "hidden": 16, **FEW_STEPS}, model=SMALL),
    Case(
        "vhl",
        {"name": "vhl", "per_class": 4, "width": 8, "source": "random_conv", "noise_batch": 16, **FEW_STEPS},
        model=SMALL,
    ),
    Case("dp_scaffold_published", {"name": "dp_scaffold", "variant": "published", **FEW_STEPS}, printed="example"),
    Case(
        "fedavg_prototypes",
        {"name": "fedavg_prototypes", "local_epochs": 1, "batch_size": 32},
        model=SMALL,
        more=DRAWN,
    ),
    # with a preparation before it, whose own laws are in test_phases
    Case("slaug_fl", SLAUG, model=SMALL, more=DRAWN),
    Case(
        "slaug_fl_rigorous_b",
        {**SLAUG, "variant": "rigorous_b", "private_steps": 2},
        privacy=BUDGET,
        model=SMALL,
        more=DRAWN,
        protects="example",
    ),
]
BY_NAME = {case.name: case for case in CASES}
