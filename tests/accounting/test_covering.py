"""What releases promise together: every claim in the words of every other, or nothing.

The oracle of `steps` is a tiny world in which every relation is a set of pairs: where a claim is said to cover a
subject in n steps, n changes of the claim lead
from one neighbour to the other. Sums are held against closed forms. The broken twin is the statement as it was: rows
that never looked at one another.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sordino.accounting import statement as statements
from sordino.accounting.claims import UNITS, Claim, Neighbours, Status, Subject, Unit
from sordino.accounting.composition import bounded, cost, covered, note, steps, two_steps
from sordino.accounting.events import (
    DrawnOnce,
    Event,
    Gaussian,
    Laplace,
    NoAccess,
    NonPrivate,
    Poisson,
    Repeat,
    Response,
)
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import Guarantee, epsilons, statement

DELTA = 1e-5
RELATIONS: tuple[Neighbours, ...] = ("replace", "zero_out")

# the tiny world: a client holds three examples in two cells; an example is an image of two pixels and a label
Example = tuple[int, int, int]
EXAMPLES: list[Any] = [(a, b, label) for a in (0, 1) for b in (0, 1) for label in (0, 1)]
ZERO = "zero"  # of an example that counts for nothing
CELLS = ((0, 1), (2,))
World = tuple[Any, ...]


def changed(world: World, unit: Unit, how: Neighbours) -> Iterator[World]:
    """Everything that one change of this kind can make of what a client holds."""
    slots = {"client": [(0, 1, 2)], "cell": list(CELLS)}.get(unit, [(0,), (1,), (2,)])
    for place in slots:
        if how != "replace":
            yield tuple(ZERO if i in place else held for i, held in enumerate(world))
            if all(world[i] == ZERO for i in place):  # and back again
                for new in itertools.product([*EXAMPLES, ZERO], repeat=len(place)):
                    filled = dict(zip(place, new, strict=True))
                    yield tuple(filled.get(i, held) for i, held in enumerate(world))
        elif unit in ("pixel", "image"):
            (i,) = place
            if isinstance(held := world[i], tuple):
                for a, b in itertools.product((0, 1), repeat=2):
                    if unit == "image" or (a == held[0]) != (b == held[1]):
                        yield (*world[:i], (a, b, held[2]), *world[i + 1 :])
        elif all(isinstance(world[i], tuple) for i in place):
            for new in itertools.product(EXAMPLES, repeat=len(place)):
                filled = dict(zip(place, new, strict=True))
                yield tuple(filled.get(i, held) for i, held in enumerate(world))


START: World = ((0, 0, 0), (0, 1, 0), (1, 1, 1))


def about(unit: Unit, how: Neighbours) -> Subject:
    return Subject(unit=unit, neighbours=how, adversary="server")


SUBJECTS = [  # nothing finite is said of a test example, on which nobody trains
    about(unit, how)
    for unit in UNITS[1:]
    if unit != "person"
    for how in RELATIONS
    if how == "replace" or unit in ("example", "cell", "client")
]


@pytest.mark.parametrize("asked", SUBJECTS, ids=lambda asked: f"{asked.unit}-{asked.neighbours}")
def test_a_claim_covers_what_so_many_of_its_changes_reach(asked: Subject) -> None:
    neighbours = set(changed(START, asked.unit, asked.neighbours)) - {START}
    for claimed in SUBJECTS:
        number = steps(claimed, asked)
        if number is None:
            continue
        reached = {START}
        for _ in range(number):
            reached |= {after for before in reached for after in changed(before, claimed.unit, claimed.neighbours)}
        if claimed == about("client", "replace"):  # any holding is one, also with an example that counts for nothing
            continue
        assert neighbours <= reached, (claimed, asked)


def test_no_claim_covers_more_than_its_own() -> None:
    """Upward never: a client is many examples. And nothing is no value that something is exchanged for."""
    order = {unit: i for i, unit in enumerate(UNITS)}
    for claimed, asked in itertools.product(SUBJECTS, repeat=2):
        if order[claimed.unit] < order[asked.unit]:
            assert steps(claimed, asked) is None
        if claimed.neighbours == "replace" != asked.neighbours and claimed.unit != "client":
            assert steps(claimed, asked) is None
    assert steps(about("example", "replace"), about("example", "zero_out")) is None
    units: tuple[Unit, ...] = ("cell", "client")
    for unit in units:  # what changes inside it is a unit that is replaced
        for change in RELATIONS:
            assert steps(about(unit, "zero_out"), about("example", change)) == 2


# statements -----------------------------------------------------------------------------------------------------------


def claim(unit: Unit, how: Neighbours, event: Event, **more: Any) -> Claim:
    status: Status = "none" if isinstance(event, NonPrivate) else "proved"
    because = (event.reason,) if isinstance(event, NonPrivate) else ()
    return Claim(**dict(about(unit, how)), event=event, status=status, because=because, **more)


def stated(*releases: Sequence[Claim]) -> dict[tuple[str, str], Guarantee]:
    texts = [note([("*", list(claims))]) for claims in releases]
    rows = statement(texts, 3, DELTA)
    held = [row for row in rows if row.finite and row.delta <= DELTA]  # others need a larger delta, and say which
    assert epsilons(texts, 3, DELTA) == [(row.subject, row.epsilon, row.status) for row in held]
    assert len({row.subject for row in rows}) == len(rows)
    return {(row.unit, row.neighbours): row for row in rows}


RAW = (claim("example", "replace", NonPrivate("raw rows")), claim("client", "replace", NonPrivate("raw upload")))
PIXELS = (
    claim("pixel", "replace", DrawnOnce("values", Response(5.0, 21))),
    claim("image", "replace", DrawnOnce("images", Repeat(Response(5.0, 21), 64))),
    claim("example", "replace", NonPrivate("labels")),
    claim("client", "replace", NonPrivate("raw upload")),
)


def old(texts: Any, population: int, delta: float) -> list[Guarantee]:
    """Broken twin: each row made of the releases that speak of its subject, blind for the others."""
    from sordino.accounting.composition import read_notes

    (releases,) = list(read_notes(texts, population).values())[:1]
    spoken = {claim.subject for release in releases for claim in release}
    found = []
    for subject in spoken:
        seen = [r for r in releases if covered(r, subject)]
        if seen:
            found.append(statements._row(subject, [seen], delta))
    return found


def test_pixels_beside_a_raw_upload_are_not_protected() -> None:
    rows = stated(RAW, PIXELS)
    assert {unit for unit, _ in rows} == {"pixel", "image", "example", "client"}
    assert all(math.isinf(row.epsilon) and row.status == "none" for row in rows.values())
    pixel = rows["pixel", "replace"]
    assert "raw rows" in pixel.because
    assert any(reason.startswith("noised releases beside it: 5 ") for reason in pixel.because)
    alone = stated(PIXELS)  # without the raw release they are
    assert alone["pixel", "replace"].epsilon == pytest.approx(5.0, rel=1e-4)
    twin = {row.unit: row for row in old([note([("*", list(c))]) for c in (RAW, PIXELS)], 3, DELTA)}
    assert twin["pixel"].epsilon == pytest.approx(5.0, rel=1e-4)  # what was printed


def test_relations_are_composed_and_not_printed_side_by_side() -> None:
    """Sums that noise hides under zero_out, then gradients under replace: counted for nothing and then as another, a
    Gaussian of half the multiplier, and then one sum of squares."""
    sums, training = (claim("example", "zero_out", Gaussian(4.0)),), (claim("example", "replace", Gaussian(1.0)),)
    rows = stated(sums, training, training)
    assert set(rows) == {("example", "replace")}  # the gradients say nothing of whether one counts
    exact = epsilon_of(math.sqrt((2 / 4.0) ** 2 + 2 * 1.0**2), DELTA)
    assert rows["example", "replace"].epsilon == pytest.approx(exact, rel=1e-6)
    twin = {
        (row.unit, row.neighbours): row.epsilon
        for row in old([note([("*", list(sums))]), note([("*", list(training))])], 3, DELTA)
    }
    assert twin["example", "zero_out"] < exact / 4  # the small number that was printed


def test_a_claim_about_clients_counts_for_their_examples() -> None:
    rows = stated(
        (claim("client", "replace", Gaussian(2.0)), claim("example", "replace", NonPrivate("gradients as they are"))),
        (claim("client", "replace", NonPrivate("raw upload")), claim("example", "replace", Gaussian(3.0))),
    )
    assert math.isinf(rows["client", "replace"].epsilon)
    example = rows["example", "replace"]
    assert example.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 2, 1 / 3), DELTA), rel=1e-6)
    assert "implied by the client row" in example.because


@pytest.mark.slow
def test_a_sample_that_cannot_be_stretched_is_summed() -> None:
    sampled = Poisson(0.1, Gaussian(1.0))
    rows = stated((claim("example", "zero_out", sampled),), (claim("example", "replace", Gaussian(2.0)),))
    expected = two_steps(sampled, DELTA / 2, "zero_out") + epsilon_of(1 / 2, DELTA / 2)
    assert rows["example", "replace"].epsilon == pytest.approx(expected, rel=1e-6)
    assert rows["example", "replace"].accountant == "sum of 2 kinds of claims"


def test_what_is_never_seen_costs_no_detour() -> None:
    """A claim that nothing is seen, as of a secure sum, in two steps of a part beside plain noise."""
    rows = stated((claim("example", "zero_out", NoAccess()),), (claim("example", "replace", Gaussian(2.0)),))
    assert rows["example", "replace"].accountant == "gdp"
    assert rows["example", "replace"].epsilon == pytest.approx(epsilon_of(1 / 2, DELTA), rel=1e-9)


@pytest.mark.parametrize("delta", [0.015, 0.0155, 0.01575, 5e-3, 5e-4])
def test_two_steps_are_never_below_the_exact_price(delta: float) -> None:
    """Of a Gaussian, whose two steps are one of half the multiplier. Where epsilon is small they are nearly as dear as
    said: at (2 epsilon, e^epsilon delta), without the 1, they would cost less than they do.
    """
    exact, said = epsilon_of(2 / 50, delta), two_steps(Gaussian(50.0), delta, "zero_out")
    assert exact <= said
    if delta > 0.01:
        assert said < exact + 0.01
        without = 2 * epsilon_of(1 / 50, delta * math.exp(-exact / 2))
        assert without < exact


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_is_no_surer_than_its_least_sure_client(order: tuple[int, int]) -> None:
    """Neither the number of the client with the largest loss nor that of the strongest promise decides how far a row is
    proved."""
    sure, unsure = claim("example", "replace", Gaussian(1.0)), claim("example", "replace", Gaussian(3.0))
    weak = unsure.beside(status="conditional", because=("somebody behaves",))
    groups = [([0], [sure]), ([1], [weak])]
    row = stated_by([note([groups[i] for i in order])])
    assert (row.status, row.because) == ("conditional", ("somebody behaves",))
    assert row.epsilon == pytest.approx(epsilon_of(1.0, DELTA), rel=1e-6)


def stated_by(texts: list[str]) -> Guarantee:
    (row,) = statement(texts, 2, DELTA)
    assert epsilons(texts, 2, DELTA) == [(row.subject, row.epsilon, row.status)]
    return row


def test_the_client_that_lost_most_speaks_after_conversion() -> None:
    """One client has two releases in two words: neither word alone finds it."""
    by_removal, by_exchange = claim("example", "zero_out", Gaussian(4.0)), claim("example", "replace", Gaussian(1.5))
    texts = [note([([0, 1], [by_exchange])]), note([([1, 2], [by_removal])])]
    rows = {(row.unit, row.neighbours): row for row in statement(texts, 3, DELTA)}
    assert rows["example", "replace"].epsilon == pytest.approx(epsilon_of(math.hypot(1 / 1.5, 0.5), DELTA), rel=1e-6)
    assert rows["example", "replace"].releases == 2
    assert ("example", "zero_out") not in rows  # clients 0 and 1 promise nothing there


@pytest.mark.slow
def test_no_row_is_below_any_of_its_releases() -> None:
    """Every release alone, in whichever words, costs at most what the row says of all."""
    pool = [
        (claim("example", "zero_out", Gaussian(3.0)),),
        (claim("example", "replace", Laplace(2.0)),),
        (claim("client", "zero_out", Gaussian(5.0)), claim("example", "replace", NonPrivate("open"))),
        (claim("cell", "zero_out", Gaussian(4.0)), claim("example", "replace", NonPrivate("open"))),
    ]
    for chosen in itertools.combinations(pool, 2):
        for (unit, how), row in stated(*chosen).items():
            for release in chosen:
                alone = cost([release], about(unit, how))
                least = bounded(alone.parts, DELTA, how).epsilon if alone.parts else math.inf  # type: ignore[arg-type]
                assert row.epsilon >= least * (1 - 1e-9)


def test_noise_is_no_closer_to_its_law_than_exact() -> None:
    """A drift below 0, in a ledger that somebody made, would pay for that of other releases."""
    told = claim("example", "replace", Gaussian(1.0), drift=1e-7).to_json()
    assert Claim.model_validate_json(json.dumps(told)).drift == 1e-7
    with pytest.raises(ValueError, match="drift"):
        Claim.model_validate_json(json.dumps({**told, "drift": -1e-7}))


def test_what_the_noise_tables_lack_is_taken_out_of_delta() -> None:
    """Total variation tau on both sides: (epsilon, delta + (1 + e^epsilon) tau). It is epsilon that becomes larger, and
    delta where all of it would not be enough.
    """
    made = claim("example", "replace", Gaussian(1.0), drift=1e-11)
    row = stated((made,), (made,))["example", "replace"]
    assert row.delta == DELTA
    assert row.epsilon > epsilon_of(math.sqrt(2), DELTA)
    left = DELTA - (1 + math.exp(row.epsilon)) * 2e-11
    assert row.epsilon == pytest.approx(epsilon_of(math.sqrt(2), left), rel=1e-9)
    assert row.epsilon >= epsilon_of(math.sqrt(2), left)
    more = claim("example", "replace", Gaussian(1.0), drift=1e-7)
    row = stated((more,), (more,))["example", "replace"]
    assert row.epsilon == epsilon_of(math.sqrt(2), DELTA)
    assert row.delta == pytest.approx(DELTA + (1 + math.exp(row.epsilon)) * 2e-7, rel=1e-9)
    loud = claim("example", "replace", Gaussian(0.1), drift=1e-9)
    assert math.isinf(stated((loud,))["example", "replace"].epsilon)  # e^epsilon times as much is no delta


@pytest.mark.parametrize(("whole", "finite"), [(0.99, True), (1.01, False), (1.99, False)])
def test_a_delta_of_one_is_no_promise_and_a_larger_one_is_no_point_of_a_curve(whole: float, finite: bool) -> None:
    epsilon = epsilon_of(1.0, DELTA)
    made = claim("example", "replace", Gaussian(1.0), drift=(whole - DELTA) / (1 + math.exp(epsilon)))
    row = stated((made,))["example", "replace"]
    assert (row.epsilon, row.delta) == pytest.approx((epsilon, whole) if finite else (math.inf, DELTA))
    assert epsilons([note([("*", [made])])], 3, DELTA) == []


# persons --------------------------------------------------------------------------------------------------------------


def person(rows: int, *releases: Sequence[Claim], delta: float = DELTA) -> Guarantee:
    texts = [note([("*", list(claims))]) for claims in releases]
    found = {row.unit: row for row in statement(texts, 3, delta, rows_per_key=rows)}
    assert found["person"].subject == found["example"].subject.beside(unit="person")
    return found["person"]


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("delta", [1e-7, 0.01])
def test_a_person_is_never_priced_below_the_exact_cost_of_all_its_rows(rows: int, delta: float) -> None:
    """Rows that all move the same sum in one direction move it rows times as far, which Gaussian noise prices exactly
    (Dong, Roth and Su 2022, theorem 6). The broken twin takes the delta of one row: it comes out below.
    """
    for noise in (5.0, 20.0, 100.0):
        exact, one = epsilon_of(rows * math.sqrt(2) / noise, delta), epsilon_of(math.sqrt(2) / noise, delta)
        row = person(rows, *[(claim("example", "replace", Gaussian(noise)),)] * 2, delta=delta)
        assert exact <= row.epsilon <= max(1.6 * exact, 1e-3), (noise, exact, row.epsilon)
        assert row.delta == delta
        assert rows * one < exact or one == 0


def test_a_person_costs_so_many_times_what_pure_noise_costs() -> None:
    row = person(4, (claim("example", "replace", Laplace(2.0)),), delta=0.0)
    assert (row.epsilon, row.delta) == (2.0, 0.0)
    assert "4 steps of the example row" in row.accountant


def test_a_person_is_promised_nothing_where_one_example_loses_too_much() -> None:
    row = person(50, (claim("example", "replace", Gaussian(0.5)),))
    assert math.isinf(row.epsilon)
    assert row.status == "none"
    assert "too large" in row.because[0]


def test_what_the_noise_tables_lack_counts_for_every_row_of_a_person() -> None:
    made = [person(3, (claim("example", "replace", Gaussian(4.0), drift=drift),)) for drift in (0.0, 1e-8, 1e-4)]
    assert {row.delta for row in made} == {DELTA}
    assert made[0].epsilon < made[1].epsilon < made[2].epsilon == math.inf


def test_no_row_of_a_person_beside_raw_rows_or_where_nobody_has_several() -> None:
    for rows, event in ((3, NonPrivate("raw rows")), (1, Gaussian(4.0))):
        texts = [note([("*", [claim("example", "replace", event)])])]
        assert {row.unit for row in statement(texts, 3, DELTA, rows_per_key=rows)} == {"example"}
