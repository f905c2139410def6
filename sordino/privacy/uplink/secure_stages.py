"""Secure sums, the last stage of an uplink: uploads are added up without anybody being able to read one of them.

    Encrypted     Paillier (EUROCRYPT 1999), BFV (Fan and Vercauteren 2012) or CKKS (Cheon et al., ASIACRYPT 2017): the
                  server adds ciphertexts, a key holder decrypts the sum
    Aggregated    masks that cancel in the sum (Bonawitz et al., CCS 2017): the server unmasks the sum of those who
                  stayed, and nothing else

They carry integers (`Quantise`) and change no bit of their sum. They protect single uploads from the server, by
computational assumptions, and give no differential privacy for the sum itself. `NoiseShare` does: every client adds a
share of one noise, and the shares of the clients that must stay suffice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sordino import branches
from sordino.accounting.events import Event, NoAccess, NonPrivate
from sordino.errors import SEVERAL, ConfigError, UnsoundGuarantee, WeakKey, check_range
from sordino.privacy.uplink.fixed_point import Layout
from sordino.privacy.uplink.stages import Noise, Stage
from sordino.tree import Tree
from sordino.types import Bound, Grant

if TYPE_CHECKING:
    from sordino.privacy.uplink.channels import EncryptedSums, MaskedSums, SecureSums

PROBED = "a probe: one client a round is encrypted, the integers of all others are added in clear"
HIDDEN = (
    "the server adds ciphertexts and has no key: uploads and model are hidden from it computationally, as "
    "long as {scheme} is not broken, and nothing that it sees follows from an opened sum: no published model, no stop "
    "for an upload that is no number, no adaptive schedule, no dynamic rates or radii"
)
SHARED = "all clients hold one key: the server and any one client together read every upload"
AUTHORITY = (
    "the key service opens nothing of fewer than {least} clients, as the server, which follows the protocol, counts "
    "them; together with the server it reads every upload"
)
MASKED = (
    "single uploads are masked: the server, which follows the protocol, opens the sum of at least {least} "
    "clients and nothing else"
)
ROSTER = "clients in a secure sum know who else takes part: only their uploads are hidden from participants"
OPENED = "whoever has the key of all clients opens the sums, and sees how many uploads are in each: no cohort is hidden"
LEFT = (
    "whoever has the key of all clients looks at the numbers of a sum alone: a {scheme} ciphertext also has what "
    "rounding left of single uploads, under noise of the encryption that is sized for no epsilon"
)
OFF = "nobody reads the errors of a ckks sum: they depend on uploads and on the noise, and are sized for no epsilon"
SUM_OF_ALL = "sees the exact sum of the uploads, no noise in it"
OWN_NOISE = "knows its own noise: sees the exact sum of the uploads"
HONEST = "clients keep their own bounds: nobody can check an upload that nobody can read"
COUNTED = (
    "whether enough clients came for a sum is seen by everybody: that one client decides it is rarer than a "
    "hundredth of delta, which is not added"
)
SCHEMES = {
    "paillier": "decisional composite residuosity and short exponents",
    "bfv": "ring learning with errors",
    "ckks": "ring learning with errors",
}
# steps of the grid in the deviation of one share: sums of shares are then discrete Gaussians to within e^-150
SPREAD = 4.0


@dataclass(frozen=True)
class SecureStage(Stage, ABC):
    """A way to add uploads that the server cannot read."""

    @property
    @abstractmethod
    def sums(self) -> SecureSums[Any]:
        """Module of an optional subpackage that implements this secure sum."""

    @property
    def mode(self) -> str:
        """Uploads that are protected: "full" means all of them, "probe" one in each round."""
        return "full"

    aggregate_only = True

    takes_integers = True

    @property
    def crowd(self) -> str:
        """Reason why participants see who, or how many, are in a round; empty where they do not."""
        return ""

    @abstractmethod
    def least(self, cohort: int, noised: bool = False) -> int:
        """The smallest number of clients whose sum is decrypted or unmasked, for a cohort of this size. `noised`: the
        server's noise is encrypted with it.
        """

    def needs(self) -> None:
        """Refuses the stage where a package that it uses is missing."""
        self.sums.needs(self)

    @abstractmethod
    def seen(self, shared: Event | None, central: bool) -> tuple[Event, tuple[str, ...]]:
        """Event for what the server sees under this stage, with reasons. `shared`: the event of noise that clients add
        in shares; `central`: the server adds noise itself.
        """

    @abstractmethod
    def assumed(self, shares: bool, hidden: bool, central: bool, opens: bool) -> tuple[str, ...]:
        """Assumptions of this stage in claims against adversaries other than the server. `shares`: clients add noise in
        shares; `hidden`: the claim relies on nobody seeing who took part; `central`: it relies on noise that the server
        adds; `opens`: it is about participants.
        """


@dataclass(frozen=True)
class Encrypted(SecureStage):
    """Sums of encrypted uploads. keys: `shared` by all clients, or held by an `authority` that decrypts for the server.
    mode: `probe` encrypts one client's upload in a round and adds the others' integers in clear, to measure the cost of
    encryption; it hides nothing.
    """

    scheme: Literal["paillier", "bfv", "ckks"] = "paillier"
    key_bits: int = 3072  # of Paillier
    keys: Literal["shared", "authority"] = "shared"
    at_least: int = 10  # uploads in what an authority opens
    mode: Literal["full", "probe"] = "full"
    testing: bool = False  # allows keys of 2048 bits

    def __post_init__(self) -> None:
        if self.scheme == "paillier" and (
            self.key_bits not in (2048, 3072, 4096) or (self.key_bits == 2048 and not self.testing)
        ):
            raise WeakKey(
                f"a Paillier key of {self.key_bits} bits",
                why="3072 bits give 128 bits of security; 2048 bits give 112, enough for tests only",
                fix="use 3072 or 4096, or 2048 with testing = true",
                code="weak-key",
            )
        if self.scheme == "ckks" and self.keys == "authority":
            raise UnsoundGuarantee(
                'ckks with keys = "authority"',
                why="an opened ckks sum carries the noise of its encryption: a server that has the sum and its "
                "ciphertext can compute the key (Li and Micciancio, EUROCRYPT 2021)",
                fix='use bfv or paillier, or keys = "shared", where the server never sees an opened sum',
                code="ckks-opened-for-server",
            )
        check_range(
            "at_least", self.at_least, SEVERAL, "authority-opens-one", why="the sum of a single upload is that upload"
        )

    @property
    def sums(self) -> EncryptedSums:
        found: EncryptedSums = branches.part("secure_sums", "encrypted")
        return found

    @property
    def crowd(self) -> str:
        return OPENED if self.keys == "shared" else ""

    def least(self, cohort: int, noised: bool = False) -> int:
        # a hidden cohort must not reveal that a round was empty: the sum is then computed of noise alone
        return self.at_least if self.keys == "authority" else int(not noised)

    def seen(self, shared: Event | None, central: bool) -> tuple[Event, tuple[str, ...]]:
        if self.mode == "probe":
            return NonPrivate(PROBED), (PROBED,)
        hidden = HIDDEN.format(scheme=f"{self.scheme} ({SCHEMES[self.scheme]})")
        if self.keys == "shared":
            return NoAccess(), (hidden, SHARED, HONEST)
        return NonPrivate(OWN_NOISE if central else SUM_OF_ALL), (hidden, AUTHORITY.format(least=self.at_least))

    def assumed(self, shares: bool, hidden: bool, central: bool, opens: bool) -> tuple[str, ...]:
        rounded, shared = central and self.scheme != "paillier", self.keys == "shared"  # a bad upload can show it
        because = (*(LEFT.format(scheme=self.scheme),) * (rounded and shared and opens), *(HONEST,) * rounded)
        return (*because, *(OFF,) * (rounded and self.scheme == "ckks"), *(COUNTED,) * (hidden and not shared))


@dataclass(frozen=True)
class Aggregated(SecureStage):
    """Sums of uploads under masks that cancel. `threshold`: clients that must stay to the end of a round; None: more
    than two thirds of those who began it.
    """

    threshold: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_range(
                "threshold",
                self.threshold,
                SEVERAL,
                "threshold-too-small",
                why="the sum of a single upload is that upload",
            )

    @property
    def sums(self) -> MaskedSums:
        found: MaskedSums = branches.part("secure_sums", "masked")
        return found

    crowd = ROSTER

    def least(self, cohort: int, noised: bool = False) -> int:
        return max(2, 2 * cohort // 3 + 1 if self.threshold is None else self.threshold, cohort // 2 + 1)

    def seen(self, shared: Event | None, central: bool) -> tuple[Event, tuple[str, ...]]:
        if shared is not None:
            return shared, self.assumed(shares=True, hidden=False, central=False, opens=False)
        return NonPrivate(OWN_NOISE if central else SUM_OF_ALL), (self._masked,)

    def assumed(self, shares: bool, hidden: bool, central: bool, opens: bool) -> tuple[str, ...]:
        return (*((self._masked, HONEST) if shares else ()), *((COUNTED,) if hidden else ()))

    @property
    def _masked(self) -> str:
        return MASKED.format(least="two thirds of the" if self.threshold is None else self.threshold)


@dataclass(frozen=True)
class NoiseShare(Noise):
    """One discrete Gaussian noise, added in shares by the clients before a secure sum (Kairouz, Liu and Steinke, ICML
    2021): each share has 1/(survivors - 1) of the variance, since a participant knows its own.

    Guarantees: an opened sum less any one share has at least the noise of the multiplier in it, if `survivors` honest
    clients stay, which secure aggregation sees to. Proof: the variances of independent parts add up; a sum of discrete
    Gaussians of at least SPREAD steps is a discrete Gaussian to within e^-150 a coordinate, whose Renyi divergence is
    that of the continuous one (Canonne, Kamath and Steinke, NeurIPS 2020). Its curve of epsilon and delta is not that
    of the continuous one: at SPREAD steps delta is up to 5.5% above, so it is accounted for by Renyi divergence.
    """

    survivors: int = 2

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            f"of the clients that stay, {self.survivors} add their share of the noise and tell nobody: who knows more "
            f"than one share sees less noise",
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        why = 'noise that one client adds alone is not in shares: use the stage "noise" at the client for that'
        check_range("survivors", self.survivors, SEVERAL, "threshold-too-small", why=why)
        law = self.mechanism.shared
        if law is None:
            raise UnsoundGuarantee(
                f"{type(self.mechanism).__name__} in shares",
                why="no law is known that the sum of its shares has",
                fix='set law = "gaussian"',
                code="shares-are-gaussian",
            )
        object.__setattr__(self, "mechanism", law)

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        multiplier = self.multiplier if self.multiplier is not None else grant.multiplier
        assert multiplier is not None, "the plan prices every noise stage before a round"
        self.check_width(bound, multiplier)
        return self.release(x, bound, multiplier / math.sqrt(self.survivors - 1), grant.source)

    def check_width(self, bound: Bound, multiplier: float) -> None:
        part = multiplier / math.sqrt(self.survivors - 1)
        if part * self.sensitivity(bound) < SPREAD:
            raise UnsoundGuarantee(
                f"one share of the noise is only {part * self.sensitivity(bound):.2g} steps of the grid",
                why=f"shares add up to discrete Gaussian noise only if each is at least {SPREAD:g} steps",
                fix="set more bits or a smaller range in the quantise stage, or spend less of the budget in a round",
                code="share-too-narrow",
            )

    def room(self, bound: Bound, multiplier: float) -> float:
        """The grid steps that one share of the noise may take: twelve of its standard deviations."""
        return 12 * multiplier / math.sqrt(self.survivors - 1) * self.sensitivity(bound)


def check_cohort(stage: SecureStage, layout: Layout, clients: int) -> None:
    """Refuses a largest number of clients in a round that overflows a secure sum, or is too small to decrypt or unmask
    one.
    """
    if isinstance(stage, Encrypted):
        stage.sums.check(stage, layout, clients)
    layout.check(clients)
    if clients < stage.least(clients):
        raise ConfigError(
            f"a round has at most {clients} clients, but a sum of fewer than {stage.least(clients)} is never opened",
            why="every round would be aborted",
            fix="use more clients, or a smaller threshold",
            code="cohort-below-threshold",
        )


def check_noise(stage: SecureStage | None, layout: Layout, count: int, noise: float, own: float | None) -> None:
    """Refuses noise of so many steps that a secure sum of `count` uploads has no room for: noise of the server, or
    (`own`) of each client, beside its own upload of at most `own` steps.
    """
    if isinstance(stage, Encrypted):
        stage.sums.check(stage, layout, count, noise + (own or 0.0), own is not None)
    elif stage is not None:
        check_room(layout, count, noise / count if own is None else noise)


def check_room(layout: Layout, count: int, noise: float) -> None:
    """Refuses a sum that does not fit into a slot together with its noise, `noise` steps for each upload."""
    layout.check(count)
    if count * ((1 << layout.bits) - 1 + 2 * noise) > (1 << layout.width) - 1:
        raise UnsoundGuarantee(
            f"noise of up to {count * noise:.3g} steps does not fit: {count} uploads of {layout.bits} bits in "
            f"slots of {layout.width}",
            why="larger noise is rarer than e^-50 a coordinate; a sum that does not fit wraps around to a wrong value",
            fix="set more headroom bits in the quantise stage",
            code="no-room-for-noise",
        )
