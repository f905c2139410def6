"""Worst-case neighbours of one client: an upload far beyond every bound, against the opposite upload or against none.

All uploads pass the uplink's own `encode` and `receive`. Big models are attacked through a small upload with the same
fields and layers: the claim does not depend on the number of coordinates. One call samples many outputs (`torch.vmap`),
each with noise of its own; uplinks that leave torch on the way, as PrivUnit does, are called one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from sordino import tree
from sordino.accounting.events import NoAccess, Poisson
from sordino.audits.lower_bounds import FAR, Pair, Release
from sordino.audits.noise_sources import Silent, VmapNoise, Weak
from sordino.audits.planted import louder
from sordino.budget.plan import Price
from sordino.engine.server import FederatedServer
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.privunit import OneDirection
from sordino.privacy.uplink.stages import Clip, ClipLayers, private
from sordino.runs.setup import PhaseSetup
from sordino.sampling import Random
from sordino.tree import Tree
from sordino.types import Claim, NoiseSource

MOST = 64  # coordinates of an upload
MANY = 1000  # draws of one call
Call = Callable[[NoiseSource], torch.Tensor]  # one release by the gates


class ThisRound(Uplink):
    """The uplink (clip and noise of uploads) of one round. It computes no public values for later rounds, such as
    adaptive clip radii: they follow from the releases, so the audit leaves them out.
    """

    learns = False


class AttackerPosition:
    """The attacker's position in an audit of a client: it knows the uplink (clip and noise of uploads) of the first
    round, and chooses uploads.
    """

    def __init__(self, setup: PhaseSetup, federation: FederatedServer, client: int, price: Price | None) -> None:
        algorithm = setup.algorithm
        down = algorithm.broadcast(algorithm.init(setup.task, setup.key))
        first: Uplink = algorithm.uplink.at(0, down)
        self.uplink = ThisRound(**{one.name: vars(first)[one.name] for one in fields(first)})
        self.zero = smaller(algorithm.zero(setup.task, down))
        self.grant = federation.terms(client, price).granted(client, federation.sizes[client], Silent())
        self._federation, self._plan = federation, setup.plan

    @property
    def hidden(self) -> float:
        """Client sampling rate by which a published formula amplifies, as if nobody saw who takes part; 1 for other
        uplinks."""
        offer = self._plan.offer
        return offer.rate if self.uplink.published and offer is not None else 1.0

    @property
    def fixed(self) -> bool:
        """True if the cohort has a fixed size, so that a client that is not drawn leaves its place to another."""
        return isinstance(self._federation.cohort, Random)

    def upload(self, length: float) -> Tree:
        """An upload of the attacker's choice with this norm: spread over all coordinates; for the 1-norm in a single
        one, which shows most.
        """
        size, noise = tree.size(self.zero), self.uplink.noise()
        if noise is not None and noise.mechanism.order == 1:
            vector = length * torch.nn.functional.one_hot(torch.tensor(0), size).double()
        else:
            vector = torch.full((size,), length / size**0.5, dtype=torch.float64)
        return tree.unflat(vector, self.zero)

    def behind(self, source: NoiseSource) -> tuple[Uplink, NoiseSource]:
        """The uplink and the source of noise of one release. Noise on a grid is drawn of words, which a twin's are like
        all others, so there the scale is what is changed.
        """
        if isinstance(source, Weak) and self.uplink.grid is not None:
            return louder(self.uplink, 1 / source.factor), source.inner
        return self.uplink, source

    def encoded(self, length: float) -> Release:
        """Function that releases an upload of norm `length` from a client that adds the noise itself; its argument is
        the source of noise.
        """
        upload = self.upload(length)
        typed, spent = self.uplink.noise(), self.grant.multiplier

        def call(source: NoiseSource) -> torch.Tensor:
            """One release of the upload, encoded and noised. A twin has too little noise; a random direction
            (`OneDirection`) has none that could be made smaller, so its twin spends a larger epsilon than is claimed.
            """
            if isinstance(source, Weak) and isinstance(typed, OneDirection) and spent is not None:
                grant = replace(self.grant, source=source.inner, multiplier=spent / source.factor)
                return _seen(self.uplink.encode(upload, grant))
            uplink, source = self.behind(source)
            return _seen(uplink.encode(upload, replace(self.grant, source=source)))

        many = at_once(call)
        return lambda source: drawn(call, source, many)

    def summed(self, length: float, rate: float, instead: float | None = None) -> Release:
        """Function that releases the server's noised sum: of one client's upload of norm `length`, sampled at `rate`,
        and of zeros from all others. `instead`: norm of the upload of whoever is drawn in its place, in a cohort of
        fixed size.
        """
        federation, client = self._federation, self.grant.client
        people = federation.population
        others: dict[int, Any] = {}
        if people > 1:
            others[(client + 1) % people] = self.uplink.encode(self.zero, replace(self.grant, source=Silent()))

        def alone(norm: float) -> dict[int, Any]:
            return {client: self.uplink.encode(self.upload(norm), replace(self.grant, source=Silent()))}

        weight = sum(federation.weights)
        expected = federation.cohort.expected(people) * weight / people
        multiplier = self._plan.quietest if self.uplink.personal else self.grant.multiplier

        def call(uploads: dict[int, Any], source: NoiseSource) -> torch.Tensor:
            uplink, source = self.behind(source)
            received = uplink.receive(
                uploads,
                self.zero,
                federation.weights,
                expected,
                multiplier,
                source,
                each=False,
                weight=weight,
                reach=lambda _: self.grant.reach,
            )
            return _seen(received.mean)

        present = partial(call, others | alone(length))
        absent = partial(call, others | ({} if instead is None else alone(instead)))
        many = min(map(at_once, (present, absent)))

        def release(source: NoiseSource) -> torch.Tensor:
            """Samples of the noisy sum. The Poisson sampling comes first: it decides in which samples the client takes
            part.
            """
            if rate == 1:
                return drawn(present, source.child("server"), many)
            coins = source.child("coin").coins(many, rate).bool()
            sides = ((present, coins, "server"), (absent, ~coins, "without it"))
            parts = [drawn(one, source.child(name), int(where.sum())) for one, where, name in sides if where.any()]
            return torch.cat(parts)[torch.cat([where.nonzero()[:, 0] for _, where, _ in sides]).argsort()]

        return release


def at_once(call: Call) -> int:
    """Number of outputs that one call can sample: MANY if it works under `torch.vmap` and all its randomness comes from
    its noise source, else 1.
    """
    try:
        drawn(call, Silent(), 2, "error")
    except RuntimeError:  # of vmap: the gate makes a Python number or numpy array of a tensor, or draws by itself
        return 1
    return MANY


def drawn(call: Call, source: NoiseSource, many: int, others: str = "same") -> torch.Tensor:
    """Samples of a call's output, [samples, numbers seen], each with fresh noise. `others`: how `torch.vmap` treats
    random generators other than the source, which draws the noise of all samples at once.
    """
    if many == 1:
        return call(source)[None]
    lanes = torch.vmap(lambda lane: call(VmapNoise(source, lane, many)), randomness=others)
    return lanes(torch.arange(many))


def pairs(stand: AttackerPosition, claim: Claim) -> list[Pair]:
    """Worst-case neighbours for a claim about clients."""
    if stand.uplink.as_published is not None:
        return published(stand)
    far = _far(stand.uplink)
    against = {"replace": -far, "zero_out": 0.0}[claim.neighbours]
    attack = f"an update of any length against {WORDS[claim.neighbours]}"
    if stand.uplink.shared or isinstance(claim.event, NoAccess):
        return []  # shared noise, or encryption: one client's upload shows nothing
    if isinstance(stand.uplink.noise(), OneDirection):
        direction = tree.flat(stand.upload(1.0)).double()
        return [Pair(attack, stand.encoded(-far), stand.encoded(far), score=lambda seen: seen.double() @ direction)]
    if not private(stand.uplink.server):
        return [Pair(attack, stand.encoded(against), stand.encoded(far))]
    rate = claim.event.rate if isinstance(claim.event, Poisson) else stand.hidden
    if stand.hidden < 1 and stand.fixed:  # its accounting assumes that nobody takes its place
        attack, instead = f"{attack}; whoever is drawn in its place uploads the opposite", -far
        return [Pair(attack, stand.summed(against, rate, instead), stand.summed(far, rate, instead))]
    return [Pair(attack, stand.summed(against, rate), stand.summed(far, rate))]


def _far(uplink: Uplink) -> float:
    """An upload norm so large that every clip cuts it."""
    radii = [stage.radius for stage in uplink.client if isinstance(stage, Clip | ClipLayers)]
    return FAR * max(1.0, *radii) if radii else FAR


WORDS = {"replace": "its opposite", "zero_out": "none"}


def published(stand: AttackerPosition) -> list[Pair]:
    """Neighbours for published noise whose scale depends on the data, so that the scale itself leaks."""
    here, opposite, nothing, longer = (stand.encoded(length) for length in (FAR, -FAR, 0.0, 1.01 * FAR))
    return [
        Pair("an update against its opposite", opposite, here),
        Pair("an update against none, which has no noise", nothing, here),
        Pair("two updates 1% apart, by how loud their noise is", here, longer, "energy"),
    ]


def smaller(upload: Tree) -> Tree:
    """Zeros with the fields of an upload, whose layers are cut in proportion if it has more than MOST coordinates."""
    size = tree.size(upload)
    if size <= MOST:
        return tree.zeros_like(upload)
    return tree.map(lambda leaf: leaf.new_zeros(max(1, leaf.numel() * MOST // size)), upload)


def _seen(found: Tree) -> torch.Tensor:
    return tree.flat(tree.map(lambda leaf: leaf.double(), found))
