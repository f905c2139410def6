"""What a device's model tells: whom it was trained on, and which classes it has seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from experiments.slaug_attacks.class_shares import inferred, spearman
from sordino import keys
from sordino.attacks.methods.members import Separation, above, confidence, losses, separation
from sordino.attacks.methods.properties import shares
from sordino.privacy.readers import taken
from sordino.synthesis.slaug.generator import skill
from sordino.types import Examples, Params, Task
from tests.attacks.devices import CLASSES, everything, task, trained

pytestmark = pytest.mark.slow  # attacks on what others published: no promise of ours stands or falls with them

NET = "mlp"
HELD = 100


def model(rows: Tensor, labels: Tensor | None = None, epochs: int = 40, seed: int = 1) -> Params:
    examples = taken(everything(), rows)
    if labels is not None:
        examples = examples._replace(y=labels)
    return trained(task(NET), examples, epochs, keys.root(seed))


# ---------------------------------------------------------------- members


def by_loss(on: Task, params: Params, members: Examples, others: Examples) -> Separation:
    return separation(-losses(on, params, members), -losses(on, params, others))


def test_learned_by_heart_is_told_and_never_seen_is_not() -> None:
    """Labels at random cannot be learned, only remembered: a low loss is then membership itself. A model of strangers
    tells neither group.
    """
    mine, others, strangers = (torch.arange(i * HELD, (i + 1) * HELD) for i in range(3))
    labels = keys.integers(keys.root(4), 3 * HELD, CLASSES).reshape(3, HELD)
    sides = [taken(everything(), rows)._replace(y=own) for rows, own in ((mine, labels[0]), (others, labels[1]))]
    found = by_loss(task(NET), model(mine, labels[0], 60), *sides)
    assert found.auc > 0.95
    assert found.hits[0] > 0.5
    never = by_loss(task(NET), model(strangers, labels[2], 60), *sides)
    # two groups of 100: a deviation of 0.041, so that 0.16 fails with probability 1e-4
    assert never.auc == pytest.approx(0.5, abs=0.16)


def test_real_labels_are_told_less_but_told() -> None:
    """After SlaugFL's ten epochs a device's model still knows its own images from others: twelve devices, 1,200 of each
    side.
    """
    members, others = [], []
    for device in range(12):
        rows = torch.arange(device * HELD, (device + 1) * HELD)
        found, on = model(rows, epochs=10, seed=device), task(NET)
        members.append(-losses(on, found, taken(everything(), rows)))
        others.append(-losses(on, found, taken(everything(), 1200 + torch.arange(HELD))))
    told = separation(torch.stack(members), torch.stack(others))
    assert told.low > 0.5


def test_a_ratio_knows_which_examples_are_hard() -> None:
    """Examples whose loss is high or low anyway: their own loss says little, its distance from the losses of models
    without them says much.
    """
    n, models = 400, 24
    level = 3 * keys.normal(keys.root(1), n)
    inside = keys.coin(keys.root(2), models * n, 0.5).reshape(models, n)
    odds = level + 2.0 * inside + 0.5 * keys.normal(keys.root(3), models * n).reshape(models, n)
    found = torch.nn.functional.softplus(-odds)  # the loss that has these log odds
    assert torch.allclose(confidence(found), odds, atol=1e-4)
    member = inside[0]
    by_ratio = above(found[0], found[1:], inside[1:])
    told = separation(by_ratio[member], by_ratio[~member])
    plain = separation(-found[0][member], -found[0][~member])
    # the best test has two normals 2/0.5 apart: 0.998, less what 23 shadows do not know
    assert told.auc > 0.98
    assert plain.auc < 0.75


def test_a_ratio_on_real_models() -> None:
    n, models = 200, 17
    rows = torch.arange(n)
    inside = keys.coin(keys.root(6), models * n, 0.5).reshape(models, n)
    found = [
        losses(task(NET), model(rows[seen], epochs=10, seed=i), taken(everything(), rows))
        for i, seen in enumerate(inside)
    ]
    told = []
    for target in range(models):
        rest = [i for i in range(models) if i != target]
        score = above(found[target], torch.stack([found[i] for i in rest]), inside[rest])
        told.append(
            (
                separation(score[inside[target]], score[~inside[target]]).auc,
                separation(-found[target][inside[target]], -found[target][~inside[target]]).auc,
            )
        )
    by_ratio, plain = (sum(column) / models for column in zip(*told, strict=True))
    assert by_ratio > plain + 0.02 > 0.52


# ---------------------------------------------------------------- classes


def test_shares_and_ranks_by_hand() -> None:
    table = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    assert shares(table).tolist() == [[0.25, 0.75, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    found = inferred(torch.tensor([[1.0, 0.0]]), torch.tensor([[30, 10]]))
    assert (float(found.total_variation), float(found.of_uniform), float(found.spearman)) == (0.25, 0.25, 1.0)
    a = (4 * keys.normal(keys.root(1), 60)).round().reshape(6, 10)
    b = a + keys.normal(keys.root(2), 60).reshape(6, 10)
    wanted = [spearmanr(x, y).statistic for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    assert spearman(a, b).tolist() == pytest.approx(wanted)
    assert spearman(torch.ones(1, 4), torch.arange(4.0)[None]).tolist() == [0.0]


def test_recall_tells_what_a_device_holds() -> None:
    """SlaugFL, IEEE TMC 2024: no label distribution is said to be disclosed. Twelve devices with two to four classes;
    and whose recall it is matters.
    """
    (x, y), rng = everything(), np.random.default_rng(1)
    probe = Examples(x[1300:], y[1300:])
    counts, recall = [], []
    for device in range(12):
        wanted = np.zeros(CLASSES, int)
        wanted[rng.choice(CLASSES, rng.integers(2, 5), replace=False)] = 1
        wanted *= rng.integers(3, 40, CLASSES)
        rows = torch.cat([torch.nonzero(y[:1300] == label)[:many, 0] for label, many in enumerate(wanted)])
        on = task(NET)
        recall.append(skill(on, trained(on, taken(everything(), rows), 10, keys.root(device)), probe).recall)
        counts.append(torch.from_numpy(wanted))
    found = inferred(torch.stack(recall), torch.stack(counts))
    assert float(found.spearman.mean()) > 0.8
    assert float(found.total_variation.mean()) < 0.5 * float(found.of_uniform.mean())
    exchanged = inferred(torch.stack(recall), torch.stack(counts).roll(5, 0))
    # 12 devices with 10 classes: a correlation by chance has a deviation of 1/3 each, of 0.1 in the mean
    assert abs(float(exchanged.spearman.mean())) < 0.4
    assert float(exchanged.total_variation.mean()) > float(found.total_variation.mean()) + 0.2
