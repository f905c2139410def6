"""The links of gate 2: which of them fit together, and what they promise. `sordino.privacy.uplink` is what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.ledger.claims import ADVERSARIES, STATUSES, Adversary, Claim, Neighbours, Status
from sordino.ledger.events import Event, NonPrivate
from sordino.privacy.uplink.as_published import AsPublished
from sordino.privacy.uplink.clip_layers import ClipLayers
from sordino.privacy.uplink.coordinate_laplace import CoordinateLaplace, Flag
from sordino.privacy.uplink.fixed_point import Quantise
from sordino.privacy.uplink.secure_stages import Aggregated, NoiseShare, Secure
from sordino.privacy.uplink.stages import Clip, Noise, Stage, Weigh, private
from sordino.types import Offer

RAW = "sees each upload, no client-level noise"
SUM = "sees sums of uploads, no client-level noise"
ROSTER = (
    "whoever takes part in a secure sum is told who else does: only what a client sends is hidden from participants"
)
NOMINAL = "noise as published, whose size follows from no bound"


@dataclass(frozen=True)
class Links:
    """denominator: `received` divides by the weights that arrived (only without central noise), `expected` by a public
    constant.
    """

    client: tuple[Stage, ...] = (Weigh(),)
    server: tuple[Stage, ...] = ()
    denominator: Literal["received", "expected"] | None = (
        None  # None: expected where the server adds noise, else received
    )
    # why a published set-up that is not proved is allowed all the same: said with every claim, whose status is
    # `conditional`
    published: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", arranged(self.client))
        each = next((s for s in (*self.client, *self.server) if s.reads_each and (s.learns or s in self.server)), None)
        if self.secure is not None and each is not None:
            raise UnsoundGuarantee(
                f"{type(each).__name__} with a secure sum",
                why="it reads each upload, and nobody can read one",
                fix="use another stage, or no secure sum",
                code="stage-reads-each",
            )
        published = self.coordinates
        if published is not None and published.flagged != any(isinstance(stage, Flag) for stage in self.client):
            raise ConfigError(
                "flags that nobody sends" if published.flagged else "flags that nobody reads",
                why="the clients' half of a flag is a stage of their own, the server's half is in its noise",
                fix='put "flag" into client = [...] and flagged = true into the noise, or neither',
                code="flags-need-both-halves",
            )
        if self.denominator is None:
            object.__setattr__(self, "denominator", "expected" if self.central else "received")
        if self.denominator not in ("received", "expected"):
            raise ConfigError(
                f"denominator = {self.denominator!r}",
                fix='"expected", or "received" where the server adds no noise',
                code="unknown-denominator",
            )
        if any(
            not isinstance(stage, Noise | CoordinateLaplace) or isinstance(stage, NoiseShare) for stage in self.server
        ):
            raise ConfigError(
                "a server stage that is no noise",
                why="only noise is added to the sum; a clip there would come too late to bound a client",
                fix="put the other stages into client = [...]",
                code="server-stage-not-noise",
            )
        if self.central and self.denominator == "received" and not self.published:
            raise UnsoundGuarantee(
                "central noise with a realised denominator",
                why="the number of clients that answered depends on who is in the data, so dividing by it changes the sensitivity",
                fix='use denominator = "expected"',
                code="realised-denominator",
            )
        for local in private(self.client):
            if local.neighbours == "add_remove" and not isinstance(local, NoiseShare):
                raise UnsoundGuarantee(
                    "client-side noise with add_remove neighbours",
                    why="the server sees who uploads, so presence is not hidden; two different uploads lie up to 2 * radius apart",
                    fix='use neighbours = "replace" (or "zero_out")',
                    code="local-noise-add-remove",
                )
        seen_noise = False
        for stage in self.client:
            if seen_noise and isinstance(stage, Clip | ClipLayers):
                raise UnsoundGuarantee(
                    "a clip after the noise",
                    why="the bound must hold before noise is added; the noise would be sized for the wrong input",
                    fix="put Clip before Noise",
                    code="noise-before-clip",
                )
            seen_noise = seen_noise or isinstance(stage, Noise)
        if len(private(self.client)) + len(private(self.server)) > 1:
            raise UnsoundGuarantee(
                "two noise stages in one uplink",
                why="one promise, one noise",
                fix="keep one",
                code="two-noises",
            )

        personal = next((i for i, s in enumerate(self.client) if isinstance(s, Clip) and s.personal), len(self.client))
        if any(isinstance(stage, Clip | ClipLayers) for stage in self.client[personal + 1 :]):
            raise UnsoundGuarantee(
                "a clip behind a personal clip",
                why="it would give everybody the same radius again, and the server would take those with small budgets for cheats",
                fix="put the personal clip last",
                code="clip-behind-personal-clip",
            )
        if (self.as_published is not None or self.coordinates is not None) and self.noise() is not None:
            raise UnsoundGuarantee(
                "noise as published together with noise that is priced",
                why="the published stage bounds nothing and makes every claim nominal: a budget would be spent for nothing",
                fix="keep one of them",
                code="published-beside-noise",
            )
        if self.personal and not any(stage.neighbours != "add_remove" for stage in private(self.server)):
            raise UnsoundGuarantee(
                "a personal clip without central noise for visible clients",
                why="it spends each client's own budget under one noise: at the client, each adds its own noise instead; in a hidden cohort, each has its own rate",
                fix='server = [{name = "noise", neighbours = "zero_out"}], or take personal = true away',
                code="personal-clip-needs-central-noise",
            )

    # what it promises -------------------------------------------------------------------------------------------------

    def noise(self) -> Noise | None:
        stages = private(self.client) + private(self.server)
        return stages[0] if stages else None

    @property
    def as_published(self) -> AsPublished | None:
        """Noise that proves nothing."""
        return next((stage for stage in self.client if isinstance(stage, AsPublished)), None)

    @property
    def coordinates(self) -> CoordinateLaplace | None:
        """Noise of the server for single coordinates, as published."""
        return next((stage for stage in self.server if isinstance(stage, CoordinateLaplace)), None)

    @property
    def secure(self) -> Secure | None:
        """How uploads are added without being read."""
        last = self.client[-1] if self.client else None
        return last if isinstance(last, Secure) else None

    @property
    def central(self) -> bool:
        """Does noise protect the sum, not each upload?"""
        return self.shared or bool(private(self.server))

    @property
    def shared(self) -> bool:
        """Is one noise added in shares?"""
        return any(isinstance(stage, NoiseShare) for stage in self.client)

    @property
    def grid(self) -> Quantise | None:
        return next((stage for stage in self.client if isinstance(stage, Quantise)), None)

    @property
    def personal(self) -> bool:
        """Is every client bounded by what its own budget buys?"""
        return any(isinstance(stage, Clip) and stage.personal for stage in self.client)

    def offer(self, rate: float, hidden: bool) -> Offer | None:
        """`rate` and `hidden` describe the cohort: only a hidden Poisson cohort may amplify, and never against the
        server.
        """
        noise = self.noise()
        if noise is None:
            return None
        central = self.central
        if central and hidden and noise.neighbours != "add_remove":
            raise UnsoundGuarantee(
                f"a hidden Poisson cohort with {noise.neighbours} neighbours",
                why="sampling by independent coins amplifies the promise of adding or removing a client, no other",
                fix='use neighbours = "add_remove"',
                code="poisson-needs-add-remove",
            )
        if central and not hidden and noise.neighbours == "add_remove" and not self.published:
            raise UnsoundGuarantee(
                "add_remove neighbours without a Poisson cohort",
                why="removing a client changes who else is drawn, so more than one summand changes",
                fix='use cohort = {name = "poisson", rate = ...}, or neighbours = "zero_out"',
                code="add-remove-needs-poisson",
            )
        amplified = central and (hidden or bool(self.published))
        return Offer(
            unit="client",
            neighbours=noise.neighbours,
            adversary="participants" if central else "server",
            mechanism=noise.mechanism,
            everyone_pays=amplified,
            rate=rate if amplified else 1.0,
        )

    def claims(self, multiplier: float | None, amplify: Callable[[Event, Adversary], Event]) -> list[Claim]:
        """`amplify` is the cohort's: what its sampler makes of an event against an adversary."""
        noise = self.noise()
        if (shown := self.as_published) is not None:
            return [Claim("client", "replace", a, NonPrivate(NOMINAL), "nominal", shown.reasons) for a in ADVERSARIES]
        if (published := self.coordinates) is not None:
            made = [
                Claim("client", "replace", a, *published.promise()) if a != "server" else _nothing("replace", a, RAW)
                for a in ADVERSARIES
            ]
        elif noise is None:
            made = [_nothing("replace", a, RAW if a == "server" else SUM) for a in ADVERSARIES]
        else:
            used = noise.multiplier if noise.multiplier is not None else multiplier
            assert used is not None
            event = noise.mechanism.event(used * noise.louder)
            status: Status = "conditional" if self.published else "proved"
            because = (*([self.published] if self.published else []), *self._assumed(), *noise.assumptions)
            made = [
                _nothing(noise.neighbours, a, RAW)
                if self.central and a == "server"
                else self._seen_by(a, Claim("client", noise.neighbours, a, event, status, because), amplify)
                for a in ADVERSARIES
            ]
        return [self._unread(claim, multiplier) for claim in made]

    def _seen_by(self, adversary: Adversary, claim: Claim, amplify: Callable[[Event, Adversary], Event]) -> Claim:
        """What noise on a sum promises, with the sampler's part in it where who takes part is hidden from this
        adversary.
        """
        if not self.central:
            return claim
        if adversary == "participants" and isinstance(self.secure, Aggregated) and claim.neighbours == "add_remove":
            return replace(claim, neighbours="zero_out", because=(*claim.because, ROSTER))
        return replace(claim, event=amplify(claim.event, adversary))

    def _unread(self, claim: Claim, multiplier: float | None) -> Claim:
        """What is left of a claim where the server cannot read single uploads."""
        secure, noise = self.secure, self.noise()
        if secure is None or (noise is not None and not self.central and claim.adversary == "server"):
            return claim
        if claim.adversary != "server":
            if assumed := secure.assumed(isinstance(noise, NoiseShare), claim.neighbours == "add_remove"):
                weaker: Status = max(claim.status, "conditional", key=STATUSES.index)
                return replace(claim, status=weaker, because=(*claim.because, *assumed))
            return claim
        shares = isinstance(noise, NoiseShare)
        used = noise.multiplier if noise is not None and noise.multiplier is not None else multiplier
        shared = noise.mechanism.event(used) if shares and noise is not None and used is not None else None
        event, because = secure.seen(shared, bool(self.server))
        neighbours: Neighbours = "zero_out" if shares else claim.neighbours
        if isinstance(event, NonPrivate):
            return Claim("client", neighbours, "server", event, "none", because)
        more = noise.assumptions if noise is not None and shares else ()
        return Claim("client", neighbours, "server", event, "conditional", (*more, *because))

    def _assumed(self) -> tuple[str, ...]:
        weighed = any(isinstance(stage, Weigh) and stage.by == "examples" for stage in self.client)
        return ("the number of examples of each client is public",) if weighed else ()

    @property
    def scale(self) -> float:
        """Steps of the fixed point per unit; 1 where uploads stay real numbers."""
        return self.grid.scale if self.grid is not None else 1.0


