"""SlaugFL's selective data collection: who is asked for prototypes, who declines, and what is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.optional import PublicFacts
from sordino.errors import SordinoError
from sordino.runs.run import resume, start
from sordino.synthesis import generators
from sordino.synthesis.slaug import generator
from sordino.synthesis.slaug.generator import (
    Anchor,
    Recipe,
    TrainedGenerator,
    distances,
    nearest,
    ranked,
    requests,
    skill,
)
from sordino.synthesis.slaug.prepare import Ask, AskingState, Prototype, Ranked, Train
from sordino.synthesis.slaug.prepare import Up as Trained
from sordino.types import Examples, Params, Received
from tests.laws.traces import Killed, die_after, differences, finished, trace
from tests.synthesis.slaug.images import DOUBLE, KEY, RUN, SLAUG, World, images, task


# who knows a class best -----------------------------------------------------------------------------------------------
class Says:
    """A task whose model says what it is told to: `params["says"]` has logits for every example."""

    labels = 2

    def predict(self, params: Params, x: Tensor) -> Tensor:
        return params["says"][x[:, 0].long()]


def says(chosen: list[int], sure: float = 3.0) -> Params:
    return {"says": sure * F.one_hot(torch.tensor(chosen), 2).float()}


def test_f1_and_recall_on_a_hand_made_table() -> None:
    """Four examples of class 0, two of class 1. Who calls everything 0 has full recall there, and a worse F1 than who
    knows.
    """
    probe = Examples(torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 0, 1, 1]))
    everything = skill(Says(), says([0] * 6), probe)  # type: ignore[arg-type]
    knows = skill(Says(), says([0, 0, 0, 1, 1, 1]), probe)  # type: ignore[arg-type]
    assert everything.recall.tolist() == [1.0, 0.0]
    assert knows.recall.tolist() == [0.75, 1.0]
    assert everything.f1.tolist() == pytest.approx([2 * 4 / (4 + 6), 0.0])
    assert knows.f1.tolist() == pytest.approx([2 * 3 / (4 + 3), 2 * 2 / (2 + 3)])
    p = 1 / (1 + math.exp(-3))
    assert knows.confidence.tolist() == pytest.approx([(3 * p + (1 - p)) / 4, p], rel=1e-6)
    recall, f1, sure = (torch.stack(pair) for pair in zip(everything, knows, strict=True))
    assert ranked(recall, sure)[0].tolist() == [0, 1]  # by recall the first device wins class 0
    assert ranked(f1, sure)[0].tolist() == [1, 1]
    nobody = skill(Says(), says([0] * 4), Examples(probe.x[:4], probe.y[:4]))  # type: ignore[arg-type]
    assert nobody.f1.tolist() == [1.0, 0.0]  # a class that is not there and that nobody names: 0, not a division by it


def test_ties_go_to_the_surer_then_to_the_lower_number() -> None:
    score = torch.tensor([[0.5, 0.9], [0.9, 0.9], [0.9, 0.1], [0.9, 0.9]], dtype=DOUBLE)
    sure = torch.tensor([[1.0, 0.2], [0.3, 0.2], [0.7, 1.0], [0.3, 0.8]], dtype=DOUBLE)
    assert ranked(score, sure).T.tolist() == [[2, 1, 3, 0], [3, 0, 1, 2]]


ANCHORS: list[list[Anchor]] = []


@dataclass(frozen=True)
class Noting(Recipe):
    """Makes nothing, and notes what of."""

    def make(self, home: Any, anchors: Sequence[Anchor]) -> TrainedGenerator:
        ANCHORS.append(list(anchors))
        return self.template()


ORDER = torch.tensor([[2, 2, 1, 0], [1, 0, 2, 3], [0, 1, 3, 1]])  # ranks x classes: devices


def asking(prototypes: int | None = None) -> tuple[Ask, AskingState]:
    made = task()
    ask = Ask(recipe=Noting(keep=2), prototypes=prototypes).fitted(PublicFacts((8, 8, 1), 4, (5, 5, 5, 5), 9))
    table = torch.zeros(4, 4, dtype=DOUBLE)
    kept = tree.map(
        lambda leaf: torch.arange(12.0).reshape(3, 4, *[1] * leaf.dim()).expand(3, 4, *leaf.shape), made.init(0)
    )
    before = Ranked(made.init(0), table, table, ORDER, kept, torch.tensor(True))
    return ask, ask.begin(made, KEY, before, World(made))


def answered(ask: Ask, s: AskingState, declines: set[int] = frozenset(), silent: set[int] = frozenset()) -> AskingState:  # type: ignore[assignment]
    """A round in which these devices decline and those say nothing. An answer's mean has the device in every place."""
    ups = []
    for k in ask.requested_clients(s):
        label = ask.per_client_message(ask.broadcast(s), k).label
        assert label.shape == (1,)
        width = s.prototypes.shape[1]
        images_ = 0.0 if k in declines else 3.0
        if k not in silent:
            ups.append(Prototype(label, torch.full((width,), k * images_), torch.tensor([images_])))
    return ask.update(s, Received(ups[0] if ups else None, 1.0, lambda: ups), World(task()))


