"""Audit of the privacy mechanisms (reader and uplink) of an experiment: worst-case neighbours, through the public
release calls, before or after a run.

For each guarantee: the claim for one participation, and a lower bound on its privacy loss. A bound above the claim
refutes it; a bound below shows only that this attack failed. A phase of a preparation has guarantees of its own and is
attacked like the training; a phase without guarantees is reported. Only the mechanisms are attacked: no data are read
and nothing is trained.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from sordino import config, keys
from sordino.accounting.accountants import best
from sordino.accounting.claims import ADVERSARIES, Status, Subject
from sordino.accounting.composition import claims_in
from sordino.accounting.events import Event, Gaussian, Json, Poisson, leaves
from sordino.accounting.facts import Epsilon
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.algorithms import all_algorithms
from sordino.algorithms.optional import Home
from sordino.audits import clients, records
from sordino.audits.lower_bounds import LowerBound, NoPower, Pair, mu_lost, tuned
from sordino.audits.noise_sources import Weak
from sordino.budget.plan import Price
from sordino.config import Experiment
from sordino.errors import ConfigError, Range, check_range
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers.responses import Responses
from sordino.receipts.folder import RunFolder
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import settle, simulated
from sordino.types import Claim, NoiseSource

TRIALS = 30_000  # releases of each neighbour
WRONG = 1e-4  # probability that an audit refutes a true claim
SHORT = 0.3  # share of its noise that a broken twin lacks
TRIED = (0.1, SHORT, 0.5, 0.9)  # shares of missing noise, for the twins that measure an audit's power
# deltas at which sampling and noise of a sampled claim matter about equally
DELTAS = (1e-3, 1e-2, 0.03, 0.06, 0.1, 0.2)
LEAST = 0.02  # least claimed epsilon at a delta for a comparison there
TRAINING = "training"  # the phase that every run has


class AttackedPromise(Subject):
    """Result of attacking one guarantee: the epsilon that is claimed for one participation, and a lower bound on the
    true one, `at_least`. Both are compared at delta `at_delta`, where the claim is `claimed_there`."""

    phase: str
    attack: str
    status: Status
    claimed: Epsilon  # at the experiment's delta; of a nominal claim, what its source prints
    delta: float
    at_least: Epsilon
    at_delta: float
    claimed_there: Epsilon
    trials: int
    confidence: float
    verdict: str
    notices: float | None = None  # least missing noise, of those tried, that the same attack found

    @property
    def power(self) -> str:
        """Power of the audit in words: the smallest share of missing noise that it would have noticed. Empty unless the
        guarantee held.
        """
        if self.verdict != HOLDS:
            return ""
        return f"not even {TRIED[-1]:.0%} less noise" if self.notices is None else f"{self.notices:.0%} less noise"


HOLDS, PARTLY, VIOLATED, NOTHING = "holds", "holds in part", "VIOLATED", "proves nothing"
CAUGHT, ESCAPED, SKIPPED = "caught", "escaped", "not attacked"
EMPTY = "nothing to audit: infinity is claimed"
UNPROVED = "nothing to break: no claim is proved"  # reason to attack no twin
# shown with every verdict: a failed attack shows nothing about parts that it did not attack
UNSEEN = (
    "clients but the largest one; where budgets differ, --trained attacks each of them",
    "how the releases of several rounds add up",
    "what the algorithm and the model do with examples, which is user code",
    "how data were read, split and scaled",
    "what a run writes down",
    "what was trained (--trained attacks it)",
)


@dataclass(frozen=True)
class Audit:
    """Result of an audit of an experiment's mechanisms, and of the broken twin that it must catch."""

    algorithm: str
    phases: list[str]  # in order
    unprotected: list[str]  # phases that claim infinity
    subjects: list[AttackedPromise]
    twin: bool
    short: float  # share of its noise that the twin lacks
    noise: str
    seed: int
    simulated: bool  # the experiment's own noise comes from a seed

    def having(self, *verdicts: str) -> list[AttackedPromise]:
        return [subject for subject in self.subjects if subject.verdict in verdicts]

    @property
    def verdict(self) -> str:
        """The worst verdict over all guarantees; a run with an unprotected phase holds in part at best."""
        worst = (VIOLATED, ESCAPED, SKIPPED, NOTHING, CAUGHT, HOLDS)
        found = next((verdict for verdict in worst if self.having(verdict)), EMPTY if self.unprotected else UNPROVED)
        return PARTLY if found == HOLDS and self.unprotected else found

    def to_json(self) -> Json:
        subjects = [subject.to_json() for subject in self.subjects]
        return {
            "algorithm": self.algorithm,
            "verdict": self.verdict,
            "phases": self.phases,
            "unprotected": self.unprotected,
            "subjects": subjects,
            "not_looked_at": list(UNSEEN),
            "twin": self.twin,
            "short": self.short,
            "noise": self.noise,
            "simulated": self.simulated,
            "seed": self.seed,
        }


