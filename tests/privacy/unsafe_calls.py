"""Calls that must not be answered, each with its code."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sordino
from sordino import budget, config, keys
from sordino import checks as check
from sordino.accounting import accountants, claims, events, gaussian_dp, pricing, published
from sordino.algorithms.cuag_pfl import cuag_pfl
from sordino.algorithms.pdp_prox import pdp_prox
from sordino.attacks.attack import check_allowed
from sordino.budget.plan import Budget
from sordino.cli import data as data_verbs
from sordino.config import gates
from sordino.planning import calculator
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, discrete_gaussian
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.function_reader import FunctionReader
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import OwnNorm, UserLevel
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.privunit import OneDirection
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, NoiseShare, check_room
from sordino.privacy.uplink.stages import Clip, ClipLayers, Noise, Weigh
from sordino.runs.simulation import simulated
from sordino.sampling import by_budget
from sordino.sampling.draws import Stragglers
from sordino.sites.key_holder import pinned
from sordino.types import Bound, LocalWork
from tests.privacy.doubles import linear
from tests.privacy.unsafe_parts import (
    BALL,
    CENTRAL,
    CLIP,
    GRANT,
    NET,
    PHASES,
    REMEMBERS,
    ROWS,
    SAMPLED,
    SUMS,
    UPLOAD,
    VISITOR,
    Call,
    beside_noise,
    episodes,
    phases,
    planned,
    read_batches,
    shard,
    shared,
    single_uploads,
    sums,
)


def granted(rule: dict[str, Any]) -> Any:
    return budget.personal(rule, 2, keys.root(1))


def priced(algorithm: dict[str, Any], cohort: dict[str, Any], schedule: str = "uniform") -> Any:
    table = {
        "data": {"source": "synthetic", "clients": 4, "largest": 60},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "cohort": cohort,
        "algorithm": algorithm,
        "privacy": {"epsilon": {"linspace": [1.0, 2.0], "levels": 2}, "schedule": {"name": schedule}},
    }
    return simulated(config.validate(table)).setup.plan


def unimportable() -> check.Report:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "imports_nothing.py"
        file.write_text("import nothing_of_this_name\n")
        return check.check(file)


CALLS: dict[str, Call] = {
    "one pixel in several answers": Call(
        "response-windows-overlap", lambda: Responses(1.0, "image", side=3).fitted((8, 8, 1), 10)
    ),
    "one upload of a central sum": Call(
        "aggregate-only", lambda: single_uploads(Uplink((Clip(1.0),), (Noise(neighbours="zero_out"),)))
    ),
    "one upload of a sum with published noise": Call(
        "aggregate-only", lambda: single_uploads(Uplink((ClipCoordinates(),), (CoordinateLaplace(),)))
    ),
    "a digest of a key, copied with a stray character": Call("other-public-key", lambda: pinned(b"key", "\xa0af3c")),
    "a gradient read twice": Call("read-beyond-reservation", lambda: read_batches(LocalWork(1, None, None), times=2)),
    "one of several disjoint batches read twice": Call(
        "read-beyond-reservation", lambda: read_batches(LocalWork(1, None, 2), times=2)
    ),
    "a second pass": Call("read-beyond-reservation", lambda: read_batches(LocalWork(1, None, None), passes=2)),
    "more work than was reserved": Call("read-beyond-reservation", lambda: read_batches(LocalWork(None, 5, None))),
    "a network that remembers": Call(
        "model-remembers", lambda: NoisyGradient(1.0).check(LocalWork(1, None, None), REMEMBERS)
    ),
    "convex steps in batches": Call(
        "minibatch-under-full-batch-bound", lambda: ConvexStable(2.0, 0.1).check(LocalWork(1, None, 2), NET)
    ),
    "a convex step that is too large, in the gate": Call(
        "step-too-large-for-convexity", lambda: ConvexStable(2.0, 1.01)
    ),
    "convex steps without noise": Call("noise-not-positive", lambda: ConvexStable(2.0, 0.1, 0.0)),
    "convex steps in a shard opened by hand": Call(
        "convex-needs-bounded-logistic", lambda: ConvexStable(2.0, 0.1).open(ROWS, GRANT, NET)
    ),
    "losses of one's own under convex steps": Call(
        "convex-needs-own-losses",
        lambda: next(ConvexStable(2.0, 0.1).open(ROWS, GRANT, BALL).batches(LocalWork(None, 2, None), 1)).grad(
            linear, {}
        ),
    ),
    "a radius that bounds nothing": Call("radius-out-of-range", lambda: ConvexStable(1.0, 0.1)),
    "a radius at which rounding outweighs an example": Call("radius-out-of-range", lambda: ConvexStable(1e12, 1e-24)),
    "a clip in a norm without a bound": Call("clip-order", lambda: Clip(1.0, 3)),  # type: ignore[arg-type]
    "laplace without a bound in its norm": Call(
        "unbounded-sensitivity", lambda: Uplink((Weigh(), Noise(LaplaceNoise()))).bound(3)
    ),
    "poisson under replace": Call(
        "poisson-needs-zero-out", lambda: NoisyGradient(1.0, sampling="poisson", rate=0.5, neighbours="replace")
    ),
    "noise not a number": Call("noise-not-positive", lambda: Noise(GaussianNoise(), multiplier=math.nan)),
    "PrivUnit where presence counts": Call("unknown-neighbours", lambda: OneDirection(neighbours="add_remove")),
    "shares of Laplace noise": Call("shares-are-gaussian", lambda: NoiseShare(LaplaceNoise(), survivors=3)),
    "shares that are added in clear": Call(
        "shares-need-secagg", lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3)))
    ),
    "shares that are encrypted": Call(
        "shares-need-secagg",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3), Encrypted("bfv"))),
    ),
    "a sum opened with fewer shares than it needs": Call(
        "too-few-shares",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=5), Aggregated(threshold=4))),
    ),
    "shares before the grid": Call(
        "share-off-the-grid",
        lambda: Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=3), Quantise(), Aggregated())),
    ),
    "a run that stops for values behind the noise": Call(
        "strict-beside-noise",
        lambda: Uplink((Clip(1.0), Quantise(strict=True), Aggregated()), (Noise(neighbours="zero_out"),)),
    ),
    "a run that stops for values behind published noise": Call(
        "strict-beside-noise",
        lambda: Uplink((ClipCoordinates(), Quantise(strict=True), Aggregated()), (CoordinateLaplace(),)),
    ),
    "a run that stops for values that the server is not to see": Call(
        "strict-beside-noise", lambda: Uplink((Quantise(strict=True), Encrypted("paillier")))
    ),
    "a median of uploads that nobody can read": Call("stage-reads-each", lambda: Uplink((UserLevel(), Aggregated()))),
    "sums of CKKS for a server": Call("ckks-opened-for-server", lambda: Encrypted("ckks", keys="authority")),
    "shares of a step of the grid": Call("share-too-narrow", lambda: shared(bits=3).encode(UPLOAD, VISITOR)),
    "shares that a slot has no room for": Call(
        "no-room-for-noise", lambda: check_room(Layout(), 256, shared(24).client[2].room(Bound(l2=2.0**22), 4.0))
    ),
    "integer noise without a scale": Call("integer-noise-scale", lambda: discrete_gaussian(Counter(0), 3, 0.0)),
    "a response among one value": Call("too-few-levels", lambda: events.Response(1.0, 1)),
    "a grid without a scale": Call(
        "noise-scale-not-positive", lambda: SystemNoise().noisy(GaussianNoise(), torch.zeros(1), 0.0)
    ),
    "an event of an unknown kind": Call("unknown-event-kind", lambda: events.from_json({"kind": "exponential"})),
    "an event with a missing field": Call("malformed-event", lambda: events.from_json({"kind": "gaussian"})),
    "an event that is no event": Call("malformed-event", lambda: events.Repeat("gaussian", 2)),  # type: ignore[arg-type]
    "negative noise in an event": Call("noise-not-a-number", lambda: events.Gaussian(-1.0)),
    "an event zero times": Call("count-not-positive", lambda: events.Repeat(events.Gaussian(1.0), 0)),
    "a rate above 1 in an event": Call("rate-out-of-range", lambda: events.Poisson(1.1, events.Gaussian(1.0))),
    "neighbours nobody defined": Call(
        "unknown-neighbours", lambda: accountants.best(events.Gaussian(1.0), 1e-5, "add-remove")
    ),
    "a delta that real noise uses up": Call(
        "noise-lacks-delta", lambda: Budget(8.0, 1e-5, budget.Uniform(), lacking=1e-5)
    ),
    "a sample under replace": Call(
        "poisson-needs-zero-out", lambda: accountants.best(events.Poisson(0.5, events.Gaussian(1.0)), 1e-5, "replace")
    ),
    "a sample of two mechanisms": Call(
        "sampled-event-not-supported", lambda: accountants.best(SAMPLED, 1e-5, "zero_out")
    ),
    "an accountant that has no proof": Call(
        "accountant-does-not-apply", lambda: accountants.epsilon_by("gdp", events.Laplace(1.0), 1e-5, "replace")
    ),
    "epsilon 0 in a calibration": Call("epsilon-not-positive", lambda: accountants.classic_multiplier(0.0, 1e-5)),
    "epsilon infinite in a calibration": Call(
        "epsilon-not-finite", lambda: accountants.classic_multiplier(math.inf, 1e-5)
    ),
    "delta 0 in a calibration": Call("delta-out-of-range", lambda: accountants.exact_multiplier(1.0, 0.0)),
    "no participations": Call("releases-not-positive", lambda: accountants.exact_multiplier(1.0, 1e-5, 0)),
    "a budget no noise can keep": Call(
        "budget-out-of-reach", lambda: accountants.sampled_multiplier(1e-9, 1e-12, 0.5, 9, orders=(2, 4))
    ),
    "mu negative": Call("mu-negative", lambda: gaussian_dp.epsilon_of(-1.0, 1e-5)),
    "a cost that is no number": Call("cost-nan", lambda: claims.cost([math.nan])),
    "a cost that refills the budget": Call("cost-negative", lambda: claims.cost([-1.0])),
    "a release for free": Call("cost-zero", lambda: claims.cost([0.0])),
    "a cost without components": Call("cost-shape", lambda: claims.cost([])),
    "a cap that is infinite": Call("cap-infinite", lambda: claims.cap([math.inf])),
    "orders that fall": Call("orders-invalid", lambda: claims.rdp([4.0, 2.0])),
    "an amount in floats": Call("amount-not-integer", lambda: claims.ZCDP.amount((0.5,), what="charge")),
    "an amount of another shape": Call("amount-shape", lambda: claims.APPROX.amount((1,), what="charge")),
    "a charge of nothing": Call("amount-zero", lambda: claims.ZCDP.charge((0,), what="charge")),
    "a share after the last": Call("budget-exhausted", lambda: budget.Adaptive().next_share([1.0], 0.0, 1, False, 1)),
    "a price for the textbook formula": Call("classic-needs-budget", lambda: pricing.Classic().cost(1.0)),
    "planning with delta 1/N": Call(
        "delta-too-large", lambda: calculator.asked(calculator.Question(1.0, 0.1, "client", 10, 2, 5))
    ),
    "planning from no noise": Call("noise-not-positive", lambda: calculator.ask(noise_multiplier=0.0)),
    "planning from noise that hides nobody": Call("noise-buys-nothing", lambda: calculator.ask(noise_multiplier=1e-3)),
    "planning from more noise than delta takes": Call(
        "noise-buys-nothing", lambda: calculator.ask(noise_multiplier=1e7, cohort=1000)
    ),
    "planning from less than a ledger counts": Call(
        "budget-below-unit", lambda: calculator.asked(calculator.Question(1e-9, 1e-99, "example", 10, 2, 5))
    ),
    "planning in both directions": Call("one-direction", lambda: calculator.ask(epsilon=1.0, noise_multiplier=1.0)),
    "planning in no direction": Call("one-direction", lambda: calculator.ask(rounds=5)),
    "planning a cohort larger than the federation": Call(
        "cohort-too-large", lambda: calculator.ask(epsilon=1.0, clients=10, cohort=11)
    ),
    "planning a negative number of rounds": Call("out-of-range", lambda: calculator.ask(epsilon=1.0, rounds=-1)),
    "planning with a clip of nothing": Call("clip-not-positive", lambda: calculator.ask(epsilon=1.0, clip=0.0)),
    "planning with a negative epsilon": Call(
        "epsilon-not-positive", lambda: calculator.answer(calculator.ask(epsilon=-1.0, cohort=1000))
    ),
    "planning with a delta of 0": Call(
        "delta-out-of-range", lambda: calculator.answer(calculator.ask(epsilon=1.0, delta=0.0, cohort=1000))
    ),
    "budgets by two rules": Call("budget-rule", lambda: granted({"groups": {"1": 1.0}, "linspace": [1, 2]})),
    "budgets that are words": Call("budget-malformed", lambda: granted({"groups": {"much": 1.0}})),
    "a client without a budget": Call("budget-missing", lambda: granted({"clients": {"0": 1.0}})),
    "a budget for a stranger": Call("budget-unknown-client", lambda: granted({"clients": {"7": 1.0}})),
    "budgets in a file that is not there": Call("budget-file", lambda: granted({"file": "not_there.csv"})),
    "a personal budget of 0": Call("epsilon-not-positive", lambda: granted({"linspace": [0.0, 1.0]})),
    "a threshold among no budgets": Call("threshold-without-budgets", lambda: by_budget.threshold(np.zeros(2))),
    "a threshold among budgets without privacy": Call(
        "budget-too-large", lambda: by_budget.threshold(np.array([1.0, 720.0]))
    ),
    "rates for more clients than there are": Call(
        "cohort-larger-than-population", lambda: by_budget.balanced([1.0], 1e-5, 3, 2.0)
    ),
    "a personal clip without central noise": Call(
        "personal-clip-needs-central-noise", lambda: Uplink((Clip(1.0, personal=True), Noise()))
    ),
    "a personal clip under a random direction": Call(
        "personal-clip-needs-central-noise",
        lambda: Uplink((Clip(1.0, personal=True),), (OneDirection(neighbours="zero_out"),)),
    ),
    "a personal clip in a secure sum": Call(
        "personal-clip-needs-central-noise",
        lambda: Uplink((Clip(1.0, personal=True), Aggregated()), (Noise(neighbours="zero_out"),)),
    ),
    "personal budgets under one rate": Call(
        "personal-budgets-one-rate", lambda: priced({"name": "dp_prox"}, {"name": "poisson", "rate": 0.5})
    ),
    "rates by budget for local noise": Call(
        "personal-cohort-needs-its-noise",
        lambda: priced({"name": "pdp_prox", "mechanism": "local"}, {"name": "by_budget", "size": 2}),
    ),
    "a typed multiplier under a personal cohort": Call(
        "personal-cohort-needs-its-noise",
        lambda: priced({"name": "dp_prox", "multiplier": 0.01}, {"name": "by_budget", "size": 2}),
    ),
    "noise by the letter in a cohort that keeps budgets": Call(
        "literal-needs-its-cohort",
        lambda: priced(
            {"name": "pdp_prox", "mechanism": "published", "literal": True, "clip": 2.0}, {"name": "everyone"}
        ),
    ),
    "rates by budget that change": Call(
        "personal-schedule",
        lambda: priced({"name": "pdp_prox", "mechanism": "rates"}, {"name": "by_budget", "size": 2}, "linear_back"),
    ),
    "a clip behind a personal clip": Call(
        "clip-behind-personal-clip",
        lambda: Uplink((Clip(1.0, personal=True), ClipLayers(1.0)), (Noise(neighbours="zero_out"),)),
    ),
    "noise as published beside noise that is priced": Call(
        "published-beside-noise", lambda: Uplink((OwnNorm(), Clip(1.0), Noise()))
    ),
    "layers clipped behind the noise": Call("noise-before-clip", lambda: Uplink((Clip(1.0), Noise(), ClipLayers(1.0)))),
    "cells for an algorithm of batches": Call(
        "reader-does-not-give", lambda: planned({"name": "fedavg"}, {"name": "cells", "clip": 1.0, "multiplier": 1.0})
    ),
    "gradients for an algorithm of episodes": Call(
        "reader-does-not-give",
        lambda: planned({"name": "pfl_dyn"}, {"name": "noisy_gradient", "clip": 1.0, "multiplier": 1.0}),
    ),
    "gradients for a training function": Call(
        "reader-does-not-give",
        lambda: planned({"name": "trainer", "of": "a:b"}, {"name": "noisy_gradient", "clip": 1.0, "multiplier": 1.0}),
    ),
    "a sum over rows that were handed over": Call(
        "rows-only", lambda: FunctionReader().open(ROWS, GRANT, NET).sum(lambda x, y: x)
    ),
    "exact states beside sound noise": Call("oracle-leaks", lambda: cuag_pfl("local_client", server_state="oracle")),
    "a batch from cells": Call(
        "episodes-only",
        lambda: next(iter(CellGradient(1.0).open(ROWS, GRANT, NET).batches(LocalWork(None, 1, None), 0))),
    ),
    "a sum over cells": Call("episodes-only", lambda: CellGradient(1.0).open(ROWS, GRANT, NET).sum(lambda x, y: x)),
    "an episode of noised gradients": Call(
        "gradients-only", lambda: shard(NoisyGradient(1.0)).episodes(LocalWork(None, 1, None), 0)
    ),
    "a sum over noised gradients": Call("gradients-only", lambda: shard(NoisyGradient(1.0)).sum(lambda x, y: x)),
    "sums and public examples in one loss": Call(
        "joint-loss", lambda: beside_noise().joint(lambda *_: torch.zeros(()), {})
    ),
    "phases of two promises under one budget": Call(
        "two-promises-one-budget",
        lambda: phases("dp_proto_only", uplink={"client": [CLIP], "server": [CENTRAL]}),
    ),
    "a typed multiplier beside phases that a budget prices": Call(
        "typed-beside-priced",
        lambda: phases(
            "rigorous_b",
            read={"name": "noisy_gradient", "clip": 1.0, "neighbours": "zero_out", "multiplier": 1.0},
        ),
    ),
    "phases of two noises under one budget": Call(
        "two-noises-one-budget",
        lambda: phases(
            "rigorous_b",
            read={"name": "noisy_gradient", "clip": 1.0, "law": "laplace", "neighbours": "zero_out"},
        ),
    ),
    "an adaptive schedule over phases": Call(
        "adaptive-over-phases",
        lambda: phases("rigorous_b", privacy={**PHASES["privacy"], "schedule": {"name": "adaptive"}}),
    ),
    "sums per class, twice": Call("read-beyond-reservation", lambda: sums(2)),
    "a batch from sums per class": Call(
        "sums-only", lambda: SUMS.open(ROWS, GRANT, NET).batches(LocalWork(None, 1, None), 0)
    ),
    "counts louder than infinity": Call("count-out-of-range", lambda: ClassSums(1.0, math.inf)),
    "sums per class without noise": Call("noise-not-positive", lambda: ClassSums(1.0, multiplier=0.0)),
    "a second pass over the cells": Call("read-beyond-reservation", lambda: episodes(passes=2)),
    "an episode read twice": Call("read-beyond-reservation", lambda: episodes(times=2)),
    "more episodes than were reserved": Call("read-beyond-reservation", lambda: episodes(reads=1)),
    "cells with no noise": Call("noise-not-positive", lambda: CellGradient(1.0, multiplier=0.0)),
    "a published budget of 0": Call("mu-not-positive", lambda: published.adaptive_scale(0.0, 1)),
    "a literal reading of a sound mechanism": Call(
        "literal-without-published", lambda: pdp_prox("bounds", literal=True)
    ),
    "a straggler share above 1": Call("share-out-of-range", lambda: Stragglers(1.5)),
    "a noise law nobody knows": Call(
        "wrong-type", lambda: gates.uplink({"client": [{"name": "noise", "law": "cauchy"}]})
    ),
    "a check of a file that is not there": Call("no-algorithm-file", lambda: check.check(Path("not_there.py"))),
    "a check of a file that is called like a module": Call(
        "module-name", lambda: check.check(Path(sordino.__file__).with_name("types.py"))
    ),
    "a check of a file that cannot be imported": Call("algorithm-import", unimportable),
    "a check of a file without an algorithm": Call("which-class", lambda: check.check(Path(keys.__file__))),
    "a check with rounds of one's own": Call(
        "not-for-a-check", lambda: check.check(Path(keys.__file__), words=["rounds=3"])
    ),
    "a picture that is no SVG": Call("not-an-svg", lambda: data_verbs.plot([], Path("partition.png"))),
    "an attack on a run of real people": Call(
        "attack-on-real-run", lambda: check_allowed(config.validate({"privacy": {"noise": "system"}}))
    ),
    "a stage nobody knows": Call("unknown-choice", lambda: gates.uplink({"client": [{"name": "average"}]})),
}
