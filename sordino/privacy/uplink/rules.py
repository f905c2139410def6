"""Rules of the uplink: which stages fit together, and what they guarantee. `uplink` itself computes the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from sordino.accounting.claims import ADVERSARIES, Adversary, Claim, Neighbours, Status, Subject
from sordino.accounting.events import Event, NoAccess, NonPrivate, Poisson
from sordino.errors import ConfigError, Rule, UnsoundGuarantee, check_rules
from sordino.privacy.uplink.as_published import AsPublished
from sordino.privacy.uplink.coordinate_laplace import PER_COORDINATE_RULES, CoordinateLaplace
from sordino.privacy.uplink.fixed_point import Quantise
from sordino.privacy.uplink.robust import ROBUST_RULES, RobustStage
from sordino.privacy.uplink.secure_stages import Aggregated, NoiseShare, SecureStage
from sordino.privacy.uplink.stages import Clip, ClipLayers, Noise, Stage, Weigh, private
from sordino.types import Offer

RAW = "every upload is visible, and no noise hides a client"
SUM = "sums of uploads are visible, and no noise hides a client"
WIDTH = "each client adds a share of the noise, so how wide it is tells how many take part: no cohort is hidden"
SERVER_NOISE = "the server adds the noise: a site cannot see that it does"
SERVER_COINS = "the server draws who takes part by independent coins at the planned rates, and keeps them secret"
NOMINAL = "noise as published, whose size follows from no proved bound"


@dataclass(frozen=True)
class UplinkStages:
    """The stages of an uplink in order, checked against the rules for combining them. denominator: `received` divides
    the sum by the weights that arrived (only without central noise), `expected` by a public constant.
    """

    client: tuple[Stage, ...] = (Weigh(),)
    server: tuple[Stage, ...] = ()
    denominator: Literal["received", "expected"] | None = None  # expected where the server adds noise, else received
    # why the formula of a publication, by which the noise is sized, proves nothing: said with every claim, whose status
    # is `nominal`
    published: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", arranged(self.client))
        if self.denominator is None:
            object.__setattr__(self, "denominator", "expected" if self.central else "received")
        check_rules(self, (*RULES, *ROBUST_RULES, *PER_COORDINATE_RULES))

    # what it guarantees -----------------------------------------------------------------------------------------------

    def noise(self) -> Noise | None:
        stages = private(self.client) + private(self.server)
        return stages[0] if stages else None

    @property
    def as_published(self) -> AsPublished | None:
        """The stage with published noise that proves nothing; None where there is none."""
        return next((stage for stage in self.client if isinstance(stage, AsPublished)), None)

    @property
    def per_coordinate(self) -> CoordinateLaplace | None:
        """The server's published noise that is sized for single coordinates; None where there is none."""
        return next((stage for stage in self.server if isinstance(stage, CoordinateLaplace)), None)

    @property
    def robust(self) -> tuple[RobustStage, ...]:
        """The stages of a robust sum at the server; empty where the server takes a plain sum."""
        return tuple(stage for stage in self.server if isinstance(stage, RobustStage))

    @property
    def secure(self) -> SecureStage | None:
        """The secure sum, which is always the last stage of the clients; None where there is none."""
        last = self.client[-1] if self.client else None
        return last if isinstance(last, SecureStage) else None

    @property
    def central(self) -> bool:
        """True where the noise protects the sum, not each upload."""
        return self.shared or bool(private(self.server))

    @property
    def shared(self) -> bool:
        """True where each client adds a share of the noise on the sum (distributed noise)."""
        return any(isinstance(stage, NoiseShare) for stage in self.client)

    @property
    def grid(self) -> Quantise | None:
        return next((stage for stage in self.client if isinstance(stage, Quantise)), None)

    @property
    def personal(self) -> bool:
        """True where each client is clipped to a radius of its own, which its budget pays for."""
        return any(isinstance(stage, Clip) and stage.personal for stage in self.client)

    def offer(self, rate: float, hidden: bool) -> Offer | None:
        """The uplink's noise for the budget to calibrate: whom it protects, by which law, and who pays. `rate` and
        `hidden` describe the cohort: only a hidden Poisson cohort may amplify, and never against the server."""
        noise = self.noise()
        if noise is None:
            return None
        central = self.central
        if central and hidden and noise.neighbours != "zero_out":
            raise UnsoundGuarantee(
                f"a hidden Poisson cohort with {noise.neighbours} neighbours",
                why="drawing each client by an independent coin strengthens only the promise about whether a client is "
                "counted",
                fix='set neighbours = "zero_out" in the noise of stages.server, or of the algorithm where it has that '
                "setting",
                code="poisson-needs-zero-out",
            )
        if hidden and self.personal:
            raise UnsoundGuarantee(
                "a personal clip in a hidden cohort",
                why="it spends each client's own budget under one noise; in a hidden cohort each client has its own "
                "rate instead",
                fix="use a visible cohort, or by_budget or threshold without a personal clip",
                code="personal-clip-hidden",
            )
        amplified = central and ((hidden and not self.shared) or bool(self.published))
        return Offer(
            Subject(unit="client", neighbours=noise.neighbours, adversary="participants" if central else "server"),
            mechanism=noise.mechanism,
            everyone_pays=amplified,
            rate=rate if amplified and not self._crowd else 1.0,  # participants who see it are promised no less
        )

    def claims(self, multiplier: float | None, amplify: Callable[[Event, Adversary], Event]) -> list[Claim]:
        """Claims of one round for a client. `amplify` gives the event after amplification by the cohort's sampling,
        against an adversary.
        """
        noise = self.noise()
        if (shown := self.as_published) is not None:
            return Claim.to_everyone("client", "replace", NonPrivate(NOMINAL), "nominal", shown.reasons)
        if (published := self.per_coordinate) is not None:
            made = [
                _claim("replace", a, *published.promise()) if a != "server" else _nothing("replace", a, RAW)
                for a in ADVERSARIES
            ]
        elif noise is None:
            made = [_nothing("replace", a, RAW if a == "server" else SUM) for a in ADVERSARIES]
        else:
            used = noise.multiplier if noise.multiplier is not None else multiplier
            assert used is not None
            event = noise.mechanism.event(used * noise.louder)
            if self.published:
                why = (self.published,)
                nominal = Claim.to_everyone("client", noise.neighbours, NonPrivate(NOMINAL), "nominal", why)
                return nominal if not self.central else [_nothing(noise.neighbours, "server", RAW), *nominal[1:]]
            because = (*self._assumed(), *noise.assumptions)
            made = [
                _nothing(noise.neighbours, a, RAW)
                if self.central and a == "server"
                else self._seen_by(a, _claim(noise.neighbours, a, event, "proved", because), amplify)
                for a in ADVERSARIES
            ]
        return [self._unread(claim, multiplier) for claim in made]

    def _seen_by(self, adversary: Adversary, claim: Claim, amplify: Callable[[Event, Adversary], Event]) -> Claim:
        """Claim of noise on a sum, amplified by sampling if this adversary sees neither who nor how many take part."""
        if not self.central:
            return claim
        event = amplify(claim.event, adversary)
        crowd = (self._crowd if adversary == "participants" else "") or (WIDTH if self.shared else "")
        if crowd and event != claim.event:
            return claim.beside(because=(*claim.because, crowd))
        return claim.beside(event=event)

    @property
    def _crowd(self) -> str:
        return self.secure.crowd if self.secure else ""

    def _unread(self, claim: Claim, multiplier: float | None) -> Claim:
        """The claim as it changes under a secure sum, where the server cannot read single uploads."""
        secure, noise = self.secure, self.noise()
        if secure is None or (noise is not None and not self.central and claim.adversary == "server"):
            return claim
        if claim.adversary != "server":
            hidden, noised = isinstance(claim.event, Poisson), not isinstance(claim.event, NonPrivate)
            central, opens = bool(self.server) and noised, claim.adversary == "participants"
            return claim.resting_on(*secure.assumed(isinstance(noise, NoiseShare), hidden, central, opens))
        shares = isinstance(noise, NoiseShare)
        used = noise.multiplier if noise is not None and noise.multiplier is not None else multiplier
        shared = noise.mechanism.event(used) if shares and noise is not None and used is not None else None
        event, because = secure.seen(shared, bool(self.server))
        neighbours: Neighbours = "zero_out" if shares else claim.neighbours
        if isinstance(event, NonPrivate):
            return _claim(neighbours, "server", event, "none", because)
        more = noise.assumptions if noise is not None and shares else ()
        return _claim(neighbours, "server", event, "conditional", (*more, *because))

    def trusted(self, claim: Claim) -> Claim:
        """The claim with the assumptions that it needs about the server: that it adds its noise, and samples the
        cohort, as promised."""
        if claim.adversary == "server" or isinstance(claim.event, NonPrivate):
            return claim
        noised = bool(private(self.server)) or self.per_coordinate is not None
        tossed = isinstance(claim.event, Poisson)
        return claim.resting_on(*(SERVER_NOISE,) * noised, *(SERVER_COINS,) * tossed)

    def _assumed(self) -> tuple[str, ...]:
        weighed = any(isinstance(stage, Weigh) and stage.by == "examples" for stage in self.client)
        return ("the number of examples of each client is public",) if weighed else ()

    @property
    def scale(self) -> float:
        """The number of fixed-point steps per unit; 1 where uploads stay real numbers."""
        return self.grid.scale if self.grid is not None else 1.0


