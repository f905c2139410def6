"""What each adversary is promised where the sum is opened, and that receipts say so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from sordino.accounting.accountants import best
from sordino.accounting.claims import Claim
from sordino.accounting.events import DiscreteGaussian, Event, Gaussian, NoAccess, NonPrivate, Poisson
from sordino.config import gates
from sordino.engine.executor import SecureSum
from sordino.planning.accounts import OpenRound
from sordino.planning.planner import Planner
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.rules import RAW, WIDTH
from sordino.privacy.uplink.secure_stages import (
    COUNTED,
    HONEST,
    LEFT,
    OFF,
    OPENED,
    OWN_NOISE,
    ROSTER,
    SHARED,
    SUM_OF_ALL,
    Aggregated,
    Encrypted,
    NoiseShare,
    SecureStage,
)
from sordino.privacy.uplink.stages import Clip, Stage, Weigh
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.sampling import PoissonSample
from sordino.secagg.mask_protocol import Participant
from sordino.types import Grant
from tests.stories.secure_sums.sums import CLIP, NOISE, PROBED, SHARE, SHARES, Sums, Table, Watched, made

# ---------------------------------------------------------------- what is promised to whom
WORTH = 1.5  # a multiplier


PLACES: dict[str, tuple[tuple[Stage, ...], tuple[Stage, ...]]] = {
    "none": ((Weigh(),), ()),
    "server": ((Clip(1.0),), (gates.noise(neighbours="zero_out", multiplier=WORTH),)),
    "hidden": ((Clip(1.0),), (gates.noise(neighbours="zero_out", multiplier=WORTH),)),
    "client": ((Clip(1.0), gates.noise(multiplier=WORTH)), ()),
}


KINDS: dict[str, SecureStage] = {
    "paillier, shared": Encrypted("paillier"),
    "bfv, shared": Encrypted("bfv"),
    "ckks, shared": Encrypted("ckks"),
    "paillier, authority": Encrypted("paillier", keys="authority"),
    "bfv, authority": Encrypted("bfv", keys="authority"),
    "secagg": Aggregated(4),
}


def promised(uplink: Uplink, hidden: bool) -> dict[str, Claim]:
    """As a cohort that everybody sees would make them, or a hidden one of rate 0.1."""

    def amplify(event: Any, adversary: str) -> Any:
        return Poisson(0.1, event) if hidden and adversary != "server" else event

    return {claim.adversary: claim for claim in uplink.claims(None, amplify)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_each_adversary_is_promised(place: str, kind: str) -> None:
    (client, server), stage = PLACES[place], KINDS[kind]
    hidden = place == "hidden"
    plain, ours = (promised(Uplink(way, server), hidden) for way in (client, (*client, stage)))
    may_break = hidden and not kind.endswith("shared")
    for adversary in ("participants", "public"):
        if not kind.endswith("authority") and hidden and adversary == "participants":
            # they are told who takes part, or open sums that tell how many uploads they have: nothing is sampled for
            # them, and only what a client sends is hidden
            event = plain[adversary].event
            assert isinstance(event, Poisson)
            assert (ours[adversary].event, ours[adversary].neighbours) == (event.event, "zero_out")
            assert (ROSTER if kind == "secagg" else OPENED) in ours[adversary].because
            assert (ours[adversary].status == "conditional") == kind.startswith(("bfv", "ckks"))
            continue
        scheme, _, keys = kind.partition(", ")
        rounded = bool(server) and scheme in ("bfv", "ckks")
        # with the key more is seen than the sum: what rounding left of single uploads; without it, whether a sum opens
        # at all, which follows from that where an upload is made for it
        left = [LEFT.format(scheme=scheme)] * (rounded and keys == "shared" and adversary == "participants")
        # who sees a round broken off learns how many came
        off = [OFF] * (rounded and scheme == "ckks")  # the sum itself is what rounding left, for whoever sees it
        because = (*left, *[HONEST] * rounded, *off, *[COUNTED] * may_break)
        assert ours[adversary] == plain[adversary].resting_on(*because)
    if place == "client":  # its own noise protects each upload, whoever reads it
        assert ours["server"] == plain["server"]
        assert isinstance(ours["server"].event, Gaussian)
        return
    assert RAW in plain["server"].because
    claim = ours["server"]
    assert RAW not in claim.because
    if kind.endswith("shared"):
        assert (claim.event, claim.status) == (NoAccess(), "conditional")
        assert SHARED in claim.because
        assert any("no published model, no stop" in line for line in claim.because)  # it would see them
    else:
        what = SUM_OF_ALL if place == "none" else OWN_NOISE
        assert (claim.event, claim.status) == (NonPrivate(what), "none")


@pytest.mark.parametrize(("neighbours", "hidden"), [("zero_out", True), ("zero_out", False), ("replace", False)])
def test_noise_in_shares_protects_from_the_server_too(neighbours: Any, hidden: bool) -> None:
    share = NoiseShare(neighbours=neighbours, multiplier=WORTH, survivors=4)
    ours = promised(Uplink((Clip(1.0), share, Aggregated())), hidden)
    central = promised(Uplink((Clip(1.0),), (gates.noise(neighbours=neighbours, multiplier=WORTH),)), hidden)
    server = ours["server"]
    assert (server.event, server.neighbours, server.status) == (DiscreteGaussian(WORTH), "zero_out", "conditional")
    assert HONEST in server.because
    assert any("add their share of the noise and tell nobody" in line for line in server.because)
    for adversary in ("participants", "public"):
        # the same noise in whole steps: its price is that of its Renyi divergence, not the continuous curve; how wide it
        # is tells how many take part, so that nothing is sampled
        event: Event = DiscreteGaussian(WORTH)
        assert ours[adversary].event == event
        assert central[adversary].event == (Poisson(0.1, Gaussian(WORTH)) if hidden else Gaussian(WORTH))
        assert ours[adversary].neighbours == neighbours
        assert ours[adversary].status == "conditional"
        assert COUNTED not in ours[adversary].because
        assert ((ROSTER if adversary == "participants" else WIDTH) in ours[adversary].because) == hidden


def test_how_wide_noise_in_shares_is_does_not_tell_who_was_drawn() -> None:
    """Of 10,000 clients with coins of 1/20 some 500 come, and at least 400 shares are the noise that is paid for. Many
    coordinates show how wide it is, so how many came. All others point the other way than the one who is asked about:
    whoever comes in its place moves the sum, too. Priced as if nobody saw the crowd, 14 times the delta was lost.
    """
    clients, rate, survivors, delta = 10_000, 0.05, 400, 5e-5
    uplink = Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", multiplier=1.0, survivors=survivors), Aggregated()))
    claims = uplink.claims(None, PoissonSample(rate).amplify)
    event = next(claim.event for claim in claims if claim.adversary == "public")
    promised, lost = best(event, delta, "zero_out").epsilon, 0.0
    x = np.linspace(-20.0, 22.0, 4201)
    for many in range(survivors, 620):  # more come with a chance of 1e-7
        came, std = many / clients, math.sqrt(many / survivors)
        away, alone, both = (norm.pdf(x, at, std) for at in (0.0, 1.0, 2.0))
        over = (1 - came) * away + came * both - math.exp(promised) * ((1 - came) * away + came * alone)
        lost += binom.pmf(many, clients, rate) * float(over.clip(0).sum()) * (x[1] - x[0])
    assert lost <= delta


def test_a_hidden_cohort_buys_no_smaller_shares_of_noise() -> None:
    uplink = Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=4), Aggregated()))
    offer = uplink.offer(0.1, True)
    assert offer is not None
    assert (offer.rate, offer.everyone_pays) == (1.0, False)
    assert offer == uplink.offer(0.1, False)


POISSON: Table = {"cohort": {"name": "poisson", "rate": 0.9}}


@pytest.mark.parametrize("last", ["secagg", "paillier"])
def test_a_budget_is_kept_against_participants_who_see_the_cohort(last: str) -> None:
    """Of noise sized for a sample that they do not see they would lose 3.6 of a budget of 2."""
    sized: Table = {
        "partition": {"scheme": "iid", "clients": 60},
        "cohort": {"name": "poisson", "rate": 0.5},
        "privacy": {"epsilon": 2.0, "delta": 1e-3},
        "uplink": {"client": [CLIP, last], "server": [{**NOISE, "neighbours": "zero_out"}]},
        "rounds": 3,
    }
    found = {row.adversary: row.epsilon for row in Planner(simulated(made(**sized)).setup).guarantees if row.finite}
    assert found["participants"] == pytest.approx(2.0, rel=1e-6)
    assert found["public"] < 1.5  # to whom nobody shows the cohort


ALL_OF: dict[str, tuple[Table, Any, Any]] = {  # tables, what the server is promised, and everybody else
    "nothing, a probe": ({"uplink": PROBED["uplink"]}, ("inf", "none"), ("inf", "none")),
    "nothing, authority": (
        {"uplink": ["weigh", {"name": "bfv", "keys": "authority", "at_least": 3}]},
        ("inf", "none"),
        ("inf", "none"),
    ),
    "nothing, secagg": ({"uplink": ["weigh", "secagg"]}, ("inf", "none"), ("inf", "none")),
    "server, bfv": (
        {"uplink": {"client": [CLIP, "bfv"], "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 5.0}]}},
        (0.0, "conditional"),
        (1, "conditional"),
    ),
    "server, hidden, secagg": (
        {
            **POISSON,
            "partition": {"scheme": "iid", "clients": 60},  # so many that a round of one is out of the question
            "uplink": {
                "client": [CLIP, "secagg"],
                "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 5.0}],
            },
        },
        ("inf", "none"),
        # who takes part is told who else does, so for participants nothing rests on how many came
        {"participants": (1, "proved"), "public": (1, "conditional")},
    ),
    "shares": (
        {"uplink": [CLIP, {**SHARE, "multiplier": 5.0}, "secagg"]},
        (1, "conditional"),
        (1, "conditional"),
    ),
    "clients, secagg": (
        {"uplink": [CLIP, {**NOISE, "multiplier": 5.0}, {"name": "quantise", "range": 99.0}, "secagg"]},
        (1, "proved"),
        (1, "proved"),
    ),
}


FEW = ("nothing, authority", "server, bfv", "clients, secagg")


@pytest.mark.one_fast
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else [pytest.mark.slow]) for n in ALL_OF])
def test_the_receipt_says_it_and_verify_agrees(name: str, tmp_path: Path, cli: Any) -> None:
    tables, server, others = ALL_OF[name]
    start(made(**tables), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "privacy.json").read_text())
    said = {
        row["adversary"]: (row["epsilon"] if row["epsilon"] in ("inf", 0.0) else 1, row["status"])
        for row in found["guarantees"]
        if row["unit"] == "client"
    }
    told = others if isinstance(others, dict) else {"participants": others, "public": others}
    assert said == {"server": server, **told}
    assert cli("privacy", "verify", str(tmp_path / "run")).code == 0
    for row in found["guarantees"]:
        row["status"] = "proved" if row["status"] in ("conditional", "none") else "conditional"
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(found))
    assert verify(tmp_path / "run") != []


def test_laplace_noise_for_coordinates_is_priced_in_their_own_units() -> None:
    """The grid adds half a step a coordinate to the bound, and no more: steps are no units."""
    clip, noise = ClipCoordinates(0.1), CoordinateLaplace(0.1, 10.0)
    plain = Uplink((clip,), (noise,)).fitted(100, 5.0).server[0]
    gridded = Uplink((clip, Aggregated()), (noise,)).fitted(100, 5.0).server[0]
    assert isinstance(plain, CoordinateLaplace)
    assert isinstance(gridded, CoordinateLaplace)
    assert gridded._bound == pytest.approx(plain._bound + 50 / Layout().scale, rel=1e-12)


# ---------------------------------------------------------------- how much noise there is
D = 20_000  # coordinates: the deviation of a sample variance is sqrt(2 / D) = 1% of it


ODD = 6 * math.sqrt(2 / D)  # six of them: false alarms 2e-9


def variance(sums: Sums, survivors: int, began: int, multiplier: float) -> float:
    """Of the noise in an opened sum of nothing, over that of one central noise of the same multiplier."""
    raw = {k: {"w": torch.zeros(D, dtype=torch.float64)} for k in range(survivors)}
    mean = sums.mean(raw, dict.fromkeys(range(began), 1), multiplier, list(range(began))).mean["w"]
    assert sums.came.answered == list(range(survivors))
    whole = (
        multiplier * Layout().scale * 1.0 + multiplier * math.sqrt(D) / 2
    )  # steps: the norm of a client is s C + sqrt(d) / 2
    return float(((mean * began * Layout().scale) ** 2).mean()) / whole**2


def test_the_shares_of_those_who_stay_but_one_are_one_central_noise() -> None:
    """Exactly as many as must stay: the variance of all shares but one is that of the central noise. More: theirs too."""
    share = NoiseShare(neighbours="zero_out", survivors=4)
    sums = Sums(Uplink((Clip(1.0), share, Aggregated())))
    assert variance(sums, 4, 6, WORTH) == pytest.approx(4 / 3, abs=4 / 3 * ODD)
    assert variance(sums, 6, 6, WORTH) == pytest.approx(6 / 3, abs=6 / 3 * ODD)


@pytest.mark.parametrize("survivors", [2, 3, 20])
def test_a_participant_who_takes_off_its_own_share_breaks_no_row(survivors: int) -> None:
    """It sees the noise of the others alone. With shares that add up to the noise only with its own, of two each lost
    80 times the delta of its row.
    """
    delta, share = 1e-5, NoiseShare(neighbours="zero_out", multiplier=WORTH, survivors=survivors)
    uplink, like = Uplink((Clip(1.0), share, Aggregated())), {"w": torch.zeros(D, dtype=torch.float64)}
    (claim,) = (one for one in uplink.claims(None, lambda event, _: event) if one.adversary == "participants")
    printed, steps = best(claim.event, delta, "zero_out").epsilon, uplink.bound(D).l2  # of one client, in the sum
    drawn = uplink.encode(like, Grant(0, 1, 1, Counter(5)))["w"].double()
    std = float(drawn.square().mean().sqrt()) * math.sqrt(survivors - 1) * (1 - ODD) / steps
    lost = norm.sf(printed * std - 0.5 / std) - math.exp(printed) * norm.sf(printed * std + 0.5 / std)
    assert lost <= delta


def test_shares_for_all_who_begin_are_caught() -> None:
    """The broken twin divides by 6, and 4 stay: a third of the noise is missing."""
    twin = Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=7), Aggregated()))
    object.__setattr__(twin, "client", (*twin.client[:-1], Aggregated(4)))  # past the refusal
    found = variance(Sums(twin), 4, 6, WORTH)
    assert found == pytest.approx(4 / 6, abs=ODD)
    assert abs(found - 1) > 5 * ODD


@pytest.mark.one_fast
@pytest.mark.parametrize("stage", [Encrypted("bfv"), Aggregated(2)], ids=["inside", "after opening"])
def test_noise_of_the_server_is_one_noise(stage: SecureStage) -> None:
    """Added to ciphertexts or to the opened sum: once."""
    sums = Sums(Uplink((Clip(1.0), stage), (gates.noise(neighbours="zero_out"),)))
    assert variance(sums, 3, 3, WORTH) == pytest.approx(1.0, abs=ODD)


@pytest.mark.one_fast
@pytest.mark.parametrize("stage", [Encrypted("bfv"), Aggregated(2)], ids=["inside", "after opening"])
def test_laplace_noise_for_coordinates_is_one_noise(stage: SecureStage) -> None:
    """Who opens a sum opens a noised one: the noise went in before. Variance 2 beta^2, whose sample deviates by sqrt(5
    / D): false alarms 2e-9.
    """
    beta = 5e-3
    uplink = Uplink((ClipCoordinates(0.1), stage), (CoordinateLaplace(0.1, beta=beta),))
    sums, raw = Sums(uplink), {k: {"w": torch.zeros(D, dtype=torch.float64)} for k in range(3)}
    found = float((sums.mean(raw, dict.fromkeys(raw, 1)).mean["w"] ** 2).mean())
    assert found == pytest.approx(2 * beta**2, rel=6 * math.sqrt(5 / D))
    zero, given = (
        {"w": torch.zeros(D, dtype=torch.float64)},
        iter(sums.encoded(raw, dict.fromkeys(raw, 1), None).items()),
    )
    now = OpenRound(0, None, granted=[0, 1, 2])
    summed, _ = SecureSum(uplink, "run")(now, given, None, [1.0] * 3, uplink, zero, Counter(2))
    assert summed.noised
    assert float(summed.total["w"].abs().double().mean()) > 0


@pytest.mark.parametrize("published", [False, True])
def test_no_client_brings_a_masked_sum_to_where_another_decides_about_all_of_it(
    published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client knows all uploads and sends what nobody can check: the sum is the largest that its words hold. One
    step more of another client is then the smallest sum: 100 deviations of noise that is added behind the words.
    """
    layout, steps, wide = Layout(), 1 << 19, 0.2 if published else 5.0  # the scale of the noise
    noise = CoordinateLaplace(0.1, 1.0) if published else gates.noise(neighbours="zero_out", multiplier=wide)
    clip = ClipCoordinates(0.1) if published else Clip(1.0)
    uplink, zero = Uplink((clip, Aggregated(2)), (noise,)), {"w": torch.zeros(D, dtype=torch.float64)}

    def unguarded(self: Participant, words: Any) -> Any:
        return np.append(words, 1).astype(np.uint32)

    monkeypatch.setattr(Participant, "_guarded", unguarded)
    below = []
    for mine in (0, steps):
        given = enumerate([mine, 0, (1 << layout.width - 1) - 1])
        uploads = ((k, {"w": torch.full((D,), value)}) for k, value in given)
        now = OpenRound(0, None, granted=[0, 1, 2])
        summed, _ = SecureSum(uplink, "run")(now, uploads, None, [1.0] * 3, uplink, zero, Counter(2))
        assert len(summed.who) == 3
        seen = uplink.receive(summed, zero, [1.0] * 3, 3.0, None, Counter(2)).mean["w"]
        below.append(float((seen < 0).double().mean()))
    assert abs(below[0] - below[1]) <= steps / (wide * layout.scale)  # not 0 or 1, which tells the two apart for sure