def audit(
    experiment: Experiment,
    trials: int = TRIALS,
    seed: int = 0,
    system: bool = False,
    twin: bool = False,
    tell: Callable[[str], object] = lambda what: None,
    short: float = SHORT,
) -> Audit:
    """Attack the guarantees of an experiment. `twin`: attack a broken twin, a copy that lacks the share `short` of its
    noise but makes the same claim; the audit must catch it. `system`: noise that cannot be repeated.
    """
    why = "an audit with fewer trials cannot refute any claim"
    check_range("trials", trials, Range(least=100, whole=True), "too-few-trials", why=why, fix=f"--trials {TRIALS}")
    why = "a twin that lacks nothing is not broken, and one that lacks everything has no noise"
    check_range("short", short, Range(above=0, below=1), "no-such-twin", why=why, fix=f"--short {SHORT}")
    simulation = simulated(settle(experiment))
    setup = simulation.setup
    drawn: NoiseSource = SystemNoise() if system else Counter(keys.word(keys.fold(keys.root(seed), "audit")))
    source = Weak(drawn, 1 / (1 - short)) if twin else drawn
    stages = [(other.phase or TRAINING, list(_promises(other, simulation.home))) for other in setup.whole.phases]
    unprotected = [phase for phase, promises in stages if not promises]
    found, delta = [], setup.experiment.privacy.delta
    attacked = ((phase, *promise) for phase, promises in stages for promise in promises)
    for number, (phase, claim, stated, pairs) in enumerate(attacked):
        if twin and claim.status == "nominal":
            continue  # a nominal claim proves nothing that a twin could break
        tell(f"{phase}: {claim.unit}, {claim.neighbours}")
        attack = partial(_attacked, phase, claim, stated, pairs, delta, trials)
        one = attack(source.child(number), twin)
        found.append(one if one.verdict != HOLDS else one.beside(notices=_noticed(attack, drawn.child(number))))
    phases = [phase for phase, _ in stages]
    return Audit(
        algorithm=str(experiment.algorithm.get("name")),
        phases=phases,
        unprotected=unprotected,
        subjects=found,
        twin=twin,
        short=short if twin else 0.0,
        noise=drawn.name,
        seed=seed,
        simulated=not experiment.privacy.real,
    )


def unchanged_run(word: str | Path | Mapping[str, object] | None, changed: bool) -> Path | None:
    """The run folder named by `word`; None if it names no folder, or a setting is changed."""
    return Path(word) if isinstance(word, str | Path) and Path(word).is_dir() and not changed else None


