"""Who was trained on: the scores where the answer is known, the judge, and the game of a canary."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from scipy.special import ndtr, ndtri

from sordino import config, keys
from sordino.accounting.statement import Promised
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackSettings
from sordino.attacks.methods.members import MemberScores, above, roc, with_verdict
from sordino.attacks.methods.properties import overlap
from sordino.data.sources import RowSource, SourceRows
from sordino.results.findings import AttackFinding

BLANK = AttackFinding(attack="a", what="", sees="public", verdict="not tried", why="")
HELD = Promised(
    unit="example", neighbours="replace", adversary="public", epsilon=1.0, delta=1e-5, status="proved", because=()
)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return keys.normal(keys.root(seed), math.prod(shape)).reshape(shape)


def gaussian(mu: float, many: int = 4000) -> MemberScores:
    return MemberScores(mu + normal(1, many), normal(2, many))


def test_the_judge_finds_the_closed_form_of_two_gaussians() -> None:
    """Hits at alarms a are Phi(Phi^-1(a) + mu), the area is Phi(mu / sqrt 2)."""
    mu = 1.5
    found = with_verdict(BLANK, gaussian(mu), gaussian(4.0), HELD)
    area, percent, permille = found.measured
    assert found.verdict == "reached"
    assert area.value == pytest.approx(float(ndtr(mu / math.sqrt(2))), abs=0.02)
    assert percent.value == pytest.approx(float(ndtr(ndtri(0.01) + mu)), abs=0.05)
    assert permille.value == pytest.approx(float(ndtr(ndtri(0.001) + mu)), abs=0.05)
    for one in found.measured:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.value <= one.high
    assert found.roc is not None
    assert found.roc.bound == HELD


def test_no_difference_is_no_finding() -> None:
    """The negative control; and an attack that finds nothing without protection either has no power."""
    assert with_verdict(BLANK, gaussian(0.0), gaussian(4.0), None).verdict == "stopped"
    assert with_verdict(BLANK, gaussian(0.0), gaussian(0.0), None).verdict == "no power"


def test_a_curve_runs_from_nobody_to_everybody() -> None:
    points = roc(gaussian(1.0, 200))
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)
    assert list(points) == sorted(points)


def test_shadow_models_tell_members_where_losses_alone_do_not() -> None:
    """Examples of very different difficulty, whose confidence grows by three deviations where they were trained on: a
    threshold on losses finds little, the comparison with models without each example finds nearly all.
    """
    many, shadows = 400, 24
    hard = 5 * normal(3, many)  # of the example itself
    inside = keys.coin(keys.root(4), shadows * many, 0.5).bool().reshape(shadows, many)
    member = torch.arange(many) < many // 2
    odds = hard + normal(5, shadows, many) + 3 * inside
    target = hard + normal(6, many) + 3 * member

    def loss(odd: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-odd)

    scores = above(loss(target), loss(odds), inside)
    compared = with_verdict(BLANK, MemberScores(scores[member], scores[~member]), None, None).measured[0].value
    alone = with_verdict(BLANK, MemberScores(target[member], target[~member]), None, None).measured[0].value
    assert compared > 0.95 > 0.75 > alone
    assert (scores[~member].mean(), scores[~member].std()) == (pytest.approx(0, abs=0.2), pytest.approx(1, abs=0.2))


def test_of_an_example_that_every_shadow_had_nothing_is_known() -> None:
    scores = above(torch.tensor([0.1, 0.1]), torch.full((3, 2), 0.5), torch.tensor([[True, False]] * 3))
    assert scores[0] == 0
    assert scores[1] > 0


def test_shares_that_overlap() -> None:
    true = torch.tensor([[2, 2, 0]])
    assert overlap([torch.tensor([2.0, 2.0, 0.0])], true) == 1.0
    assert overlap([torch.tensor([4.0, 0.0, 0.0])], true) == 0.5
    assert overlap([torch.tensor([float("nan"), 0.0, 0.0])], true) == pytest.approx(2 / 3)  # all alike


@pytest.mark.slow
def test_members_of_a_model_that_learned_by_heart_are_found() -> None:
    """Whole runs as shadows: they find what one threshold on losses hardly does; noise on whole updates hides it."""
    table = {
        "rounds": 6,
        "partition": {"scheme": "iid", "clients": 4},
        "data": {"source": "digits", "train": 200},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg", "local_epochs": 10},
    }
    asked, names = AttackSettings(shadows=6), ("lira", "loss_threshold")
    ratio, loss = assault(config.validate(table), names=names, asked=asked).found
    assert ratio.verdict == "reached"
    assert ratio.measured[0].value > loss.measured[0].value
    noised = {"algorithm": {"name": "whole_update", "multiplier": 5.0}, "privacy": {"delta": 1e-5}, "rounds": 2}
    hidden = assault(config.validate(table | noised), names=("loss_threshold",), asked=asked).found[0]
    assert hidden.verdict in ("stopped", "no power")


def test_a_canary_is_answered_at_random_as_other_images_are() -> None:
    """The game on images under randomised response: raw ones would refute every claim about them."""
    read = {"name": "responses", "of": "image", "epsilon": 1.0, "label_epsilon": 0.5}
    table = {
        "rounds": 1,
        "partition": {"scheme": "iid", "clients": 3},
        "data": {"source": "digits", "train": 60},
        "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": "full"},
        "read": read,
        "privacy": {"delta": 1e-4},
    }
    (found,) = assault(config.validate(table), names=("canary",), asked=AttackSettings(trials=200, victims=1)).found
    *_, lost = found.measured
    assert "claimed" in lost.name
    assert found.verdict == "stopped"  # it succeeds on raw images
    assert lost.value < 1.0


class Chance(RowSource):
    """Numbers of pure chance: whatever a model learns of them it has by heart."""

    reach: ClassVar[tuple[float, float] | None] = (0.0, 9.0)

    def rows(self, seed: int) -> SourceRows:
        x = 1 + keys.integers(keys.root(8), 200 * 8, 9).reshape(200, 8)
        return SourceRows(x.numpy(), keys.integers(keys.root(9), 200, 9).numpy())


TASKS: dict[str, dict[str, Any]] = {
    "next_token": {
        "task": {"name": "next_token", "vocabulary": 9},
        "model": {"name": "transformer", "width": 16, "layers": 1},
        "algorithm": {"name": "fedavg", "lr": 0.5, "local_epochs": 20},
    },
    "regression": {
        "task": {"name": "regression", "range": [0, 9]},
        "model": {"name": "mlp", "hidden": 256},
        "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 300, "batch_size": 20},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_members_are_found_by_their_losses_where_there_are_no_classes(task: str) -> None:
    made = {"data": {"source": f"{__name__}:Chance"}, "partition": {"scheme": "iid", "clients": 2}, "rounds": 1}
    found = assault(config.validate({**made, **TASKS[task]}), names=("loss_threshold", "lira")).found
    assert [one.verdict for one in found] == ["reached", "not tried"]
    assert found[1].why == "the run has no classes"