def arranged(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Fixed point before a secure sum, where it is not spelt out; and nothing behind it that is not for integers."""
    secure = next((stage for stage in stages if isinstance(stage, Secure)), None)
    if secure is not None and stages[-1] is not secure:
        raise ConfigError(
            f"{type(stages[-1]).__name__} behind a secure sum",
            why="what is encrypted or masked cannot be changed any more",
            fix="put the secure sum last",
            code="secure-sum-not-last",
        )
    shares = [i for i, stage in enumerate(stages) if isinstance(stage, NoiseShare)]
    if secure is not None and not any(isinstance(stage, Quantise) for stage in stages):
        at = shares[0] if shares else len(stages) - 1
        stages = (*stages[:at], Quantise(), *stages[at:])
    if shares:
        share = next(stage for stage in stages if isinstance(stage, NoiseShare))
        if not isinstance(secure, Aggregated):
            raise UnsoundGuarantee(
                "noise in shares without secure aggregation",
                why="each share alone is too quiet to protect its upload, and only secure aggregation makes sure that enough of them are in a sum",
                fix='put {name = "secagg"} last, or use noise at the server',
                code="shares-need-secagg",
            )
        if secure.threshold is None:
            stages = (*stages[:-1], replace(secure, threshold=share.survivors))
        elif secure.threshold < share.survivors:
            raise UnsoundGuarantee(
                f"a sum of {secure.threshold} clients is opened, and their noise is enough from {share.survivors} on",
                why="with fewer shares the noise is smaller than the promise",
                fix=f"threshold = {share.survivors}, or a smaller number of survivors",
                code="too-few-shares",
            )
    grid = next((i for i, stage in enumerate(stages) if isinstance(stage, Quantise)), len(stages))
    if any(isinstance(stage, NoiseShare) for stage in stages[:grid]):
        raise UnsoundGuarantee(
            "noise in shares before fixed point",
            why="each upload is then cut to the range with its share in it, and the parts of the noise no longer add up",
            fix="put quantise before the noise",
            code="share-off-the-grid",
        )
    for stage in stages[grid + 1 :]:
        if not isinstance(stage, Noise | Secure):
            raise ConfigError(
                f"{type(stage).__name__} behind fixed point",
                why="integers are only noised and added",
                fix="put it before",
                code="stage-behind-fixed-point",
            )
    return stages


def _nothing(neighbours: Neighbours, adversary: Adversary, text: str) -> Claim:
    return Claim("client", neighbours, adversary, NonPrivate(text), "none", (text,))
