"""What a search costs: the ledgers of all its configurations, composed."""

from __future__ import annotations

import pytest

from sordino.accounting.accountants import best
from sordino.accounting.claims import ADVERSARIES, Claim, Neighbours
from sordino.accounting.composition import note
from sordino.accounting.events import DrawnOnce, Event, Gaussian, NonPrivate, Poisson, Repeat, Response
from sordino.accounting.facts import delta_text
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import statement
from sordino.results.sweeps import Notes, choosing, composed


def ledger(event: Event, rounds: int, population: int = 3, neighbours: Neighbours = "replace") -> Notes:
    claims = Claim.to_everyone("example", neighbours, event, "proved", ())
    return Notes([note([("*", claims)])] * rounds, population)


@pytest.mark.parametrize("seeds", [1, 4])
def test_gaussian_searches_cost_the_closed_form(seeds: int) -> None:
    sigmas, rounds, delta = [2.0, 3.0, 5.0], [4, 9, 1], 1e-5
    tried = [ledger(Gaussian(z), t) for z, t in zip(sigmas, rounds, strict=True)]
    found = composed([tried] * seeds, delta)
    assert [row.adversary for row in found] == list(ADVERSARIES)
    mu = sum(t / z**2 for z, t in zip(sigmas, rounds, strict=True)) ** 0.5
    for row in found:
        assert row.epsilon == pytest.approx(epsilon_of(mu, delta), rel=1e-9)
        assert row.every_seed == pytest.approx(seeds * epsilon_of(mu, delta / seeds), rel=1e-9)
        # that, in turn, is no less than composing all seeds on one client would give
        assert row.every_seed >= epsilon_of(mu * seeds**0.5, delta) * (1 - 1e-9)
        singles = [best(Repeat(Gaussian(z), t), delta, "replace").epsilon for z, t in zip(sigmas, rounds, strict=True)]
        assert row.epsilon >= max(singles)


def test_the_worst_seed_counts() -> None:
    quiet, loud = [ledger(Gaussian(9.0), 1)] * 2, [ledger(Gaussian(1.0), 1)] * 2
    for order in ([quiet, loud], [loud, quiet]):
        assert composed(order, 1e-5)[0].epsilon == pytest.approx(epsilon_of(2**0.5, 1e-5))


def test_what_each_run_draws_once_is_drawn_by_each() -> None:
    """Within a run the same answers are looked at again; another run draws others, though its settings are equal. The
    broken twin composes the notes as they are."""
    tried = [ledger(DrawnOnce("responses of image", Response(2.0, 2)), rounds) for rounds in (1, 5, 3)]
    assert [row.epsilon for row in composed([tried], 0.0)] == pytest.approx([6.0] * 3)
    twin = statement([text for notes in tried for text in notes.texts], 3, 0.0)
    assert [row.epsilon for row in twin] == pytest.approx([2.0] * 3)


@pytest.mark.parametrize("seeds", [1, 2])
def test_delta_has_what_the_noise_of_all_configurations_lacks(seeds: int) -> None:
    """Each of three fits its delta, and all together do not: as it was, epsilon 20 was printed at the delta of one."""
    claims = [
        claim.beside(drift=1e-11) for claim in Claim.to_everyone("example", "replace", Gaussian(0.5), "proved", ())
    ]
    one = Notes([note([("*", claims)])], 3)
    assert {row.delta for row in statement(one.texts, 3, 1e-5)} == {1e-5}
    whole = statement([*one.texts] * 3, 3, 1e-5)[0]
    assert whole.delta > 1e-3
    for row in composed([[one] * 3] * seeds, 1e-5):
        assert row.epsilon == whole.epsilon
        assert row.delta >= whole.delta
        assert f"at delta {delta_text(row.delta)} about" in " ".join(choosing([row], 3, seeds, sweep=True))
    assert composed([[one]] * seeds, 1e-5)[0].delta == 1e-5


def test_at_most_is_never_rounded_down() -> None:
    (row, *_) = composed([[ledger(Gaussian(2.0), 1)] * 2], 1e-5)
    (said,) = [line for line in choosing([row], 2, 1, sweep=True) if "at most epsilon" in line]
    printed = float(said.split("at most epsilon ")[1].split()[0])
    assert row.epsilon <= printed <= row.epsilon * (1 + 1e-5)


def test_one_seed_makes_all_of_it_a_simulation() -> None:
    """Beside the epsilon stands its status; where noise of any of them may be drawn again, it is of a simulation."""
    claims = Claim.to_everyone("example", "replace", Gaussian(2.0), "proved", ())
    real, seeded = (Notes([note([("*", claims)], noise)], 3) for noise in ("system", "counter"))
    for tried, status in (([real, real], "proved"), ([real, seeded], "proved (simulation)")):
        (row, *_) = composed([tried], 1e-5)
        (said,) = [line for line in choosing([row], 2, 1, sweep=True) if "at most epsilon" in line]
        assert f"(replace; {status}; one seed each" in said


def test_one_open_release_opens_the_whole_search() -> None:
    (row, *_) = composed([[ledger(Gaussian(2.0), 1), ledger(NonPrivate("raw"), 1)]], 1e-5)
    assert row.to_json()["epsilon"] == "inf"
    assert "No finite epsilon" in choosing([row], 2, 1, sweep=True)[-1]


@pytest.mark.slow
def test_costs_under_different_neighbours_are_not_mixed() -> None:
    # under replace the second would be missing, and the sum would be too small
    mixed = [ledger(Gaussian(2.0), 1), ledger(Poisson(0.1, Gaussian(1.0)), 1, neighbours="zero_out")]
    assert composed([mixed], 1e-5) == []
    assert len(composed([mixed[:1] * 2], 1e-5)) == 3
    # one that released nothing is no obstacle
    assert len(composed([[mixed[0], Notes([], 3)]], 1e-5)) == 3


def test_clients_share_nothing_so_the_busiest_counts() -> None:
    claims = Claim.to_everyone("example", "replace", Gaussian(2.0), "proved", ())[:1]
    one, other = (Notes([note([([k], claims)])], 2) for k in (0, 1))
    assert composed([[one, other]], 1e-5)[0].epsilon == pytest.approx(epsilon_of(0.5, 1e-5))
    assert composed([[one, one]], 1e-5)[0].epsilon == pytest.approx(epsilon_of(0.5 * 2**0.5, 1e-5))


def test_a_search_over_declared_persons_says_what_all_rows_of_one_lose() -> None:
    """The bound of k steps of what all configurations together cost one row; the most rows of any of them count."""
    tried = [ledger(Gaussian(20.0), 1)._replace(rows_per_key=rows) for rows in (1, 3)]
    for seeds in (1, 2):
        found = {(row.unit, row.adversary): row for row in composed([tried] * seeds, 1e-5)}
        example, person = found["example", "server"], found["person", "server"]
        assert 3 * example.epsilon < person.epsilon < 3 * epsilon_of(2**0.5 / 20, 1e-7)
        assert person.every_seed >= seeds * person.epsilon
        assert "about one person" in " ".join(choosing([person], 2, seeds, sweep=True))
