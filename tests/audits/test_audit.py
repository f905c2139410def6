"""The audit: what it claims to find is there, what holds is not refuted, and a broken gate is.

The noise is seeded. A sound claim is refuted with probability 1e-4 per subject, over the choice of the seed; the twins,
whose noise is 30% too small behind the same claim, were caught with every one of ten seeds; the slow tier draws 10^5.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config, keys
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.attacks.methods.members import separation
from sordino.audits import clients
from sordino.audits import gates as attacks
from sordino.audits.gates import audit, experiment_of
from sordino.audits.lower_bounds import Outputs, Pair, epsilon_lost, errors, likelihood, mu_lost, tuned, upper
from sordino.audits.noise_sources import Silent
from sordino.errors import SordinoError
from sordino.privacy.noise import GaussianNoise, LaplaceNoise
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.runs.simulation import simulated
from sordino.types import NoiseSource

slow = pytest.mark.slow


def normal(seed: int, count: int, mean: float = 0.0) -> torch.Tensor:
    return keys.normal(keys.root(seed), count) + mean


def test_clopper_pearson_has_its_closed_forms() -> None:
    for draws, alpha in ((10, 0.05), (1000, 1e-6)):
        assert upper(0, draws, alpha) == pytest.approx(1 - alpha ** (1 / draws), rel=1e-6)
        assert upper(draws, draws, alpha) == 1.0
        assert upper(draws - 1, draws, alpha) == pytest.approx((1 - alpha) ** (1 / draws), rel=1e-6)


def test_limits_hold_as_often_as_they_say() -> None:
    # 2,000 limits at 0.1: more than 0.1 + 4 deviations of them fail with probability 3e-5; a plain share of hits fails
    # half of the time
    rate, draws, alpha = 0.3, 200, 0.1
    hits = [int((keys.uniform(keys.fold(keys.root(5), i), draws) < rate).sum()) for i in range(2_000)]
    allowed = alpha + 4 * math.sqrt(alpha * (1 - alpha) / len(hits))
    assert sum(upper(k, draws, alpha) < rate for k in hits) / len(hits) < allowed
    assert sum(k / draws < rate for k in hits) / len(hits) > allowed


def test_mu_of_a_gaussian_is_found_and_not_exceeded() -> None:
    # two Gaussians a deviation apart, in units of their distance: false alarms 1e-6
    lost = mu_lost(Outputs(normal(1, 50_000), normal(2, 50_000, 1.0)))
    assert 0.93 < lost <= 1.0
    assert not lost <= 0.9  # what a claim of 0.9 would need


def test_epsilon_of_randomised_response_is_found_and_not_exceeded() -> None:
    # a truthful bit with probability 3/4 loses ln 3 exactly, at delta 0
    truthful = keys.uniform(keys.root(3), 40_000) < 0.75
    outputs = Outputs((~truthful[:20_000]).double(), truthful[20_000:].double())
    assert 0.9 * math.log(3) < epsilon_lost(outputs, 0.5, 0.0) <= math.log(3)
    found = tuned(outputs, {0.0: math.log(3), 0.1: math.log(2.6)})
    assert 0.85 * math.log(3) < found.epsilon <= math.log(3)
    assert errors(outputs, 0.5).false_alarms > 0.25 > float(outputs.without.mean()) - 0.02


def test_a_threshold_is_chosen_without_the_draws_that_are_believed() -> None:
    # the draws that choose are told apart perfectly, the others not at all: nothing may be found
    same = normal(4, 3_000)
    outputs = Outputs(torch.cat([torch.zeros(1_000), same]), torch.cat([torch.full((1_000,), 9.0), same]))
    assert tuned(outputs, {0.0: 1.0}).epsilon <= 0


@pytest.mark.slow
def test_a_pair_is_told_apart_as_well_as_the_noise_allows() -> None:
    # ten coordinates, noise of unequal size: the best direction has mu = sqrt(sum of (shift / deviation)^2)
    shift, std = torch.linspace(1, 2, 10), torch.linspace(0.5, 8, 10)
    best = float(((shift / std) ** 2).sum().sqrt())

    def release(length: float) -> Any:
        def seen(source: NoiseSource) -> torch.Tensor:
            each = [source.child(i).noisy(GaussianNoise(), shift[i : i + 1] * length, float(std[i])) for i in range(10)]
            return torch.cat(each)[None].double()

        return seen

    lost = mu_lost(Pair("", release(0.0), release(1.0)).outputs(1_500, Counter(1)))
    blind = float(shift.sum() / (std**2).sum().sqrt())  # the mean of all coordinates
    assert blind < 0.8 * best < lost <= best


def test_sampled_numbers_are_weighed_by_their_likelihood() -> None:
    """Against the densities of torch. Four reads that each have a row by a coin of a fifth are told apart better than
    by their sum: over 40 seeds by 0.042 ± 0.0013 in the area under the curve.
    """
    noise, shift, rate = torch.distributions.Normal(0.0, 1.0), 3.0, 0.2
    coins = keys.coin(keys.root(1), 80_000, rate).double().reshape(-1, 4)
    without, there = (normal(seed, 80_000).reshape(-1, 4) for seed in (2, 3))
    there = there + shift * coins
    scores = [
        likelihood(seen, torch.zeros(4), torch.full((4,), shift), torch.ones(4), rate) for seen in (without, there)
    ]
    moved = torch.distributions.Normal(shift, 1.0)
    mixed = ((1 - rate) * noise.log_prob(there).exp() + rate * moved.log_prob(there).exp()).log() - noise.log_prob(
        there
    )
    assert torch.allclose(scores[1], mixed.sum(1), atol=1e-5)
    assert separation(scores[1], scores[0]).auc > separation(there.sum(1), without.sum(1)).auc + 0.033


def test_a_silent_source_shows_centre_and_scale() -> None:
    values = torch.zeros(3)
    assert Silent().child("x").noisy(GaussianNoise(), values, 2.0).tolist() == [0, 0, 0]
    assert Silent(1.0).noisy(LaplaceNoise(), values, 2.0).tolist() == [2, 2, 2]
    assert Silent().coins(3, 0.1).tolist() == [True] * 3
    assert Silent(only=1).coins(3, 0.1).tolist() == [False, True, False]


# ---------------------------------------------------------------- experiments

ACTIVE = ['partition={scheme="active",clients=20,k=3}', 'model={name="mlp",hidden=8}']
ALL = ['cohort={name="poisson",rate=1.0}']
HALF = ['cohort={name="poisson",rate=0.5}']
STAYS: dict[str, tuple[list[str], int]] = {
    "gaussian_gdp": (["algorithm=gaussian_gdp", "multiplier=0.5"], 10_000),
    "laplace": (["algorithm=laplace", "multiplier=0.7"], 10_000),
}
ALSO: dict[str, tuple[list[str], int]] = {
    "local_client": (["algorithm=cuag_pfl", "variant=local_client", "multiplier=0.3", *ACTIVE], 700),
    "local_sample": (
        ["algorithm=cuag_pfl", "variant=local_sample", "multiplier=0.5", "cell_rate=1.0", "local_steps=2", *ACTIVE],
        700,
    ),
    "privunit": (
        ["algorithm=fedavg", "uplink=[{name='clip', radius=1.0}, 'privunit']", "rounds=1", "privacy.epsilon=2.0"],
        2_000,
    ),
    "central_client": (["algorithm=cuag_pfl", "variant=central_client", "multiplier=0.3", *ACTIVE, *ALL], 700),
    "central_client, hidden": (
        ["algorithm=cuag_pfl", "variant=central_client", "multiplier=0.5", *ACTIVE, *HALF],
        2_500,
    ),
    "local_sample, hidden": (
        ["algorithm=cuag_pfl", "variant=local_sample", "multiplier=0.7", "cell_rate=0.5", "local_steps=2", *ACTIVE],
        5_000,
    ),
    "noisy_steps": (["algorithm=noisy_steps", "multiplier=0.5", "local_epochs=2", "batch_size=50"], 10_000),
    "dp_prox": (["algorithm=dp_prox", "multiplier=0.5", *HALF], 3_500),
    "gaussian_sampled": (["algorithm=gaussian_sampled", "multiplier=0.4", "rate=0.5"], 20_000),
    "dp_scaffold": (["algorithm=dp_scaffold", "multiplier=0.4", "rate=0.2", "local_steps=4"], 20_000),
    "whole_update": (["algorithm=whole_update", "multiplier=0.3", "algorithm.noise=laplace"], 4_000),
    "zero_out at the client": (["algorithm=whole_update", "multiplier=0.3", "neighbours=zero_out"], 5_000),
    "zero_out at the server": (["algorithm=dp_prox", "multiplier=0.3", "neighbours=zero_out"], 5_000),
    "replace at the server": (["algorithm=dp_prox", "multiplier=0.3", "neighbours=replace"], 5_000),
    "step_level": (["algorithm=prifedsync", "level=step_level", "local_steps=2", *ACTIVE], 2_000),
    "bounds": (["algorithm=pdp_prox", "rounds=2", "privacy.epsilon={linspace=[4.0, 8.0], levels=2}"], 5_000),
    "local": (
        ["algorithm=pdp_prox", "mechanism=local", "rounds=2", "privacy.epsilon={linspace=[4.0, 8.0], levels=2}"],
        5_000,
    ),
    "rates": (
        [
            "algorithm=pdp_prox",
            "mechanism=rates",
            "rounds=2",
            "privacy.epsilon={linspace=[4.0, 8.0], levels=2}",
            'cohort={name="by_budget",size=8}',
        ],
        10_000,
    ),
}

# of which 10^5 draws take minutes; of the others seconds
SLOW_TO_DRAW = ("privunit", "local_sample", "local_sample, hidden", "noisy_steps", "step_level", "dp_scaffold")


def audited(words: list[str], trials: int, **more: Any) -> attacks.Audit:
    return audit(config.load({}, words), trials, **more)


@pytest.mark.one_fast
@pytest.mark.parametrize("name", [*STAYS, *(pytest.param(name, marks=slow) for name in ALSO)])
def test_a_sound_gate_stays_below_its_claim_and_its_twin_is_caught(name: str) -> None:
    words, trials = (STAYS | ALSO)[name]
    trials = trials if name in (*STAYS, *SLOW_TO_DRAW) else 100_000
    (one,) = audited(words, trials).subjects
    assert (one.status, one.verdict) == ("proved", "holds")
    assert (
        0.3 * one.claimed_there < one.at_least <= one.claimed_there < math.inf
    )  # an attack that sees nothing shows nothing
    (twin,) = audited(words, trials, twin=True).subjects
    assert twin.verdict == "caught"
    assert twin.at_least > twin.claimed_there
    assert (twin.claimed, twin.unit, twin.neighbours) == (one.claimed, one.unit, one.neighbours)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "trials", "least"), [(0.5, 10_000, 0.1), (9.0, 10_000, 0.5), (50.0, 1_000, None)])
def test_an_audit_says_which_missing_noise_it_would_notice(noise: float, trials: int, least: float | None) -> None:
    """The larger the noise, the less a few trials find; below what they find they prove nothing, and say so."""
    (one,) = audited(["algorithm=gaussian_gdp", f"multiplier={noise}"], trials).subjects
    assert one.verdict == "holds"
    assert one.notices == least
    assert one.power == ("not even 90% less noise" if least is None else f"{least:.0%} less noise")
    kinds = (
        0.1,
        0.3,
        0.5,
        0.9,
    )  # as a user asks for the same twins: the last that escapes, and the first that is caught
    for lacks in kinds[-1:] if least is None else kinds[max(0, kinds.index(least) - 1) : kinds.index(least) + 1]:
        (twin,) = audited(["algorithm=gaussian_gdp", f"multiplier={noise}"], trials, twin=True, short=lacks).subjects
        assert (twin.verdict, twin.power) == ("caught" if least is not None and lacks >= least else "escaped", "")


@pytest.mark.slow
def test_answers_at_random_lose_what_a_value_is_promised_and_rarer_ones_more() -> None:
    words = ["algorithm=ldp_fl", "local_epsilon=2.0", "label_epsilon=1.0"]
    value, image, example = audited(words, 20_000).subjects
    assert [value.unit, image.unit, example.unit] == ["pixel", "image", "example"]
    assert 0.7 * value.claimed < value.at_least <= value.claimed
    assert {value.verdict, image.verdict, example.verdict} == {"holds"}
    assert image.at_least > value.claimed  # a value's promise is not an image's
    twin = audited(words, 20_000, twin=True).subjects[0]
    assert (twin.verdict, twin.unit) == ("caught", "pixel")
    assert twin.at_least > twin.claimed == value.claimed


@pytest.mark.slow
def test_the_published_noise_loses_far_more_than_it_prints() -> None:
    (one,) = audited(["algorithm=cuag_pfl", "variant=published", *ACTIVE], 2_000).subjects
    assert (one.unit, one.status, one.verdict) == ("client", "nominal", "proves nothing")
    assert one.claimed == pytest.approx(epsilon_of(0.25, 1e-5))  # mu = 0.25 prints 0.926
    assert one.at_least > 4 * one.claimed


def test_a_broken_twin_of_no_promise_is_not_tried() -> None:
    found = audited(["algorithm=cuag_pfl", "variant=published", *ACTIVE], 3_000, twin=True)
    assert (found.subjects, found.verdict) == ([], "nothing to break: no claim is proved")


@slow
@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=prifedsync", *ACTIVE],
        ["algorithm=udp"],
        ["algorithm=cuag_pfl", "variant=published", "server_state=oracle", *ACTIVE],
        ["algorithm=gaussian_sampled", "variant=published", "rate=0.1", "privacy={epsilon=2.0}"],
    ],
    ids=lambda words: words[0],
)
def test_what_is_nominal_proves_nothing(words: list[str]) -> None:
    (one,) = audited(words, 6_000).subjects
    assert (one.status, one.verdict) == ("nominal", "proves nothing")
    assert one.at_least > 0


@slow
def test_published_noise_proves_nothing_and_with_a_poisson_sample_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is drawn in a client's place moves the sum, too: an attack that leaves it out refutes nothing."""
    words = ["algorithm=dp_prox", "rounds=20", "privacy={epsilon=8.0}", 'partition={scheme="iid",clients=10}']
    published = [*words, "variant=published", 'cohort={name="random",size=5}']
    (one,) = audited(published, 100_000).subjects  # the server sees uploads without noise: nothing is printed for it
    assert (one.adversary, one.status, one.verdict) == ("participants", "nominal", "proves nothing")
    assert one.claimed == pytest.approx(0.4)
    monkeypatch.setattr(clients.AttackerPosition, "fixed", False)
    (blind,) = audited(published, 100_000).subjects
    assert blind.at_least < one.claimed < one.at_least / 2
    (sound,) = audited([*words, 'cohort={name="poisson",rate=0.5}'], 100_000).subjects
    assert (sound.status, sound.verdict) == ("proved", "holds")


