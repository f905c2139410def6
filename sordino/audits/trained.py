"""Audit of a trained run: the whole run is replayed with canaries in it, and every release of every round counts.

Each guarantee of the run is compared with lower bounds on the privacy loss of the replay. Those by noise, by overlap
and by errors assume that the canaries of a replay are independent, which holds if each direction has noise of its own;
the first two find the largest noise of the promised kind with which the scores agree, and come near the truth. The
others rely only on the coins that decide which canaries are present, and are weak. Broken twins measure the power of
the audit: the same replay behind the same claim, with noise that is too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sordino import keys
from sordino.accounting.accountants import best
from sordino.accounting.claims import ADVERSARIES, UNITS
from sordino.accounting.events import DiscreteGaussian, Event, Gaussian, Poisson, Repeat, Response, Together, reduce
from sordino.accounting.gaussian_dp import bisect, epsilon_of
from sordino.accounting.statement import Guarantee
from sordino.audits.canary_replays import ROWS, Replays, ScoredCanaries, placed
from sordino.audits.gates import DELTAS, LEAST, gaussian
from sordino.audits.lower_bounds import (
    Guesses,
    LowerBound,
    distance,
    epsilon_at_least,
    epsilon_by_errors,
    mu_at_least,
    upper,
)
from sordino.audits.replay import BEGINNING, check_allowed, preparation
from sordino.config import Experiment
from sordino.errors import Range, check_range
from sordino.planning.planner import Planner
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.responses import Responses, composed_delta
from sordino.receipts.private import key_of_data
from sordino.results.findings import AuditedPromise, AuditPower, ReplayedCanaries, TrainedAudit, TrainedVerdict
from sordino.runs.simulation import Simulation, settle, simulated
from sordino.types import Neighbours

CANARIES = 1000
WRONG = 1e-3  # probability that an audit refutes a true guarantee
# factors by which the noise of broken twins is too small; the first that is caught ends the search
FACTORS = (1.25, 1.5, 2.0, 3.0)
BLIND: TrainedVerdict = "no power"  # not even the weakest twin was caught
WIDE = (*DELTAS, 0.4)
SCALES = 64.0  # largest factor by which noise may differ from what was promised, in a search
FEWEST = 40  # fewest canaries with which an audit can find anything
PROVED = ("proved", "conditional")
# shown with every verdict
UNSEEN = (
    "the gradients that the network computes: canaries bring their own",
    "noise that two releases share",
    "how data were read, split and scaled",
    "what a run writes down",
)
PREPARED = "the releases of a preparation: no canary was in it"


def audit_trained(
    experiment: Experiment,
    folder: Path | None = None,
    canaries: int = CANARIES,
    seed: int = 0,
    tell: Callable[[str], object] = lambda what: None,
) -> TrainedAudit:
    """Attack each guarantee of an experiment, or of the run in a folder, in a replay with canaries."""
    why = "with fewer canaries not even a run without noise would be noticed"
    fix = f"--canaries {CANARIES}"
    check_range("canaries", canaries, Range(least=FEWEST, whole=True), "too-few-canaries", why=why, fix=fix)
    check_allowed(
        experiment, folder, "audit --trained", "a replay draws the noise of a run again, which must be drawn once only"
    )
    data_key = b"" if folder is None else key_of_data(folder)
    simulation = simulated(settle(experiment), data_key)
    planner = Planner(simulation.setup)
    guarantees = planner.guarantees
    held = strongest([row for row in guarantees if promised_itself(simulation, row)])
    prepared, found = preparation(simulation, bare=False) if held else None, list[AuditedPromise]()
    for number, promise in enumerate(held):
        tell(f"{promise.unit}, {promise.neighbours}")
        key = keys.fold(keys.root(seed), "audit-trained", number)
        replays = Replays(placed(simulation, promise.subject, canaries, key), prepared.start if prepared else BEGINNING)
        levels = planner.by_budget(promise.subject)
        found += [_audited(row, replays, tell, level, members) for level, (members, row) in levels.items()]
        found += [] if levels else [_audited(promise, replays, tell)]
    bare = [f"{row.unit}, {row.adversary}" for row in guarantees if not row.finite]
    name = str(experiment.algorithm.get("name"))
    skipped = simulation.preparation and not all(one.prepared for one in found)
    unseen = (*UNSEEN, *([PREPARED] if skipped else []))
    worst: tuple[TrainedVerdict, ...] = ("VIOLATED", BLIND, "not attacked", "proves nothing", "holds")
    none: TrainedVerdict = "nothing to audit: infinity is claimed"
    return TrainedAudit(
        algorithm=name,
        experiment=experiment.digest(),
        rounds=simulation.setup.rounds,
        verdict=next((one for one in worst if any(each.verdict == one for each in found)), none),
        promises=tuple(found),
        unprotected=tuple(bare),
        not_looked_at=unseen,
        wrong=WRONG,
        seed=seed,
    )


def strongest(guarantees: Sequence[Guarantee]) -> list[Guarantee]:
    """Finite guarantees; of those from the same event only the one for the strongest adversary and the largest unit."""
    found: dict[tuple[str, object], Guarantee] = {}
    for row in sorted(guarantees, key=lambda row: (ADVERSARIES.index(row.adversary), -UNITS.index(row.unit))):
        if row.finite and row.epsilon > 0:
            found.setdefault((row.neighbours, row.event), row)
    return list(found.values())


def promised_itself(simulation: Simulation, row: Guarantee) -> bool:
    """True if a mechanism of the run gives this guarantee directly, not by way of one for another unit or other
    neighbours."""
    gates = simulation.setup.whole.phases
    if row.unit == "client":
        noises = [noise for gate in gates if (noise := gate.algorithm.uplink.noise()) is not None]
        return not noises or any(noise.neighbours == row.neighbours for noise in noises)
    readers = [gate.algorithm.read for gate in gates]
    if any(isinstance(reader, Responses) for reader in readers):
        return row.unit in ROWS
    offers = [offer.subject for reader in readers if (offer := reader.offer()) is not None]
    plain = [reader for reader in readers if isinstance(reader, NoisyGradient)]
    offered = any(offer.unit == row.unit for offer in offers)
    return offered and (not plain or any(reader.neighbours == row.neighbours for reader in plain))


def _audited(
    promise: Guarantee,
    replays: Replays,
    tell: Callable[[str], object],
    budget: float | None = None,
    members: Sequence[int] | None = None,
) -> AuditedPromise:
    """One guarantee, of all clients or of those with a certain budget, compared with what their canaries show."""
    canaries = replays.canaries
    found = AuditedPromise(
        **dict(promise.subject),
        budget=budget,
        claimed=promise.epsilon,
        delta=promise.delta,
        status=promise.status,
        releases=promise.releases,
        replays=0,
        verdict="not attacked",
        why=replays.unfit,
    )
    if promise.status not in PROVED:
        return found.beside(verdict="proves nothing", why="nothing is proved that could be refuted")
    if found.why:
        return found.beside(why=f"{found.why}; `sordino audit` attacks single releases")
    if (room := replays.room(members)) < FEWEST:
        return found.beside(why=f"only {room} canaries have room")

    def play(weak: float) -> ReplayedCanaries:
        return judged(promise, replays.scored(weak, members))

    played = play(1.0)
    found = found.beside(replays=canaries.replays, prepared=bool(replays.early), played=played)
    if played.refutes(promise.epsilon):
        return found.beside(verdict="VIOLATED", why="the privacy loss is larger than claimed")
    missed: tuple[float, ...] = ()
    for weak in FACTORS:
        tell(f"{promise.unit}, {promise.neighbours}: a broken twin, noise / {weak:g}")
        twin = play(weak)
        if twin.refutes(promise.epsilon):
            power = AuditPower(caught=weak, missed=missed, twin=twin)
            return found.beside(verdict="holds", why="the loss that was found is not larger than claimed", power=power)
        missed = (*missed, weak)
    why = f"not even noise / {FACTORS[-1]:g} was caught, so this says nothing about the run; {canaries.more}"
    return found.beside(verdict=BLIND, why=why, power=AuditPower(missed=missed, twin=twin))


def curve(promise: Guarantee) -> dict[float, float]:
    """Claimed epsilon at each delta where the bounds are compared; at one delta only for a Gaussian claim, which a
    single number mu describes.
    """
    assert promise.event is not None
    held = {promise.delta: promise.epsilon}
    if gaussian(promise.event):
        return held
    others = (d for d in WIDE if d > promise.delta)
    found = {d: best(promise.event, d, promise.neighbours).epsilon for d in others}
    return held | {d: epsilon for d, epsilon in found.items() if epsilon >= LEAST}


def smooth(event: Event) -> Event:
    """The event with continuous noise in place of a discrete Gaussian, which spreads scores alike. Its epsilon is
    exact; that of the discrete one is known from above alone, and could exceed what is lost.
    """
    return Gaussian(event.noise_multiplier) if isinstance(event, DiscreteGaussian) else event


class NoiseRead(NamedTuple):
    """Gaussian noise in `times` releases, each on a Poisson sample of this rate."""

    rate: float
    noise: Gaussian
    times: int

    @classmethod
    def of(cls, event: Event, neighbours: Neighbours) -> list[NoiseRead]:
        """All releases of an event; empty if any of them has noise of another kind."""
        found = []
        for one, times in reduce(event, neighbours).counted:
            rate, noise = (one.rate, smooth(one.event)) if isinstance(one, Poisson) else (1.0, smooth(one))
            if not isinstance(noise, Gaussian):
                return []
            found.append(cls(rate, noise, times))
        return found

    def quieter(self, factor: float) -> Event:
        """The same releases with noise divided by this factor."""
        one = Gaussian(self.noise.noise_multiplier / factor)
        return Repeat(one if self.rate == 1 else Poisson(self.rate, one), self.times)


def noise_lacking(reads: Sequence[NoiseRead], canaries: ScoredCanaries, alpha: float) -> float:
    """Lower confidence limit for the factor by which the actual noise is smaller than promised; above 1 it is too
    small.

    Secret sampling also varies the scores of present canaries, so under sampling only absent ones are used.
    """
    off = (canaries.scores - canaries.there.double()) * (canaries.weight / canaries.weight.max()).sqrt()
    shown = distance(off if all(one.rate == 1 for one in reads) else off[~canaries.there], alpha)
    return shown / math.sqrt(sum(one.times * (one.rate / one.noise.noise_multiplier) ** 2 for one in reads))


def epsilon_by_noise(promise: Guarantee, canaries: ScoredCanaries, alpha: float) -> float:
    """Lower bound on epsilon, from the spread of scores: what the promised releases cost under the largest noise that
    agrees with the scores. 0 if the promised noise is not Gaussian.
    """
    assert promise.event is not None
    reads = NoiseRead.of(promise.event, promise.neighbours)
    if not reads or not len(canaries.scores):
        return 0.0
    lacking = noise_lacking(reads, canaries, alpha)
    return price(promise, Together(tuple(one.quieter(lacking) for one in reads)), lacking)


def epsilon_by_overlap(promise: Guarantee, wrong: float) -> float:
    """Lower bound on epsilon, from the share `wrong` of wrong guesses: what the promised releases cost under the
    largest noise at which guesses need not be wrong more often (half the overlap of the two neighbours). 0 if no noise
    can be scaled."""
    apart = 1 - 2 * wrong
    if apart <= 0 or quieter(promise, 1.0) is None:
        return 0.0

    def refuted(factor: float) -> bool:
        """True if noise at this factor keeps neighbours closer than observed: at this delta epsilon would be 0."""
        released = quieter(promise, factor)
        assert released is not None
        if len(released) == 1 and isinstance(one := released[0].event, Response):  # exact, and at once
            return composed_delta(one.epsilon, released[0].count, 0.0, one.levels) <= apart
        return best(Together(released), apart, promise.neighbours).epsilon <= 0

    if not refuted(1 / SCALES):
        return 0.0
    factor = bisect(refuted, good=1 / SCALES, bad=SCALES, tight=1e-3)
    return price(promise, Together(quieter(promise, factor) or ()), factor)


def quieter(promise: Guarantee, factor: float) -> tuple[Repeat, ...] | None:
    """The promised releases with noise divided by this factor, or with a response's epsilon multiplied by it; None if
    one of them can do neither.
    """
    assert promise.event is not None
    found = list[Repeat]()
    for one, times in reduce(promise.event, promise.neighbours).counted:
        stretched = smooth(one).stretched(factor)
        louder = Response(one.epsilon * factor, one.levels) if isinstance(one, Response) else stretched
        if louder is None:
            return None
        found.append(Repeat(louder, times))
    return tuple(found)


def price(promise: Guarantee, event: Event | None, factor: float) -> float:
    """Epsilon of releases whose noise is `factor` times smaller; for factors up to 1, at most the promised epsilon."""
    assert event is not None
    lost = best(event, promise.delta, promise.neighbours).epsilon
    return lost if factor > 1 else min(lost, promise.epsilon)  # accountants round up


def judged(promise: Guarantee, canaries: ScoredCanaries, wrong: float = WRONG) -> ReplayedCanaries:
    """All lower bounds, at the joint error probability `wrong`, a quarter of it for each."""
    assert promise.event is not None
    delta, against, each = promise.delta, curve(promise), wrong / 4
    canaries = canaries.of(canaries.rounds <= promise.releases)  # in a replay a client may be asked more often
    many, right = len(canaries.scores), int(((canaries.scores > 0.5) == canaries.there).sum())
    guesses, wrong_guesses = Guesses(many, many, right), upper(many - right, many, each)
    # one confidence limit for the share of wrong guesses, at every delta
    lost = [LowerBound(d, epsilon_by_errors(wrong_guesses, d)) for d in against]
    lost.append(LowerBound(delta, epsilon_by_overlap(promise, wrong_guesses)))
    lost.append(LowerBound(delta, epsilon_by_noise(promise, canaries, each)))
    found = max(lost, key=lambda one: one.epsilon / against[one.delta])
    coins = epsilon_at_least(guesses, delta, each)
    if gaussian(promise.event):
        coins = max(coins, epsilon_of(mu_at_least(guesses, each), delta))
    return ReplayedCanaries(
        canaries=many,
        right=right,
        at_least=found.epsilon,
        at_delta=found.delta,
        claimed_there=against[found.delta],
        at_least_by_coins=coins,
    )
