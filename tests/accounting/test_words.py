"""How sure somebody can become: against closed forms, with the reading that does not hold beside the one that does."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from sordino.accounting import words
from sordino.accounting.facts import epsilon_text
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import Guarantee
from sordino.accounting.words import belief, believed, percent

ROW = Guarantee(
    unit="example", neighbours="replace", adversary="server", epsilon=4.0, delta=1e-6, status="proved", because=(),
    releases=3, accountant="gdp", accountants={"gdp": 4.0}, event=None,
)  # fmt: skip


def odds(sure: float) -> float:
    return sure / (1 - sure)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("prior", [1e-4, 0.01, 0.5])
def test_randomised_response_reaches_the_bound(epsilon: float, prior: float) -> None:
    """Of two answers the true one comes e^epsilon as often: Bayes' rule, written out."""
    true, false = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    after = prior * true / (prior * true + (1 - prior) * false)
    assert belief(epsilon, 0.0, prior).posterior == pytest.approx(after, rel=1e-12)
    assert belief(epsilon, 0.0, prior).chance == 0.0


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_gaussian_noise_stays_below_it_and_above_what_is_often_said(mu: float, delta: float) -> None:
    """The logarithm of the factor is normal with mean mu^2/2 and deviation mu, so its tail is known exactly."""
    epsilon, prior = epsilon_of(mu, delta), 0.01
    found = belief(epsilon, delta, prior)

    def beyond(factor: float) -> float:
        return float(norm.sf(math.log(factor) / mu - mu / 2))

    assert found.chance == pytest.approx(10 * delta)
    assert beyond(odds(found.posterior) / odds(prior)) <= found.chance
    assert beyond(math.exp(epsilon)) > delta  # "by e^epsilon, except for a chance of delta" is false


def test_the_worst_mechanism_of_all_stays_below_it() -> None:
    """Of those that keep (epsilon, delta): more than the promised factor, as often as that is possible."""
    epsilon, delta = 1.0, 1e-3
    found = belief(epsilon, delta)
    for extra in (0.01, 0.05, 0.1, 0.2, 1.0, 5.0):  # sights of probability p here and e^-(epsilon + extra) p there
        p = delta / (1 - math.exp(-extra))
        grown = math.exp(epsilon + extra) * odds(found.prior)
        assert grown / (1 + grown) <= found.posterior or p <= found.chance * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 1e-5), (1.0, 0.1), (1.0, 0.5)])
def test_where_nothing_follows_nothing_is_said(epsilon: float, delta: float) -> None:
    assert belief(epsilon, delta).posterior == 1.0
    assert "certain" in believed(ROW.beside(epsilon=epsilon, delta=delta), ["server"], False)


def test_no_share_is_shown_as_less_than_it_is() -> None:
    for share in (0.01, 0.0123, 0.123, 0.3567, 0.985, 0.9901, 0.99412, 0.999999, 1 - 1e-12, 1.0):
        assert float(percent(share).removesuffix("%")) >= 100 * share * (1 - 1e-12)
    assert (percent(0.01), percent(0.3541), percent(1.0)) == ("1%", "36%", "100%")


def test_the_sentence_counts_the_deltas_of_its_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "SLACK", 20)
    assert "except with probability 1 in 50,000 (20 deltas)" in believed(ROW, ["server"], False)


def test_the_sentence_says_who_what_and_how_rarely_not() -> None:
    text = believed(ROW, ["server"], False)
    assert text == (
        "Against the server: take an attacker who knows all other data and holds a guess about one example to be 1% "
        "likely. What the run reveals can raise that to 38% at most, except with probability 1 in 100,000 (10 deltas)."
    )
    counted = "holds it to be 1% likely that the contribution of one example was counted (that it exists is public). "
    assert counted in believed(ROW.beside(neighbours="zero_out"), ["server"], False)
    assert "formality" in believed(ROW.beside(epsilon=50.0), ["server"], False)
    assert "formality" not in text
    simulated = believed(ROW, ["server", "participants", "public"], True)
    assert simulated.startswith("This simulation protects nobody. With real noise, against anyone: take an attacker ")
    weak = believed(ROW.beside(status="conditional", because=("the key holder is honest",)), ["server"], False)
    assert "conditional: the key holder is honest" in weak


def most(said: str) -> float:
    """The factor in "makes nothing they see more than FACTOR times as likely", as a logarithm."""
    factor = said.split("more than ")[1].split(" times")[0].replace(",", "")
    return int(factor[3:]) * math.log(10) if factor.startswith("10^") else math.log(float(factor))


def test_the_factor_that_is_never_exceeded_is_rounded_up() -> None:
    """The broken twin, rounded to the nearest three digits, is too small about every second time."""
    each = [k / 7 for k in range(1, 300)]
    said = [words.sentence(ROW.beside(epsilon=epsilon), ["server"]) for epsilon in each]
    assert all(most(text) >= epsilon - 1e-6 for text, epsilon in zip(said, each, strict=True))
    assert max(most(text) - epsilon for text, epsilon in zip(said, each, strict=True)) <= math.log(10)
    assert sum(math.log(float(f"{math.exp(epsilon):.3g}")) < epsilon - 1e-6 for epsilon in each) > 100


def test_an_epsilon_is_never_shown_as_less_than_it_is() -> None:
    """The broken twin rounds to the nearest: it shows 1.00499 as 1."""
    each = [k / 700 for k in range(1, 30_000, 7)]
    assert all(0 <= float(epsilon_text(epsilon)) - epsilon <= 0.01001 * epsilon for epsilon in each if epsilon > 0)
    assert any(float(f"{epsilon:.3g}") < epsilon for epsilon in each)
    assert [epsilon_text(epsilon) for epsilon in (8.0, 8 + 1e-9, 0.3, 400 - 1e-9, 0.0, math.inf)] == [
        *("8", "8", "0.3", "400", "0", "∞"),
    ]
