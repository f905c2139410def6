"""Canaries: where they sit they change nothing else, and without noise each score is the coin itself."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from sordino import config, keys, tree
from sordino.accounting.claims import Subject
from sordino.audits.canaries import CanaryClients, CanaryDirections, CanaryExamples, CanaryRowsOfSums, directions
from sordino.audits.canary_rounds import CanaryRounds
from sordino.audits.noise_sources import NoiselessTwin
from sordino.audits.planted import PlantedReader, PlantedSums
from sordino.audits.replay import BEGINNING
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.runs.simulation import Simulation, settle, simulated
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, LocalWork, Neighbours, Params, Terms

TINY = ("rounds=2", "data.train=64", "partition={scheme='iid',clients=4}")
EVERY, HALF = "cohort={name='poisson',rate=1.0}", "cohort={name='poisson',rate=0.5}"
STEP = ("algorithm.local_steps=1", "algorithm.batch_size=full")
MANY = ("data.train=1400", "partition={scheme='iid',clients=900}")
KEY = keys.root(3)


@cache
def run(*words: str) -> Simulation:
    return simulated(settle(config.load(None, [*TINY, *words])))


def test_directions_stand_at_right_angles() -> None:
    found = directions(KEY, 7, 30, 2)
    assert torch.allclose(found @ found.T, torch.eye(7), atol=1e-5)
    single = directions(KEY, 7, 30, 1)
    assert torch.equal(single @ single.T, torch.eye(7))
    assert set(single.flatten().tolist()) == {0.0, 1.0}
    assert torch.allclose(directions(KEY, 40, 30, 2).norm(dim=1), torch.ones(40))  # more than there is room for


def linear(params: Params, x: torch.Tensor, y: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    return (x * params["w"]).sum(1)


def sums(reader: NoisyGradient, rows: torch.Tensor) -> torch.Tensor:
    examples, params = Examples(rows, torch.zeros(len(rows))), {"w": torch.zeros(rows.shape[1])}
    grant = Grant(0, len(rows), len(rows), NoiselessTwin(Counter(1)), 1.0)
    (batch,) = reader.open(examples, grant, Quadratic(rows.shape[1])).batches(LocalWork(None, 1, None), 0)
    return len(rows) * tree.formed(batch.grad(linear, params))["w"]


def test_a_canary_gives_its_direction_at_the_clip_in_the_place_of_a_row_and_moves_no_other() -> None:
    reader, rows = NoisyGradient(clip=2.0), keys.normal(KEY, 60).reshape(10, 6).float()
    far = 1e3 * directions(KEY, 3, 6, 2)
    honest = sums(reader, torch.cat([rows[:7], torch.zeros(3, 6)]))
    for chosen in (far, -far, 0 * far):
        moved = sums(PlantedReader.of(reader, {0: chosen}, lambda s: s, sure=False), rows) - honest
        assert torch.allclose(moved, 2.0 * chosen.sum(0) / 1e3, atol=1e-4)
    others = PlantedReader.of(reader, {1: far}, lambda s: s, sure=False)
    assert torch.equal(sums(others, rows), sums(reader, rows))


@pytest.mark.parametrize("count", [0.0, 0.5])
def test_a_canary_in_a_sum_fills_the_part_of_its_class(count: float) -> None:
    """Ten rows of two classes, the last three of which are canaries: one of class 0, one of class 1, one absent."""
    rows, labels = keys.normal(KEY, 30).reshape(10, 3).double(), torch.tensor([0, 1] * 5)
    far = torch.zeros(3, 2, 3)
    far[0, 0, 1] = far[1, 1, 2] = 1e3
    grant, task = Grant(0, 10, 10, NoiselessTwin(Counter(1)), 1.0), Quadratic(3)

    def told(reader: ClassSums, many: int) -> tuple[torch.Tensor, torch.Tensor]:
        return reader.open(Examples(rows[:many], labels[:many]), grant, task).by_class(lambda x: x, 2)

    plain = ClassSums(clip=2.0, count=count)
    (sums, counts), (honest, held) = told(PlantedSums.of(plain, {0: far.flatten(1)}, lambda s: s), 10), told(plain, 7)
    moved = torch.zeros(2, 3).double()
    moved[0, 1] = moved[1, 2] = 2.0
    assert torch.allclose(sums - honest, moved, atol=1e-4)
    assert count == 0 or torch.equal(counts - held, torch.ones(2).double())


ROW = Subject(unit="example", neighbours="replace", adversary="server")
CLIENT = ROW.beside(unit="client")
IN_A_SUM = Subject(unit="client", neighbours="zero_out", adversary="participants")
FREE = ("privacy={delta=1e-5}",)
EPISODES = ("model=mlp", "algorithm.local_steps=2", "algorithm.batch_size=8")
KINDS: dict[str, tuple[type[CanaryDirections], Subject, tuple[str, ...]]] = {
    "a row": (CanaryExamples, ROW, ("algorithm=gaussian_gdp",)),
    "a row, in steps": (CanaryExamples, ROW, ("algorithm=noisy_steps",)),
    "a row, along one number": (CanaryExamples, ROW, ("algorithm=laplace",)),
    "a row, of which the server sees sums": (
        CanaryExamples,
        ROW.beside(adversary="participants"),
        ("algorithm=gaussian_gdp",),
    ),
    "a row, in convex steps": (
        CanaryExamples,
        ROW,
        ("algorithm=convex_stable", "algorithm.local_steps=3", 'model={name="logistic",radius=4}'),
    ),
    "a row, in episodes": (
        CanaryExamples,
        ROW,
        ("algorithm=prifedsync", "algorithm.level=step_level", "algorithm.episodes=8", *FREE, *EPISODES),
    ),
    "a cell": (
        CanaryExamples,
        ROW.beside(unit="cell", neighbours="zero_out"),
        ("algorithm=pfl_dyn", 'read={name="cells",clip=1,rate=1,multiplier=1}', *FREE, *EPISODES),
    ),
    "a row, behind masks": (
        CanaryExamples,
        ROW,
        ("algorithm=gaussian_gdp", 'uplink={client=[{name="quantise",range=20},{name="secagg"}]}'),
    ),
    "a client, behind a robust sum": (
        CanaryClients,
        CLIENT,
        (
            "algorithm=fedavg",
            *STEP,
            *FREE,
            'uplink={client=[{name="clip",radius=0.5},{name="noise",multiplier=1}],server=[{name="median",f=1}]}',
        ),
    ),
    "a client, with a bound of its own": (
        CanaryClients,
        IN_A_SUM,
        ("algorithm=pdp_prox", *STEP, 'privacy={epsilon={groups={"2"=0.5,"8"=0.5}},delta=1e-5}'),
    ),
    "a client": (CanaryClients, CLIENT, ("algorithm=whole_update", *STEP)),
    "a client, in a sum": (CanaryClients, IN_A_SUM, ("algorithm=dp_prox", *STEP, EVERY)),
}


def canaries(name: str, wanted: int = 16) -> CanaryDirections:
    kind, subject, words = KINDS[name]
    return kind(run(*words), subject, wanted, KEY)


@pytest.mark.one_fast
@pytest.mark.parametrize("name", KINDS)
def test_without_noise_scores_are_the_coins(name: str) -> None:
    found = canaries(name)
    assert found.unfit() == ""
    played = CanaryRounds(found, 0, 1e9, BEGINNING)
    seen = played.scores()
    told = seen.each
    assert bool(seen.exposed.all())
    assert len(told) == len(found.owners) == (3 if isinstance(found, CanaryClients) else 16)  # at most four of five
    assert torch.allclose(told, played.coins.double(), atol=0.02)


@pytest.mark.slow
def test_random_directions_lean_towards_the_canary_and_more_so_behind_a_larger_epsilon() -> None:
    """PrivUnit has no noise that could be left out: a broken twin spends more than is claimed. A score is its coin in
    the mean: within 5 deviations of it.
    """
    many = ("data.train=400", "partition={scheme='iid',clients=250}")
    words = ("algorithm=fedavg", *STEP, "uplink=[{name='clip',radius=0.5},'privunit']", "privacy.epsilon=4", *many)
    found = CanaryClients(run(*words, "rounds=1"), CLIENT, 100, KEY)
    assert found.unfit() == ""
    assert found.each
    spread = []
    for weak in (1.0, 4.0):
        played = CanaryRounds(found, 0, weak, BEGINNING)
        off = played.scores().each - played.coins.double()
        spread.append(float(off.std()))
        assert abs(float(off.mean())) < 5 * spread[-1] / 10
    assert spread[1] < 0.5 * spread[0]


@pytest.mark.slow
def test_who_is_drawn_in_secret_counts_by_the_rate() -> None:
    """Without noise a score is how often the canary was drawn, over how often it was to be expected; or nothing."""
    words = ("algorithm=dp_prox", "multiplier=1.0", "privacy={delta=1e-5}", *STEP, HALF, "rounds=4")
    found = CanaryClients(run(*words), IN_A_SUM, 2, KEY)
    assert found.rate == 0.5
    for number in range(3):
        played = CanaryRounds(found, number, 1e9, BEGINNING)
        told = played.scores().each
        assert torch.allclose(told, (2 * told).round() / 2, atol=0.02)
        assert bool((told[~played.coins].abs() < 0.02).all())


def test_canaries_of_one_sum_are_as_many_as_there_are_orthogonal_directions() -> None:
    """More would disturb one another, and their scores would not be independent."""
    found: list[CanaryDirections] = [
        CanaryClients(run("algorithm=dp_prox", *STEP, EVERY, *MANY), IN_A_SUM, 5000, KEY),
        CanaryExamples(run("algorithm=gaussian_gdp", "data.train=1400"), IN_A_SUM.beside(unit="example"), 5000, KEY),
    ]
    for canaries in found:
        assert not canaries.each
        assert len(canaries.owners) == canaries.numbers
        towards = canaries.towards[:50]
        assert torch.allclose(towards @ towards.T, torch.eye(50), atol=1e-4)


def test_replays_share_directions_and_nothing_else() -> None:
    found = canaries("a row")
    first, again, other = (CanaryRounds(found, number, 1.0, BEGINNING) for number in (0, 0, 1))
    assert torch.equal(first.coins, again.coins)
    assert torch.equal(first.scores().each, again.scores().each)
    assert not torch.equal(first.coins, other.coins)


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
def test_a_sum_weighs_in_a_score_by_what_a_canary_moves_over_the_noise(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that turns around moves its sum twice as far as one that is left out."""
    simulation = run("algorithm=gaussian_gdp")
    reader = ClassSums(clip=2.0, count=1.5, multiplier=3.0)
    gates = simulation.setup.algorithm.behind(read=reader)
    monkeypatch.setattr(CanaryRowsOfSums, "gates", gates)
    canaries = CanaryRowsOfSums(simulation, ROW.beside(neighbours=neighbours), 16, KEY)
    moved = 4.0 if neighbours == "replace" else 2.0
    assert canaries.worth(Terms()) == pytest.approx((moved / (3.0 * 2.0 * math.hypot(1.0, 1.5))) ** 2)


def test_where_no_canary_can_be_placed_it_is_said() -> None:
    cells = CanaryExamples(run("algorithm=whole_update"), ROW, 16, KEY)
    assert "reader" in cells.unfit()
    noise = CanaryClients(run("algorithm=gaussian_gdp"), CLIENT, 16, KEY)
    assert "noise" in noise.unfit()