def test_each_way_to_tell_published_noise_apart_works() -> None:
    """Its direction, its absence, and its loudness: for the last one a hundred times the difference, which few draws
    must see.
    """
    words = ["algorithm=cuag_pfl", "variant=published", "mu=8.0", *ACTIVE]
    parts = simulated(config.load({}, words))
    stand = clients.AttackerPosition(parts.setup, parts.federation(":memory:", "audit"), 0, None)
    for pair in clients.published(stand)[:2]:
        assert epsilon_lost(pair.outputs(300, Counter(1)), 0.5, 1e-5) > 2.5
    louder = Pair("", stand.encoded(1e3), stand.encoded(2e3), "energy").outputs(300, Counter(2))
    assert tuned(louder, {1e-5: 1.0}).epsilon > 2
    alike = Pair("", stand.encoded(1e3), stand.encoded(1e3), "energy").outputs(300, Counter(3))
    assert tuned(alike, {1e-5: 1.0}).epsilon <= 0


def test_without_noise_there_is_nothing_to_audit() -> None:
    found = audited(["algorithm=fedavg"], 1_000)
    assert (found.subjects, found.verdict) == ([], "nothing to audit: infinity is claimed")


def test_a_reader_without_a_known_worst_case_is_said_to_be_left_out() -> None:
    words = ["algorithm=convex_stable", 'model={name="logistic",radius=4.0}', "multiplier=1.0"]
    (one,) = audited(words, 1_000).subjects
    assert (one.verdict, one.attack) == ("not attacked", "")