def arranged(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with those added that they need: quantisation before a secure sum, a threshold for shares of noise."""
    secure = next((stage for stage in stages if isinstance(stage, SecureStage)), None)
    shares = [i for i, stage in enumerate(stages) if isinstance(stage, NoiseShare)]
    if secure is not None and not any(isinstance(stage, Quantise) for stage in stages):
        at = shares[0] if shares else len(stages) - 1
        stages = (*stages[:at], Quantise(), *stages[at:])
    if shares and isinstance(stages[-1], Aggregated) and stages[-1].threshold is None:
        survivors = next(stage.survivors for stage in stages if isinstance(stage, NoiseShare))
        stages = (*stages[:-1], replace(stages[-1], threshold=survivors))
    return stages


def _after(stages: UplinkStages, first: type[Stage]) -> tuple[Stage, ...]:
    """The client stages after the first one of this kind."""
    at = next((i for i, stage in enumerate(stages.client) if isinstance(stage, first)), len(stages.client))
    return stages.client[at + 1 :]


def _reading(stages: UplinkStages) -> Stage | None:
    """First stage that needs each upload by itself at the server: an adaptive one, or one that the server computes,
    such as a robust sum.
    """
    every = (*stages.client, *stages.server)
    return next((s for s in every if s.reads_each and (s.learns or s in stages.server)), None)


def _beyond_integers(stages: UplinkStages) -> Stage | None:
    """The first stage that gets integers but needs real numbers."""
    every = (*_after(stages, Quantise), *private(stages.server if stages.grid is not None else ()))
    return next((stage for stage in every if not stage.takes_integers), None)


def _few_shares(stages: UplinkStages) -> bool:
    """True if a secure sum may be decrypted or unmasked with so few shares of noise that it has too little."""
    survivors = next((stage.survivors for stage in stages.client if isinstance(stage, NoiseShare)), 0)
    return isinstance(stages.secure, Aggregated) and (stages.secure.threshold or survivors) < survivors


def _hides(stages: UplinkStages) -> bool:
    """True where noise hides single values from all but the server, or one key of all clients from the server."""
    one_key = stages.secure is not None and stages.secure.seen(None, False)[0] == NoAccess()
    return one_key or bool(stages.per_coordinate or private(stages.server))


def _clips(stages: UplinkStages) -> list[Clip | ClipLayers]:
    return [stage for stage in stages.client if isinstance(stage, Clip | ClipLayers)]


def _name(stage: Stage | None) -> str:
    return type(stage).__name__


RULES: tuple[Rule[UplinkStages], ...] = (
    Rule(
        lambda stages: bool(_after(stages, SecureStage)),
        ConfigError,
        lambda stages: f"{_name(stages.client[-1])} comes after a secure sum",
        "uploads that are encrypted or masked cannot be changed any more",
        "put the secure sum last",
        "secure-sum-not-last",
    ),
    Rule(
        lambda stages: stages.shared and not isinstance(stages.secure, Aggregated),
        UnsoundGuarantee,
        "noise in shares needs secure aggregation",
        "the share of one client is too small to protect its upload; only secure aggregation never opens "
        "a sum of too few",
        'put {name = "secagg"} last, or let the server add the noise',
        "shares-need-secagg",
    ),
    Rule(
        _few_shares,
        UnsoundGuarantee,
        "the secure sum can be opened with too few shares of noise in it",
        "with fewer shares the noise is smaller than the promise needs",
        "set a threshold as large as survivors, or a smaller number of survivors",
        "too-few-shares",
    ),
    Rule(
        lambda stages: any(isinstance(stage, Quantise) for stage in _after(stages, NoiseShare)),
        UnsoundGuarantee,
        "noise in shares is added before the uploads become integers (quantise)",
        "then each upload is cut to the range with its share of noise in it, and the shares no longer add "
        "up to the noise",
        "put quantise before the noise",
        "share-off-the-grid",
    ),
    Rule(
        lambda stages: _beyond_integers(stages) is not None,
        ConfigError,
        lambda stages: f"{_name(_beyond_integers(stages))} comes after quantise",
        "after quantise uploads are integers, which can only be added, and noised in whole steps",
        "put this stage before quantise, or use Gaussian or Laplace noise",
        "stage-behind-fixed-point",
    ),
    Rule(
        lambda stages: stages.secure is not None and _reading(stages) is not None,
        UnsoundGuarantee,
        lambda stages: f"{_name(_reading(stages))} with a secure sum",
        "this stage reads each upload, and in a secure sum nobody can read one",
        "use another stage, or no secure sum",
        "stage-reads-each",
    ),
    Rule(
        lambda stages: stages.denominator not in ("received", "expected"),
        ConfigError,
        lambda stages: f"denominator = {stages.denominator!r}",
        "a sum is divided by the weights that were received, or by those that were expected",
        'use "expected", or "received" if the server adds no noise',
        "unknown-denominator",
    ),
    Rule(
        lambda stages: any(
            not isinstance(stage, Noise | CoordinateLaplace | RobustStage) or isinstance(stage, NoiseShare)
            for stage in stages.server
        ),
        ConfigError,
        "a stage of the server that is neither noise nor a robust sum",
        "the server adds noise to the sum, or estimates it; a clip there would come too late to bound a client",
        "put the other stages into client = [...]",
        "server-stage-not-noise",
    ),
    Rule(
        lambda stages: stages.central and stages.denominator == "received" and not stages.published,
        UnsoundGuarantee,
        'noise at the server with denominator = "received"',
        "how many clients answered depends on who is in the data, so dividing by it changes the sensitivity",
        'set denominator = "expected"',
        "realised-denominator",
    ),
    Rule(
        lambda stages: bool(stages.grid and stages.grid.strict) and _hides(stages),
        UnsoundGuarantee,
        "noise at the server, or one key of all clients, and quantise with strict = true",
        "whether the run stops depends on single values without noise, and everybody sees it, the server too",
        "leave strict out: what is beyond the range is cut; a clip to a radius within the range leaves nothing to cut",
        "strict-beside-noise",
    ),
    Rule(
        lambda stages: any(isinstance(stage, Clip | ClipLayers) for stage in _after(stages, Noise)),
        UnsoundGuarantee,
        "a clip after the noise",
        "the clip must come first: the noise is sized for vectors that are already clipped",
        "put the clip before the noise",
        "noise-before-clip",
    ),
    Rule(
        lambda stages: len(private(stages.client)) + len(private(stages.server)) > 1,
        UnsoundGuarantee,
        "two noise stages in one uplink",
        "a promise is kept by one noise of one size",
        "keep one of them",
        "two-noises",
    ),
    Rule(
        lambda stages: any(isinstance(clip, Clip) and clip.personal for clip in _clips(stages)[:-1]),
        UnsoundGuarantee,
        "a clip after a personal clip",
        "then all clients have the same radius again, and the server leaves out clients with small budgets as too long",
        "put the personal clip last",
        "clip-behind-personal-clip",
    ),
    Rule(
        lambda stages: (
            (stages.as_published is not None or stages.per_coordinate is not None) and stages.noise() is not None
        ),
        UnsoundGuarantee,
        "noise as published together with noise that is paid from the budget",
        "the published stage bounds nothing, so every claim is only nominal: the budget would be spent for nothing",
        "keep one of them",
        "published-beside-noise",
    ),
    Rule(
        lambda stages: stages.personal and ({*map(type, stages.server)} != {Noise} or stages.secure is not None),
        UnsoundGuarantee,
        "a personal clip needs noise that the server adds, and uploads that the server can read",
        "noise at the client is already its own; privunit tells the direction of a short upload as well as of a long "
        "one; and in a secure sum nobody can leave out one that is longer than its share of the bound",
        'set server = [{name = "noise", neighbours = "zero_out"}] without a secure sum, or leave personal = true out',
        "personal-clip-needs-central-noise",
    ),
)


def _nothing(neighbours: Neighbours, adversary: Adversary, text: str) -> Claim:
    return _claim(neighbours, adversary, NonPrivate(text), "none", (text,))


def _claim(
    neighbours: Neighbours, adversary: Adversary, event: Event, status: Status, because: tuple[str, ...]
) -> Claim:
    return Claim(unit="client", neighbours=neighbours, adversary=adversary, event=event, status=status, because=because)
