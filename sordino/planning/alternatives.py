"""Alternatives to a plan: other settings within the same budget, for the same protected unit or for another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sordino.algorithms.optional import Estimates
from sordino.config import Experiment
from sordino.planning.phase import PlannedPhase

LIKELY_STEP = 0.1  # step size of a method that does not say


def alternatives(phase: PlannedPhase) -> Iterator[tuple[str, list[str]]]:
    """Name of each alternative, and its changes as arguments of `sordino run`."""
    experiment, offer = phase.experiment, phase.plan.offer
    if offer is None or experiment.privacy.epsilon is None:
        return
    if wider := wider_cohort(experiment, 2, len(phase.public.sizes)):
        yield "twice the cohort", [wider]
    if experiment.rounds > 1:
        yield "half the rounds", [f"rounds={experiment.rounds // 2}"]
    yield from _other_gates(phase)


GROWS = {"poisson": "rate", "round_robin_peer": "fraction", "round_robin": "size", "random": "size"}


def wider_cohort(experiment: Experiment, factor: int, population: int, size_only: bool = False) -> str | None:
    """Change that makes the cohort of a round `factor` times as large; None where the cohort has no setting for it, or
    would be larger than the population.
    """
    key = GROWS.get(experiment.cohort["name"])
    if key is None or (size_only and key != "size"):
        return None
    value = experiment.cohort[key] * factor
    return f"cohort.{key}={value}" if value <= (population if key == "size" else 1) else None


def _other_gates(phase: PlannedPhase) -> Iterator[tuple[str, list[str]]]:
    experiment, offer, algorithm = phase.experiment, phase.plan.offer, phase.algorithm
    assert offer is not None
    lr, population = Estimates.of(algorithm).step_size or LIKELY_STEP, len(phase.public.sizes)
    records, hidden = offer.subject.unit != "client", phase.policy.hidden
    clip = (algorithm.read.cut or 1.0) if records else algorithm.uplink.bound(phase.coordinates).l2
    size = phase.cohort.expected(population)
    opened = ["read={name='open'}"] if experiment.read is not None else []
    fedavg = [f"algorithm={{name='fedavg', lr={lr}}}", *opened] if records else []
    bounded = f"uplink={{client=[{{name='clip', radius={clip}}}%s], server=[%s]}}"
    central = bounded % ("", "{name='noise', neighbours='zero_out'}")
    # coins hide nothing from a server that adds no noise: whoever takes turns pays for fewer rounds
    in_turn = [f"cohort={{name='round_robin', size={max(1, round(size))}}}"] if hidden else []
    unit = "protect clients, " if records else ""
    if not (hidden and phase.plan.everyone_pays):
        coins = [] if hidden else [f"cohort={{name='poisson', rate={size / population}}}"]
        # each at the rate its own budget affords
        if phase.whole.budget is not None and phase.whole.budget.personal is not None:
            coins = [f"cohort={{name='by_budget', size={size:g}}}"]
        yield f"{unit}central noise, hidden cohort", [*fedavg, central, *coins]
    elif in_turn:
        yield "central noise, clients seen in turn", in_turn
    if records or algorithm.uplink.server:
        yield f"{unit}local noise", [*fedavg, bounded % (", {name='noise'}", ""), *in_turn]
    if not records:
        read = [f"read={{name='noisy_gradient', clip={clip}}}"] if experiment.read is not None else []
        raw = ["uplink={client=[{name='weigh'}]}"] if experiment.uplink is not None else []
        step = f"algorithm={{name='gaussian_gdp', clip={clip}, lr={lr}}}"
        yield "protect records, not clients", [step, *read, *raw, *in_turn]


def untouched(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Overrides without those whose settings the changes set again."""
    new = [change.partition("=")[0] for change in changes]
    return [o for o in overrides if not any((o.partition("=")[0] + ".").startswith(f"{path}.") for path in new)]