def experiment_of(
    word: str | Path | Mapping[str, object] | None,
    overrides: Iterable[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Experiment:
    """The experiment that `word` gives: a file, a run folder, an algorithm, a table of settings, or None for the
    default experiment.
    """
    changes = list(overrides)
    if word is None or isinstance(word, Mapping):
        return config.load(word, changes, settings)
    path = Path(word)
    if path.is_dir():
        RunFolder(path).check()
        return RunFolder(path).changed(changes, settings)
    if path.is_file() or path.suffix == ".toml":
        return config.load(path, changes, settings)
    name = str(word)
    if name not in all_algorithms() and ":" not in name:
        close = difflib.get_close_matches(name, all_algorithms(), n=1)
        raise ConfigError(
            f"unknown experiment: {name!r}",
            why="there is no file, run folder or algorithm of that name",
            fix=f"did you mean {close[0]!r}?" if close else "`sordino algorithms` lists the algorithms",
            code="unknown-subject",
        )
    return config.load(None, [f"algorithm={name}", *changes], settings)


# guarantees -----------------------------------------------------------------------------------------------------------


def _promises(setup: PhaseSetup, home: Home) -> Iterator[tuple[Claim, float | None, list[Pair]]]:
    """Claims of one participation in one phase, each with its published number if nominal, and its worst-case
    neighbours."""
    federation = setup.federation(home, "", ":memory:", "audit")
    now = federation.open(0)  # first: a plan as published prices a round by the rates that it gives it
    client, price = _target(setup)
    reader, multiplier = setup.algorithm.read, None if price is None else price.multiplier
    if isinstance(reader, records.Attacked):
        size = records.rows(reader)
        work = records.fewer(reader, setup.algorithm.work, setup.public.sizes[client])
        for claim in _distinct(reader.claims(work, size, multiplier)):
            yield claim, _share(setup, price), [records.pair(reader, work, client, multiplier)]
    else:
        for claim in _distinct(reader.claims(setup.algorithm.work, setup.public.sizes[client], multiplier)):
            yield claim, None, [records.answers(reader, claim.unit)] if isinstance(reader, Responses) else []
    # as the ledger would hold them, with the cohort's sampling
    federation.reserve(now, {client: price})
    noted = [
        claim
        for entry in federation.entries()
        for group in entry.parsed.releases
        if group["clients"] == "*" or client in group["clients"]
        for claim in claims_in(group)
    ]
    distinct = _distinct([claim for claim in noted if claim.unit == "client"])
    stand = clients.AttackerPosition(setup, federation, client, price) if distinct else None
    for claim in distinct:
        assert stand is not None
        shown, delta = setup.algorithm.uplink.as_published, setup.experiment.privacy.delta
        typed = _share(setup, price) if setup.algorithm.uplink.published else None
        stated = typed if shown is None else shown.stated(1, delta, min(setup.public.sizes)).epsilon
        yield claim, stated, clients.pairs(stand, claim)
    federation.ledger.close()


def _distinct(claims: list[Claim]) -> list[Claim]:
    """Finite and nominal claims; of claims about the same event only the one for the strongest adversary."""
    found: dict[tuple[str, str, Event], Claim] = {}
    for claim in sorted(claims, key=lambda claim: ADVERSARIES.index(claim.adversary)):
        if claim.status == "nominal" or claim.finite:
            found.setdefault((claim.unit, claim.neighbours, claim.event), claim)
    return list(found.values())


def _target(setup: PhaseSetup) -> tuple[int, Price | None]:
    """The client to attack, the largest that takes part (its weight is 1: weights are relative to the largest), and the
    price (noise multiplier and charge) of its first round.
    """
    plan = setup.plan
    client = int(np.argmax(np.where(np.asarray(plan.participations) > 0, np.asarray(setup.public.sizes), -1)))
    return client, plan.price(client, 0, plan.currency.zero())


def _share(setup: PhaseSetup, price: Price | None) -> float | None:
    """The part of the budget's epsilon that one participation costs; None without a budget."""
    budget, cap = setup.plan.budget, setup.plan.cap
    return None if budget is None or cap is None or price is None else budget.epsilon * price.charge[0] / cap[0]


def _noticed(attack: Callable[[NoiseSource, bool], AttackedPromise], source: NoiseSource) -> float | None:
    """The smallest tried share of missing noise at which a broken twin (a copy with too little noise) was caught with
    the same number of trials; None if none was.
    """
    twins = (attack(Weak(source.child("twin", n), 1 / (1 - lacks)), True) for n, lacks in enumerate(TRIED))
    return next((lacks for lacks, one in zip(TRIED, twins, strict=True) if one.verdict == CAUGHT), None)


# privacy loss ---------------------------------------------------------------------------------------------------------


def _attacked(
    phase: str,
    claim: Claim,
    stated: float | None,
    pairs: list[Pair],
    delta: float,
    trials: int,
    source: NoiseSource,
    twin: bool,
) -> AttackedPromise:
    nominal = claim.status == "nominal"
    proved = _epsilon(claim.event, delta, claim.neighbours)
    claimed = stated if nominal and stated is not None else proved
    against = _compared(claim, claimed, delta)
    alpha, each = WRONG / max(1, len(pairs)), max(100, trials // max(1, len(pairs)))
    attack, found = "", LowerBound(delta, 0.0)
    for number, pair in enumerate(pairs):
        try:
            one = _lost(claim, pair, against, each, source.child(number), alpha)
        except NoPower:
            continue
        if not attack or one.epsilon - against[one.delta] > found.epsilon - against[found.delta]:
            attack, found = pair.attack, one
    refuted = found.epsilon > against[found.delta]
    verdict = (CAUGHT if refuted else ESCAPED) if twin else (VIOLATED if refuted else HOLDS)
    return AttackedPromise(
        phase=phase,
        **dict(claim.subject),
        attack=attack,
        status=claim.status,
        claimed=claimed,
        delta=delta,
        at_least=max(0.0, found.epsilon),
        at_delta=found.delta,
        claimed_there=against[found.delta],
        trials=each,
        confidence=1 - WRONG,
        verdict=SKIPPED if not attack else NOTHING if nominal else verdict,
    )


def gaussian(event: Event) -> bool:
    """True if an event is only Gaussian noise."""
    return all(isinstance(leaf, Gaussian) for leaf in _cores(event))


def _cores(event: Event) -> Iterator[Event]:
    """Elementary events inside an event; a Poisson sample of rate 1, which leaves nothing out, is ignored."""
    for leaf in leaves(event):
        yield from _cores(leaf.event) if isinstance(leaf, Poisson) and leaf.rate == 1 else (leaf,)


@lru_cache(maxsize=64)
def _epsilon(event: Event, delta: float, neighbours: str) -> float:
    return best(event, delta, neighbours).epsilon


def _compared(claim: Claim, claimed: float, delta: float) -> dict[float, float]:
    """Claimed epsilon at each delta where bounds are compared: at the experiment's delta, and for a claim with sampling
    at larger ones too, where fewer trials suffice.
    """
    if claim.status == "nominal" or not any(isinstance(leaf, Poisson) for leaf in _cores(claim.event)):
        return {delta: claimed}
    others = {d: _epsilon(claim.event, d, claim.neighbours) for d in DELTAS if d > delta}
    return {delta: claimed} | {d: epsilon for d, epsilon in others.items() if epsilon >= LEAST}


def _lost(
    claim: Claim, pair: Pair, against: dict[float, float], trials: int, source: NoiseSource, alpha: float
) -> LowerBound:
    outputs = pair.outputs(trials, source)
    if claim.status != "nominal" and gaussian(claim.event):
        (delta,) = against
        return LowerBound(delta, epsilon_of(max(0.0, mu_lost(outputs, alpha)), delta))
    return tuned(outputs, dict.fromkeys(against, 1.0) if claim.status == "nominal" else against, alpha)