def asked(ask: Ask, s: AskingState) -> dict[int, int]:
    """Which class is asked of which device."""
    down = ask.broadcast(s)
    found = {k: int(ask.per_client_message(down, k).label) for k in ask.requested_clients(s)}
    assert len(found) == len(ask.requested_clients(s))  # nobody twice
    return found


def test_who_declines_or_is_silent_is_followed_by_the_next() -> None:
    ANCHORS.clear()
    ask, s = asking()
    assert asked(ask, s) == {2: 0, 1: 2, 0: 3}  # device 2 won classes 0 and 1: one of them a round
    s = answered(ask, s, declines={2})
    assert asked(ask, s) == {1: 0, 2: 1}  # the runner-up of class 0; now device 2 for class 1
    s = answered(ask, s, declines={1}, silent={2})
    assert asked(ask, s) == {0: 0}  # class 1 waits: device 0 is asked for class 0
    s = answered(ask, s, declines={0})
    assert asked(ask, s) == {0: 1}  # nobody is left for class 0
    assert not ask.over(s)
    s = answered(ask, s)
    assert ask.over(s)
    assert ask.requested_clients(s) == []
    assert s.state.tolist() == [2, 1, 1, 1]
    (anchors,) = ANCHORS
    assert [(a.label, float(a.mean[0])) for a in anchors] == [(1, 0.0), (2, 1.0), (3, 0.0)]
    # through the model of the device that answered: [rank, class] of what the server kept
    assert [float(next(iter(a.model.values())).flatten()[0]) for a in anchors] == [1 * 4 + 1, 0 * 4 + 2, 0 * 4 + 3]


def test_nobody_at_all() -> None:
    ANCHORS.clear()
    ask, s = asking()
    for _ in range(20):
        if ask.over(s):
            break
        s = answered(ask, s, silent={0, 1, 2, 3})
    assert s.state.tolist() == [2] * 4
    assert ANCHORS == [[]]


def test_fewer_prototypes_than_classes() -> None:
    ask, s = asking(2)
    assert len(s.slots) == 2
    assert len(set(s.slots.tolist())) == 2
    chosen = {tuple(requests(4, 2, keys.root(k))[0].tolist()) for k in range(20)}
    assert len(chosen) == 6  # any two of four
    while not ask.over(s):
        s = answered(ask, s)
    assert s.state.tolist() == [1, 1]


@pytest.mark.parametrize("count", [5, 7, 12])
def test_more_prototypes_than_classes_are_runners_ups(count: int) -> None:
    ANCHORS.clear()
    ask, s = asking(count)
    for i, (label, place) in enumerate(zip(s.slots.tolist(), s.place.tolist(), strict=True)):
        assert place == s.slots[:i].tolist().count(label)
    while not ask.over(s):
        assert len(set(asked(ask, s).values())) == len(asked(ask, s))
        s = answered(ask, s)
    (anchors,) = ANCHORS
    assert len(anchors) == count
    for slot, anchor in enumerate(anchors):  # each the answer of the device that was asked for it
        assert float(anchor.mean[0]) == ORDER[int(s.place[slot]), anchor.label]
        assert float(next(iter(anchor.model.values())).flatten()[0]) == 4 * int(s.place[slot]) + anchor.label


