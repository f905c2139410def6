"""Experiments that must not start, each with its code."""

from __future__ import annotations

import math

from tests.privacy.unsafe_parts import (
    CENTRAL,
    CLIP,
    COORDINATES,
    DIGITS,
    MEDIAN,
    NOISE,
    POISSON,
    PUBLISHED,
    QUICK,
    Table,
    budget,
    fedavg,
    gdp,
    plain,
    read,
    up,
)

EXPERIMENTS: dict[str, tuple[str, Table]] = {
    "two local steps under a one-step bound": ("one-step-only", gdp(local_steps=2)),
    "a hidden cohort that may be too small to be opened": (
        "broken-rounds-tell",
        {
            **up([CLIP, {"name": "noise_share", "survivors": 4}, {"name": "secagg"}]),
            "cohort": POISSON,
            **budget(**QUICK),
        },
    ),
    "a timeout under which one client of a hidden cohort makes another one late": (
        "timeout-tells",
        {
            **up([CLIP], [{"name": "noise", "neighbours": "zero_out"}]),
            "cohort": POISSON,
            "engine": {"executor": "processes", "network": {"timeout_s": 60.0}},
        },
    ),
    "a deadline under which one client more of a hidden cohort ends the run": (
        "timeout-tells",
        {
            **up([CLIP], [{"name": "noise", "neighbours": "zero_out"}]),
            "cohort": POISSON,
            "engine": {"executor": "processes", "deadline_s": 60.0},
        },
    ),
    "two private gates, and nobody may see who took part": (
        "two-gates-hidden",
        {
            **up([CLIP], [{"name": "noise", "neighbours": "zero_out", "multiplier": 1.0}]),
            **fedavg(batch_size="full"),
            **read(multiplier=1.0),
            "cohort": POISSON,
            "privacy": {},
        },
    ),
    "two local steps of laplace": ("one-step-only", {"algorithm": {"name": "laplace", "local_steps": 2}}),
    "a batch smaller than n": ("full-batch-only", gdp(batch_size=1)),
    "momentum at the client": ("client-momentum", gdp(momentum=0.9)),
    "classic gaussian at epsilon 2": (
        "classic-gaussian-needs-small-epsilon",
        {"rounds": 1, "algorithm": {"name": "gaussian_simple", "clip": 1.0}},
    ),
    "classic checked where the formula fails": (
        "classic-gaussian-needs-small-epsilon",
        {"rounds": 1, "algorithm": {"name": "gaussian_simple", "checked": True}, **budget(epsilon=30.0)},
    ),
    "classic with a typed multiplier and no budget": (
        "classic-needs-budget",
        {**fedavg(batch_size="full"), **read(law="gaussian_classic", multiplier=5.0), "privacy": {}},
    ),
    "sizes secret, noise scaled by n": ("sizes-not-public", budget(public_sizes=False)),
    "sizes secret, sampled and divided by rate n": (
        "sizes-not-public",
        {"algorithm": {"name": "gaussian_sampled", "rate": 0.5}, **budget(public_sizes=False)},
    ),
    "sizes secret, clients weighed by them": (
        "sizes-not-public",
        {**up([CLIP, NOISE, {"name": "weigh"}]), **budget(public_sizes=False)},
    ),
    "sizes secret, and delta of how many images": (
        "sizes-not-public",
        {
            **DIGITS,
            **fedavg(),
            "uplink": [],
            "read": {"name": "responses", "label_epsilon": 1.0},
            "privacy": {"delta": 0.1, "public_sizes": False},
        },
    ),
    "delta of one over the examples": ("delta-too-large", budget(delta=1 / 6)),
    "delta of one over the clients": ("delta-too-large", {**up([CLIP, NOISE]), **budget(delta=0.2)}),
    "delta of more than one over the images, under randomised response": (
        "delta-too-large",
        {**DIGITS, "algorithm": {"name": "ldp_fl", "label_epsilon": 1.0}, "privacy": {"delta": 1e-3}},
    ),
    "delta of one over the clients, under noise as published": (
        "delta-too-large",
        {**up([COORDINATES], [PUBLISHED]), "privacy": {"delta": 0.2}},
    ),
    "real noise as published for which delta is too small": (
        "noise-lacks-delta",
        {**up([COORDINATES], [{**PUBLISHED, "epsilon": 1.3}]), "privacy": {"delta": 1e-9, "noise": "system"}},
    ),
    "weights before the clip, under noise as published": (
        "weight-before-clip",
        plain([{"name": "weigh"}, COORDINATES], [PUBLISHED]),
    ),
    "delta 0 for gaussian noise": ("delta-out-of-range", budget(delta=0.0)),
    "delta above 1": ("delta-out-of-range", budget(delta=1.5)),
    "epsilon 0": ("epsilon-not-positive", budget(epsilon=0.0)),
    "epsilon negative": ("epsilon-not-positive", budget(epsilon=-1.0)),
    "epsilon infinite": ("wrong-type", budget(epsilon=math.inf)),
    "epsilon no number": ("wrong-type", budget(epsilon=math.nan)),
    "a budget and no mechanism": ("budget-without-mechanism", fedavg()),
    "a budget and a typed multiplier": ("budget-without-mechanism", gdp(multiplier=1.0)),
    "a mechanism and no budget": ("mechanism-without-budget", {"privacy": {}}),
    "two gates for one budget": (
        "two-promises-one-budget",
        {**up([CLIP, NOISE]), **fedavg(batch_size="full"), **read()},
    ),
    "noise 0 in a reader": ("noise-not-positive", gdp(multiplier=0.0)),
    "noise negative in a reader": ("noise-not-positive", gdp(multiplier=-1.0)),
    "noise 0 in an uplink": ("noise-not-positive", up([CLIP, {"name": "noise", "multiplier": 0.0}])),
    "noise before the clip": ("noise-before-clip", up([NOISE, CLIP])),
    "clip, noise and another clip": ("noise-before-clip", up([CLIP, NOISE, CLIP])),
    "local noise without a clip": ("unbounded-sensitivity", up([NOISE])),
    "central noise without a clip": ("unbounded-sensitivity", up([{"name": "weigh"}], [CENTRAL])),
    "central noise on integers of uploads that no clip has made finite": (
        "unbounded-sensitivity",
        up([{"name": "quantise"}], [CENTRAL]),
    ),
    "local noise on integers of uploads that no clip has made finite": (
        "unbounded-sensitivity",
        up([{"name": "quantise"}, NOISE]),
    ),
    "central noise and the clip after the sum": ("server-stage-not-noise", up([], [CLIP, CENTRAL])),
    "add_remove at the client": ("unknown-neighbours", up([CLIP, {"name": "noise", "neighbours": "add_remove"}])),
    "add_remove at the server": ("unknown-neighbours", up([CLIP], [{**CENTRAL, "neighbours": "add_remove"}])),
    "add_remove of records": (
        "unknown-neighbours",
        {**fedavg(batch_size="full"), **read(sampling="poisson", rate=0.5, neighbours="add_remove")},
    ),
    "add_remove of a method": (
        "unknown-neighbours",
        {"algorithm": {"name": "dp_prox", "neighbours": "add_remove"}, "cohort": POISSON},
    ),
    "central noise over those who answered": ("realised-denominator", up([CLIP], [CENTRAL], denominator="received")),
    "a denominator nobody knows": ("unknown-denominator", up([CLIP], [CENTRAL], denominator="realized")),
    "a robust sum among the clients": ("robust-sum-at-the-client", up([MEDIAN])),
    "a median under central noise": ("robust-sum-under-noise", up([CLIP], [MEDIAN, CENTRAL])),
    "a median under central noise as published": (
        "robust-sum-under-noise",
        {**up([{"name": "clip_coordinates"}], [{"name": "coordinate_laplace"}, MEDIAN]), "privacy": {}},
    ),
    "central noise of few steps of the grid": (
        "noise-too-narrow",
        up([CLIP, {"name": "quantise", "bits": 8}, {"name": "secagg"}], [CENTRAL]),
    ),
    "central noise that encrypted uploads leave no room for": (
        "no-room-for-noise",
        {**up([CLIP, {"name": "paillier"}], [{**CENTRAL, "multiplier": 30.0}]), "privacy": {}},
    ),
    "central noise that has too few steps in a later round": (  # 4,574 in the first, 2,287 in the last
        "noise-too-narrow",
        {
            **up([CLIP, {"name": "quantise", "bits": 11}, {"name": "secagg"}], [CENTRAL]),
            **budget(schedule={"name": "linear_back"}),
        },
    ),
    "noise of few steps of the grid beside loud noise on gradients": (
        "noise-too-narrow",
        {
            **up([CLIP, {"name": "quantise", "bits": 8}, {"name": "secagg"}], [{**CENTRAL, "multiplier": 1.0}]),
            "read": {"name": "noisy_gradient", "clip": 1.0, "multiplier": 1e4},
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": "full"},
            "privacy": {"delta": 1e-3},
        },
    ),
    "a client's noise of few steps of the grid": (
        "noise-too-narrow",
        up([CLIP, {"name": "quantise", "bits": 8}, NOISE]),
    ),
    "a median under shares of noise": (
        "stage-reads-each",
        up([CLIP, {"name": "noise_share", "survivors": 3}, {"name": "secagg"}], [MEDIAN]),
    ),
    "a median of masked uploads": ("stage-reads-each", plain([{"name": "secagg"}], [MEDIAN])),
    "a bound on encrypted uploads": (
        "stage-reads-each",
        plain([{"name": "paillier"}], [{"name": "norm_bound", "f": 1}]),
    ),
    "a median divided by a public number": (
        "robust-sum-denominator",
        {**up([], [MEDIAN], denominator="expected"), "privacy": {}},
    ),
    "a median of weighed uploads": ("robust-sum-weighed", plain([{"name": "weigh"}], [MEDIAN])),
    "two medians": ("robust-rule-not-last", plain([], [MEDIAN, MEDIAN])),
    "a bound after the median": ("robust-rule-not-last", plain([], [MEDIAN, {"name": "norm_bound", "f": 1}])),
    "mixtures without a rule": ("mixing-without-rule", plain([], [{"name": "nnm", "f": 1}])),
    "half of the clients attack": ("too-many-attackers", plain([], [{"name": "median", "f": 3}])),
    "half of the clients attack a trimmed mean": ("too-many-attackers", plain([], [{"name": "trimmed_mean", "f": 3}])),
    "two of six clients attack krum": ("too-many-attackers", plain([], [{"name": "krum", "f": 2}])),
    "krum keeps nearly all": ("too-many-attackers", plain([], [{"name": "krum", "f": 1, "keep": 4}])),
    "minus one attacker": ("attackers-out-of-range", plain([], [{"name": "median", "f": -1}])),
    "half an attacker": ("wrong-type", plain([], [{"name": "median", "f": 0.5}])),
    "krum keeps none": ("not-positive", plain([], [{"name": "krum", "f": 1, "keep": 0}])),
    "a bound of length 0": ("clip-not-positive", plain([], [{"name": "norm_bound", "f": 1, "radius": 0.0}])),
    "a median of counts and prototypes": (
        "robust-sum-needs-a-mean",
        {**plain([], [MEDIAN]), "algorithm": {"name": "pfl_dyn"}},
    ),
    "a median over a hidden cohort": ("robust-sum-hidden-cohort", {**plain([], [MEDIAN]), "cohort": POISSON}),
    "a flag that no noise reads": ("flags-need-both-halves", up([{"name": "flag"}, CLIP], [CENTRAL])),
    "local and central noise": ("two-noises", up([CLIP, NOISE], [CENTRAL])),
    "two local noises": ("two-noises", up([CLIP, NOISE, NOISE])),
    "laplace after an l2 clip": (
        "noise-needs-l1-clip",
        {**fedavg(batch_size="full"), **read(law="laplace", clip_order=2)},
    ),
    "poisson records under replace": (
        "poisson-needs-zero-out",
        {**fedavg(batch_size="full"), **read(sampling="poisson", rate=0.5)},
    ),
    "poisson clients under replace": (
        "poisson-needs-zero-out",
        {**up([CLIP], [{**CENTRAL, "neighbours": "replace"}]), "cohort": POISSON},
    ),
    "personal clips in a hidden cohort": (
        "personal-clip-hidden",
        {**up([{**CLIP, "personal": True}], [CENTRAL]), "cohort": POISSON},
    ),
    "fixed batches counted in steps": (
        "fixed-batches-need-epochs",
        {**fedavg(batch_size=2, local_steps=3), **read(sampling="fixed_batches")},
    ),
    "mini-batches under full-batch noise": (
        "minibatch-under-full-batch-bound",
        {**fedavg(batch_size=2), **read()},
    ),
    "a Poisson sample without a rate": (
        "sample-needs-rate",
        {**fedavg(batch_size=10), **read(sampling="poisson", neighbours="zero_out")},
    ),
    "a rate of 0": ("rate-out-of-range", {"algorithm": {"name": "gaussian_sampled", "rate": 0.0}}),
    "a rate above 1": ("rate-out-of-range", {"algorithm": {"name": "gaussian_sampled", "rate": 1.5}}),
    "a cohort rate of 0": ("rate-out-of-range", {"cohort": {"name": "poisson", "rate": 0.0}}),
    "a clip of 0": ("clip-not-positive", gdp(clip=0.0)),
    "an uplink clip of 0": ("clip-not-positive", up([{"name": "clip", "radius": 0.0}, NOISE])),
    "a sampled budget below its conversion": (
        "budget-below-conversion",
        {
            "algorithm": {"name": "gaussian_sampled", "rate": 0.5},
            **budget(epsilon=1e-4, delta=1e-12, schedule={"name": "linear_back"}),
        },
    ),
    "a schedule that enlarges the budget": (
        "shares-exceed-the-budget",
        budget(schedule={"name": "list", "values": [1.0] * 4, "absolute": True}),
    ),
    "a schedule shorter than the participations": (
        "shares-too-few",
        budget(schedule={"name": "list", "values": [1.0]}),
    ),
    "a schedule of zeros": ("shares-not-a-budget", budget(schedule={"name": "list", "values": [0.0] * 4})),
    "a geometric schedule without a ratio": (
        "ratio-not-positive",
        budget(schedule={"name": "geometric", "ratio": 0.0}),
    ),
    "an adaptive schedule without a floor": (
        "adaptive-out-of-range",
        budget(schedule={"name": "adaptive", "floor": 0.0}),
    ),
    "convex steps on quadratics": (
        "convex-needs-bounded-logistic",
        {"algorithm": {"name": "convex_stable", "radius": 2.0, "lr": 0.5}},
    ),
    "convex steps beyond 4/B^2": (
        "step-too-large-for-convexity",
        {"algorithm": {"name": "convex_stable", "radius": 2.0, "lr": 1.5}},
    ),
    "stragglers keeping part of one step": (
        "no-partial-work",
        {"stragglers": {"share": 0.5, "policy": "keep"}},
    ),
    "a private table whose columns nobody has declared": (
        "table-without-schema",
        {"data": {"source": "tabular", "path": "t.csv", "label": "y"}, "privacy": {"epsilon": 2.0, "noise": "system"}},
    ),
    "rows left out for what they lack, in a private table": (
        "rows-dropped",
        {
            "data": {"source": "tabular", "path": "t.csv", "label": "y", "missing": "drop", "schema": "s.toml"},
            "partition": {"scheme": "iid", "clients": 2},
            "privacy": {"epsilon": 2.0, "noise": "system"},
        },
    ),
    "a budget typed with a slip": ("unknown-key", {"privacy": {"epsilom": 1.0}}),
}
