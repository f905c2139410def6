"""Clients that send something false: what they send, the judge, and whole runs that stand them or fall."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sordino import config, tree
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.methods.malicious_clients import Backdoor, ModelReplacement, SignFlip, accuracy, harm, marked
from sordino.attacks.poisoned import MaliciousView, Manipulations
from sordino.errors import ConfigError
from sordino.results.findings import UNPOISONED, BesideGuess
from sordino.runs.simulation import simulated
from sordino.tree import Tree
from sordino.types import Examples, Params

MEDIAN = [{"name": "median", "f": 1}]


def tried(server: list[dict[str, Any]], rounds: int = 3, **more: Any) -> AttackedRun:
    table = {
        "rounds": rounds,
        "privacy": {},
        "data": {"source": "digits", "train": 300, "test": 100},
        "partition": {"scheme": "iid", "clients": 5},
        "algorithm": {"name": "fedavg", "local_steps": 3, "lr": 0.5},
        "uplink": {"client": [], "server": server},
        **more,
    }
    return AttackedRun(simulated(config.validate(table)))


def saying(what: float) -> Manipulations:
    return Manipulations(
        lambda client, own: own, lambda upload, moment: tree.map(lambda leaf: torch.full_like(leaf, what), upload)
    )


def test_who_shouts_ruins_the_plain_mean_and_not_the_median() -> None:
    run = tried(MEDIAN)
    found = {plain: accuracy(run, run.poisoned(SignFlip(strength=1e3).lies(run), plain)) for plain in (False, True)}
    assert found[False] > 60 > 40 > found[True]
    assert math.isfinite(float(tree.norm(run.poisoned(saying(math.nan), plain=False))))


@pytest.mark.parametrize("method", ["scaffold", "fedprox", "fedopt", "moon", "ditto"])
def test_methods_that_take_a_mean_take_a_median(method: str) -> None:
    more = {"algorithm": {"name": method, "local_steps": 1}, "model": {"name": "mlp", "hidden": 4}}
    run = tried([{"name": "nnm", "f": 1}, *MEDIAN], rounds=1, **more)
    assert run.setup.plan.participations
    assert tree.finite(run.poisoned(saying(math.nan), plain=False))


@pytest.mark.parametrize(
    ("method", "more"), [("fedgen", {}), ("pfl_dyn", {"model": {"name": "mlp"}}), ("fedavg_prototypes", {})]
)
def test_methods_that_take_more_than_a_mean_are_refused(method: str, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = tried(MEDIAN, algorithm={"name": method, "local_steps": 1}, **more).setup.plan
    assert refusal.value.code == "robust-sum-needs-a-mean"


def test_a_round_with_too_few_uploads_changes_nothing_and_says_so() -> None:
    run = tried([{"name": "median", "f": 2}], rounds=1, chaos={"drop": 0.5})
    rounds = run.rounds(bare=False)
    heard = rounds.round()
    assert len(heard.answered) < 5
    assert all(torch.equal(before, rounds.model()[name]) for name, before in heard.before.items())
    assert any("the robust sum needs 5" in remark for remark in rounds.federation.inbox.remarks)


# ---------------------------------------------------------------- what is sent


def moment(boost: float = 4.0, weight: float = 0.5) -> MaliciousView:
    return MaliciousView({"w": torch.ones(2)}, lambda upload: upload["delta"], boost, weight)


def test_a_replaced_model_is_where_the_plain_mean_ends() -> None:
    """Two attackers of eight clients send the same; with zeros of the others, the mean of all is the chosen model."""
    run = tried([], rounds=1)
    model = run.setup.task.init(5)
    here = MaliciousView(model, lambda upload: upload["delta"], 4.0, 1.0)
    upload: Tree = {"delta": tree.zeros_like(model), "beside": torch.ones(1)}
    sent = ModelReplacement().sent(upload, here, run)
    target = run.setup.task.init(0)
    assert torch.equal(sent["beside"], torch.ones(1))
    ends: Params = tree.axpy(2 / 8, sent["delta"], model)
    assert {name: leaf.shape for name, leaf in ends.items()} == {name: leaf.shape for name, leaf in target.items()}
    again = ModelReplacement().sent(upload, here._replace(model=ends), run)
    assert float(tree.norm(again["delta"])) < 1e-4  # it is there: nothing is left to move


def test_a_flipped_sign_points_back() -> None:
    upload = {"delta": torch.tensor([1.0, -2.0])}
    assert SignFlip(strength=3.0).sent(upload, moment(), tried([]))["delta"].tolist() == [-3.0, 6.0]


def test_an_attacker_stays_within_the_bound_of_the_gate() -> None:
    """Else its upload would count as zeros, and the attack would look harmless."""
    run = tried([], uplink=[{"name": "clip", "radius": 0.01}], rounds=1)
    shouted = run.poisoned(saying(1e6), plain=True)
    assert float(tree.norm(tree.sub(shouted, run.undisturbed[1]))) == pytest.approx(0.01 / 5, rel=1)


def test_a_trigger_is_a_bright_corner_of_every_second_image() -> None:
    own = Examples(torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.tensor([3, 4, 5, 6]))
    changed = Backdoor().rows(own, 10)
    assert changed.y.tolist() == [0, 4, 0, 6]
    assert [int((image == 255).sum()) for image in changed.x] == [4, 0, 4, 0]
    assert marked(own.x)[0, -1, -1, 0] == 255
    assert not own.x.any()


# ---------------------------------------------------------------- the judge


@pytest.mark.parametrize(
    ("value", "control", "verdict"), [(0.5, 40.0, "stopped"), (9.0, 40.0, "reached"), (0.5, 1.0, "no power")]
)
def test_harm_counts_where_the_plain_sum_suffers(value: float, control: float, verdict: str) -> None:
    figure = BesideGuess(name="", value=value, baseline=0.0, control=control)
    assert harm(figure, 2.0, "points")[0] == verdict


def test_attackers_are_a_fifth_of_the_clients() -> None:
    assert len(tried([]).malicious) == 1


@pytest.mark.slow
def test_the_whole_game() -> None:
    """The median stands a backdoor, and the same run without it is its own control."""
    stood = assault(tried(MEDIAN, rounds=8).setup.experiment, names=("backdoor",))
    assert [one.verdict for one in stood.found] == ["stopped"]
    assert UNPOISONED not in stood.not_looked_at
    assert stood.setting.startswith("The whole run was played")
    fell = assault(tried([], rounds=8).setup.experiment, names=("sign_flip", "backdoor"))
    assert [one.verdict for one in fell.found] == ["reached", "reached"]