def test_who_declines_is_not_followed_by_a_device_that_has_been_asked_for_the_same_class() -> None:
    ask, s = asking(8)  # of every class the first two ranks
    assert s.place.tolist() == [0] * 4 + [1] * 4
    seen: set[tuple[int, int]] = set()
    while not ask.over(s):
        now = set(asked(ask, s).items())
        assert not now & seen  # nobody is asked twice for a class
        seen |= now
        s = answered(ask, s, declines={0, 2})
    wanted = {
        (int(s.order[place, label]), int(label))
        for label, place, state in zip(s.slots, s.place, s.state, strict=True)
        if state == 1
    }
    assert wanted == {(k, c) for c in range(4) for k in ORDER[:, c].tolist() if k in (1, 3)}


@pytest.mark.parametrize("count", [-1, 13])
def test_more_than_there_are_ranks_are_refused(count: int) -> None:
    with pytest.raises(SordinoError) as refusal:
        asking(count)
    assert refusal.value.code == "prototypes-out-of-range"


def test_a_bad_device_is_a_silent_one() -> None:
    """A model of NaN, or of a device that there is not; an answer of infinity."""
    made, probe = task(), images(40)
    home, train = World(made, probe=probe), Train(clients=4)
    s = train.begin(made, KEY, None, home)
    ups = [Trained(made.init(k + 50), torch.tensor(k)) for k in (3, 0, 2)]
    nan = tree.map(lambda leaf: leaf * torch.nan, made.init(1))
    bad = [
        Trained(nan, torch.tensor(1)),
        Trained(made.init(9), torch.tensor(-1)),
        Trained(made.init(9), torch.tensor(4)),
    ]
    without, after = (train.update(s, Received(ups[0], 1.0, lambda sent=sent: sent), home) for sent in (ups, ups + bad))  # type: ignore[misc]
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(without), tree.leaves(after), strict=True)].count(False) == 0

    ask, state = asking()
    wishes = asked(ask, state)
    one, other = list(wishes.items())[:2]
    honest = Prototype(torch.tensor([one[1]]), torch.ones(state.prototypes.shape[1]), torch.tensor([1.0]))
    wild = Prototype(torch.tensor([other[1]]), torch.full_like(honest.total, torch.inf), torch.tensor([1.0]))
    silent, shouting = (
        ask.update(state, Received(honest, 1.0, lambda sent=sent: sent), home) for sent in ([honest], [honest, wild])
    )  # type: ignore[misc]
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(silent), tree.leaves(shouting), strict=True)].count(
        False
    ) == 0
    assert int((shouting.state == 1).sum()) == 1


def test_silent_devices_rank_last_and_keep_their_numbers() -> None:
    """Models come from devices 0, 2 and 3; device 3's is the start, the others know nothing."""
    made, n = task(), 40
    probe = images(n)
    home, train = World(made, probe=probe), Train(clients=4)
    s = train.begin(made, KEY, None, home)
    ups = [Trained(made.init(k + 50), torch.tensor(k)) for k in (3, 0, 2)]
    after = train.update(s, Received(ups[0], 1.0, lambda: ups), home)
    assert train.over(after)
    assert after.recall.shape == s.recall.shape  # as a checkpoint expects
    for k, up in zip((3, 0, 2), ups, strict=True):
        wanted = skill(made, tree.add(s.x, up.delta), probe)
        assert torch.equal(after.f1[k], wanted.f1)
        assert torch.equal(after.recall[k], wanted.recall)
    assert not after.f1[1].any()
    assert all(sorted(column) == [0, 2, 3] for column in after.order.T.tolist())
    for label in range(4):
        for place in range(3):
            up = next(up for up in ups if int(up.device) == after.order[place, label])
            model = tree.add(s.x, up.delta)
            assert all(torch.equal(after.models[name][place, label], model[name]) for name in model)
    with pytest.raises(SordinoError) as refusal:
        train.update(s, Received(ups[0], 1.0, lambda: ups[:2]), home)
    assert refusal.value.code == "too-few-devices-answered"