BREAKS: dict[str, tuple[type, str, Any, list[str]]] = {
    "half the noise": (
        GaussianNoise,
        "add",
        lambda self, values, scale, source: source.noisy(self, values, scale / 2),
        STAYS["gaussian_gdp"][0],
    ),
    "half the sensitivity": (Noise, "sensitivity", lambda self, bound: bound.of(2), ALSO["local_client"][0]),
    "a clip that cuts nothing": (
        Clip,
        "encode",
        lambda self, x, bound, grant: x,
        ["algorithm=whole_update", "multiplier=2.0"],
    ),
}


COSTLY = "half the sensitivity"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == COSTLY)) for n in BREAKS])
def test_a_broken_gate_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, broken, words = BREAKS[name]
    monkeypatch.setattr(owner, method, broken)
    assert audited(words, 700).verdict == "VIOLATED"


@pytest.mark.slow
def test_a_seed_repeats_an_audit_and_the_operating_system_does_not() -> None:
    words = STAYS["gaussian_gdp"][0]
    first, again, other = (audited(words, 2_000, seed=seed).to_json()["subjects"] for seed in (1, 1, 2))
    assert first == again != other
    found = audited(words, 2_000, system=True)
    assert (found.noise, found.verdict) == ("system", "holds")


def test_a_big_upload_is_attacked_through_a_small_one_with_its_layers() -> None:
    big = {"a": torch.zeros(1000, 10), "b": torch.zeros(3)}
    small = clients.smaller(big)
    assert list(small) == ["a", "b"]
    assert clients.MOST * 0.9 < sum(leaf.numel() for leaf in small.values()) <= clients.MOST + len(big)
    few = {"a": torch.zeros(4, 2)}
    assert clients.smaller(few)["a"].shape == (4, 2)