def test_all_shares_of_a_round_have_one_multiplier() -> None:
    """Clients that come once and clients that come twice have other prices; their noise is cut for the dearest."""
    tables = SHARES | {
        "cohort": {"name": "round_robin", "size": 4},
        "rounds": 2,
        "partition": {"scheme": "iid", "clients": 6},
    }
    watched = Watched(made(**tables))
    for _, outcome in watched.rounds(2):
        assert len(outcome.answered) == 4
        (used,) = {told.multiplier for told in watched.terms.values()}
        plan = watched.federation.plan
        own = [price.multiplier for k in watched.terms if (price := plan.price(k, 0, (0,)))]
        assert used == pytest.approx(max(own), rel=1e-9)
        assert min(own) < 0.9 * max(own)  # control: they would differ


def test_rounding_adds_half_a_step_in_every_coordinate_to_the_sensitivity() -> None:
    """s C + sqrt(d) / 2 in the 2-norm; an upload of halves that round up passes s C alone."""
    layout = Layout(10, 8)
    coordinates, steps = 4000, 0.5001
    radius = steps / layout.scale * math.sqrt(coordinates)
    uplink = Uplink((Clip(radius), Quantise(layout), NoiseShare(neighbours="zero_out", multiplier=9.0), Aggregated()))
    bound = Uplink((Clip(radius), Quantise(layout))).bound(coordinates).l2
    assert bound == pytest.approx(layout.scale * radius + math.sqrt(coordinates) / 2)
    assert uplink.client[2].sensitivity(Uplink((Clip(radius), Quantise(layout))).bound(coordinates)) == bound  # type: ignore[attr-defined]
    worst = {"w": torch.full((coordinates,), steps / layout.scale, dtype=torch.float64) * 1.001}
    rng, largest = torch.Generator().manual_seed(3), 0.0
    for upload in (worst, *({"w": torch.randn(coordinates, generator=rng)} for _ in range(5))):
        sent = Uplink((Clip(radius), Quantise(layout))).encode(upload, Grant(0, 1, 1, Counter(0)))
        largest = max(largest, float(sent["w"].double().norm()))
    assert layout.scale * radius < largest <= bound
