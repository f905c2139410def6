"""Secure sums between sites: which of them are possible there, with which class of sites, and who else takes part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import Encrypted
from sordino.runs.setup import Setup, Whole
from sordino.sampling.stragglers import Stragglers
from sordino.sites.agreement_file import SitesAgreement
from sordino.sites.encrypted_sites import HOLDER, EncryptedSites, held
from sordino.sites.masked_sites import MaskedSites
from sordino.sites.remote_sites import RemoteSites


def kind_of_sites(setup: Setup) -> Callable[..., RemoteSites]:
    """Class that represents the sites of a phase, depending on the secure sum of its uplink."""
    uplink = setup.algorithm.uplink
    check_between_sites(uplink, setup.stragglers, setup.policy.hidden)
    if uplink.secure is None:
        return RemoteSites
    kind = EncryptedSites if isinstance(uplink.secure, Encrypted) else MaskedSites
    return partial(kind, algorithm=setup.algorithm, task=setup.task)


def peers_of(whole: Whole, agreed: SitesAgreement) -> list[str]:
    """Names of all that answer the server in this run: the sites, and the key holder if there is one."""
    holder = any(held(whole, stage) is not None for stage in range(len(whole.phases)))
    return [*agreed.sites, *([HOLDER] if holder else [])]


def check_between_sites(uplink: Uplink, stragglers: Stragglers, hidden: bool) -> None:
    """Refuses options of a secure sum that only a simulation can have."""
    secure = uplink.secure
    if secure is None:
        return
    if isinstance(secure, Encrypted) and secure.keys != "authority":
        raise UnsoundGuarantee(
            f'keys = "{secure.keys}" between sites',
            why="all sites would have to agree on one secret key without the server, and it would open every upload "
            "of every other site",
            fix='use keys = "authority" with a key holder, or secagg, which has none',
            code="shared-key-between-sites",
        )
    if secure.mode != "full":
        raise UnsoundGuarantee(
            'mode = "probe" between sites',
            why="all uploads but one would be sent unencrypted",
            fix='use mode = "full"',
            code="probe-between-sites",
        )
    if stragglers.leaves_out:
        raise ConfigError(
            "rehearsed faults in a secure sum between sites",
            why="late or lost clients would have to be left out of a sum that is only opened as a whole",
            fix='use no [chaos] and no stragglers with policy = "late": real sites are late by themselves',
            code="rehearsed-between-sites",
        )
    if hidden and uplink.central:
        raise UnsoundGuarantee(
            "a secure sum over a hidden cohort, between sites",
            why="real sites can fall silent, and all parties see whether enough of the drawn sites stay to the end",
            fix="use a visible cohort",
            code="broken-rounds-tell",
        )
    if uplink.grid is not None and uplink.grid.strict:
        raise UnsoundGuarantee(
            "strict = true in the quantise stage, between sites",
            why="the number of a client's values outside the range would have to be reported, and no noise covers it",
            fix="leave strict out, and set a larger range or clip the uploads",
            code="strict-between-sites",
        )


def check_elsewhere(whole: Whole) -> None:
    """Refuses secure sums in a run whose messages another program carries."""
    if any(phase.algorithm.uplink.secure is not None for phase in whole.phases):
        raise ConfigError(
            "a secure sum inside another program",
            why="it may start a new process for each message, which has forgotten the masks of the round, and it knows "
            "no key holder",
            fix="add uploads securely between `sordino serve` and `sordino join`, or leave secagg and bfv out",
            code="secure-sum-elsewhere",
        )