# ---------------------------------------------------------------- the verb


def test_what_is_audited_is_a_file_a_run_an_algorithm_or_the_default(tmp_path: Path) -> None:
    assert experiment_of(None) == config.load(None)
    assert experiment_of("fedprox", ["mu=0.5"]) == config.load(None, ["algorithm=fedprox", "mu=0.5"])
    made = config.load({}, ["algorithm=fedavg", "rounds=3"])
    (tmp_path / "experiment.toml").write_text(made.toml())
    assert experiment_of(str(tmp_path / "experiment.toml"), ["rounds=2"]).rounds == 2
    (tmp_path / "environment.json").write_text('{"format": 1, "run": "", "config": "", "sordino": ""}')
    assert experiment_of(str(tmp_path)).digest() == made.digest()


@pytest.mark.parametrize(
    ("word", "code", "helps"),
    [
        ("gaussian_gpd", "unknown-subject", "gaussian_gdp"),
        ("zzz", "unknown-subject", "sordino algorithms"),
        ("gone.toml", "no-file", "sordino run"),
        (".", "not-a-run", "sordino list"),
    ],
)
def test_a_subject_that_is_none_is_refused(
    word: str, code: str, helps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SordinoError) as refused:
        experiment_of(word)
    assert refused.value.code == code
    assert helps in refused.value.fix


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(SordinoError) as refused:
        audited(["algorithm=fedavg"], 99)
    assert refused.value.code == "too-few-trials"


@pytest.mark.parametrize("short", [0.0, 1.0, math.nan])
def test_a_twin_lacks_some_of_its_noise(short: float) -> None:
    with pytest.raises(SordinoError) as refused:
        audited(["algorithm=gaussian_gdp"], 100, twin=True, short=short)
    assert refused.value.code == "no-such-twin"


@pytest.mark.slow
def test_ten_percent_less_noise_is_caught_with_draws_enough() -> None:
    """Of a mu of 2: missed with probability below 1e-4; a hundredth of the draws does not show it."""
    words = ["algorithm=gaussian_gdp", "multiplier=0.5", "rounds=1", "privacy={delta=1e-5}"]
    assert audited(words, 60_000, twin=True, short=0.1).verdict == "caught"
    assert audited(words, 600, twin=True, short=0.1).verdict == "escaped"
