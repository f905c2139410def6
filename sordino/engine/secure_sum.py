"""Secure sum of uploads: stages of the uplink turn them into integers, and a channel (masks or encryption) adds
these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.device import here
from sordino.engine.executor import Tally
from sordino.errors import RangeSaturation, UnsoundGuarantee
from sordino.planning.accounts import OpenRound
from sordino.privacy.uplink import Summed, Uplink
from sordino.privacy.uplink.channels import Channel, SumAtSites
from sordino.privacy.uplink.secure_stages import Encrypted, NoiseShare, check_room
from sordino.privacy.uplink.stages import private
from sordino.tree import Tree
from sordino.types import NoiseSource, Task

OFTEN = 1e-3  # of the values beyond the range: from there on a strict run stops


class SecureSum:
    """Secure sum of the uploads of each round of a run, as the uplink's secure stage (masks or encryption) says."""

    def __init__(self, uplink: Uplink, run: str, channel: Channel | None = None) -> None:
        """`channel`: adds the integers of the uploads; None: the channel that the uplink's secure stage implies."""
        assert uplink.secure is not None
        assert uplink.grid is not None
        self._grid, self._secure = uplink.grid, uplink.secure
        self._channel = channel or uplink.secure.sums.channel(uplink.secure, uplink.grid.layout, run)
        self.broadcast = 0  # bytes of what goes down in place of the model: an encrypted sum

    def __call__(
        self,
        now: OpenRound,
        uploads: Iterable[Any],
        elsewhere: SumAtSites | None,
        weights: Sequence[float],
        uplink: Uplink,
        zero: Tree,
        source: NoiseSource,
    ) -> tuple[Summed, Tally]:
        """The sum of uploads, and its cost; empty if the protocol was aborted. `weights`: of all clients; `elsewhere`:
        a sum between sites, in place of `uploads`.
        """
        cohort = now.granted
        like, bound, noise = uplink.shape(zero), uplink.bound(tree.size(zero)), uplink.noise()
        own = None
        if noise is not None and (used := noise.multiplier or now.central) is not None:
            if isinstance(noise, NoiseShare):
                check_room(self._grid.layout, len(cohort), noise.room(bound, used))
            elif private(uplink.server) and isinstance(self._secure, Encrypted):
                own = flat(noise.release(like, bound, used, source))
        published = uplink.per_coordinate
        if published is not None and not published.flagged and cohort and isinstance(self._secure, Encrypted):
            drawn = published.release(like, [weights[k] for k in cohort], [], self._grid.scale, source)
            own = flat(tree.map(lambda leaf: leaf.round().long(), drawn))  # rounding a sum of integers and noise
        if elsewhere is not None:
            found = elsewhere.open(own)
        else:
            found = self._channel.sum(now.t, ((k, flat(x)) for k, x in uploads), cohort, tree.size(like), own)
        values = max(1, len(found.who) * tree.size(like))
        # a share of noise is beyond the range, and is not cut to it
        cut = 0 if uplink.shared or found.saturated is None else found.saturated
        if self._grid.strict and not found.aborted and cut / values > OFTEN:
            raise RangeSaturation(
                f"{cut} of {values} values are outside the range from {-self._grid.layout.reach:g} to "
                f"{self._grid.layout.reach:g}",
                why="they were cut to this range, so the sum is not the sum of the uploads",
                fix="set a larger range in the quantise stage, or clip the uploads",
                code="range-saturation",
            )
        cost = {
            "mode": self._secure.mode,
            "saturated": None if found.saturated is None else cut,
            "cpu_seconds": {part: round(value, 5) for part, value in found.seconds.items()},
            **({"aborted": found.aborted} if found.aborted else {}),
        }
        if isinstance(self._secure, Encrypted) and self._secure.keys == "shared":
            self.broadcast = found.payload
        noised = own is not None or bool(found.aborted)
        total = Summed(tree.unflat(here(torch.from_numpy(found.total)), like), found.who, noised)
        return total, Tally(sorted(found.who), found.bytes_up, found.payload, cost)


def check_one_broadcast(tells_each: bool) -> None:
    """Refuses masked sums between sites for an algorithm that sends each client its own message (`tells_each`): no
    digest could show that all clients got the same broadcast.
    """
    if tells_each:
        raise UnsoundGuarantee(
            "masked uploads from clients that each get a message of their own",
            why="clients detect a server that sends one of them another model by comparing what all of them received",
            fix="use another uplink, or an algorithm with one broadcast for all",
            code="masks-need-one-broadcast",
        )


def words_of(algorithm: AnyAlgorithm, task: Task, t: int, down: Tree) -> int:
    """Number of integers in an upload of this round."""
    return tree.size(algorithm.uplink.at(t, down).shape(algorithm.zero(task, down)))


def flat(upload: Tree) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All integers of one upload as one vector."""
    return np.concatenate([leaf.cpu().numpy().reshape(-1) for leaf in tree.leaves(upload)])