@pytest.mark.slow
def test_a_preparation_with_lost_devices_is_resumed_like_any(tmp_path: Path) -> None:
    many = {"rounds": 3, "partition": {"scheme": "dirichlet", "clients": 8, "alpha": 0.5}, "chaos": {"drop": 0.3}}
    once = finished(config.validate(RUN | many | {"algorithm": SLAUG}), tmp_path / "once")
    with pytest.raises(Killed):
        start(config.validate(RUN | many | {"algorithm": SLAUG}), tmp_path / "again", die_after(1))
    resume(tmp_path / "again")
    assert differences(once, trace(tmp_path / "again")) == []


# the filter -----------------------------------------------------------------------------------------------------------
def test_the_filter_keeps_exactly_the_nearest() -> None:
    far = torch.tensor([0.5, 0.1, 0.9, 0.1, 0.3, 0.7, 0.1])
    assert nearest(far, 3).tolist() == [1, 3, 6]
    assert nearest(far, 4).tolist() == [1, 3, 4, 6]
    assert nearest(far, 2).tolist() == [1, 3]  # of equals the first
    assert nearest(far, 99).tolist() == list(range(7))


def test_candidates_are_chosen_through_the_model_of_whoever_answered() -> None:
    made, candidates = task(), images(60, seed=7)
    models = [made.init(70), made.init(71)]
    only = [candidates.x[torch.nonzero(candidates.y == c)[2]] for c in (0, 1)]
    anchors = [Anchor(c, made.features(models[c], only[c])[0], made, models[c]) for c in (0, 1)]
    recipe = Recipe(keep=5)
    recipe = recipe.fitted(PublicFacts((8, 8, 1), 4, (5,), 9))
    found = recipe.chosen(candidates, anchors, KEY)
    for c in (0, 1):
        rows = torch.nonzero(candidates.y == c).flatten()
        z = made.features(models[c], candidates.x[rows])
        wanted = [(1 - F.cosine_similarity(z[i], anchors[c].mean, 0).item(), int(r)) for i, r in enumerate(rows)]
        assert found[c].tolist() == sorted(r for _, r in sorted(wanted)[:5])
        far = distances(anchors[c].seen(candidates.x[rows]), anchors[c].mean)
        # the prototype of a single image is that image's feature: at no distance from itself, and at some from the
        # others
        assert float(far[2]) == pytest.approx(0, abs=1e-7)
        assert int((far < 1e-4).sum()) == 1
    for c in (2, 3):  # without a prototype: random ones of the class
        assert len(found[c]) == 5
        assert set(candidates.y[found[c]].tolist()) == {c}
    assert found[2].tolist() != sorted(torch.nonzero(candidates.y == 2).flatten().tolist())[:5]


def test_two_prototypes_of_a_class_are_merged_by_their_distances_or_their_means() -> None:
    made, candidates = task(), images(60, seed=7)
    models = [made.init(70), made.init(71)]
    anchors = [Anchor(0, made.features(m, candidates.x[i : i + 1])[0], made, m) for i, m in enumerate(models)]
    rows = torch.nonzero(candidates.y == 0).flatten()
    seen = [made.features(m, candidates.x[rows]) for m in models]
    apart = [distances(z, a.mean) for z, a in zip(seen, anchors, strict=True)]
    wanted = {
        "mean_distance": (apart[0] + apart[1]) / 2,
        "mean": distances(seen[0], (anchors[0].mean + anchors[1].mean) / 2),
    }
    found = {}
    for merge, far in wanted.items():
        recipe = replace(Recipe(keep=4, merge=merge), shape=generators.GeneratorShape("small", 4, 8, 8, 1))  # type: ignore[arg-type]
        found[merge] = recipe.chosen(candidates, anchors, KEY)[0].tolist()
        assert found[merge] == rows[far.argsort()[:4].sort().values].tolist()
    assert generator.some(9, 4, KEY).unique().numel() == 4
