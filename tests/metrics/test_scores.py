"""Scores against scikit-learn, where no class is missing; what is missing by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from sordino import config
from sordino.errors import ConfigError
from sordino.metrics.scores import auroc, calibration_error, confusion, f1
from sordino.runs.simulation import simulated

BASE = {"data": {"train": 60, "test": 40}, "partition": {"scheme": "iid", "clients": 2}, "privacy": {}}
LOCAL = {"name": "fedavg", "lr": 0.1}
ALL = ["auroc", "f1", "calibration_error", "confusion"]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_those_of_another_library(classes: int, ties: bool) -> None:
    rng = np.random.default_rng(classes)
    p, y = rng.dirichlet(np.ones(classes), 200), np.arange(200) % classes
    if ties:
        p = np.round(p * 4) + 1
        p /= p.sum(1, keepdims=True)
    wanted = metrics.roc_auc_score(y, p[:, 1]) if classes == 2 else metrics.roc_auc_score(y, p, multi_class="ovr")
    assert auroc(p, y) == pytest.approx(wanted)
    assert f1(p, y) == pytest.approx(metrics.f1_score(y, p.argmax(1), average="macro"))
    assert np.array_equal(confusion(p, y), metrics.confusion_matrix(y, p.argmax(1)))


def test_a_score_that_nothing_decides_is_none_and_absent_classes_are_left_out() -> None:
    p, y = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]]), np.array([0, 0])
    assert auroc(p, y) is None
    assert f1(p, y) == 1
    assert auroc(p, np.array([0, 1])) == 1  # the third class is nobody's


def test_calibration_is_the_gap_between_being_sure_and_being_right() -> None:
    sure = np.tile([0.9, 0.1], (10, 1))
    assert calibration_error(sure, np.array([0] * 9 + [1])) == pytest.approx(0)
    assert calibration_error(sure, np.array([0] * 5 + [1] * 5)) == pytest.approx(0.4)
    both = np.array([[0.9, 0.1], [0.6, 0.4]])  # gaps of two bins do not cancel
    assert calibration_error(both, np.array([1, 0])) == pytest.approx((0.9 + 0.4) / 2)


def test_what_is_asked_for_stands_in_the_row_and_nothing_else_changes() -> None:
    made = config.validate(BASE | {"algorithm": LOCAL, "evaluation": {"scores": ALL}})
    plain = config.validate(BASE | {"algorithm": LOCAL})
    found, without = (
        parts.evaluation().evaluator(parts.setup.task.init(parts.setup.key))
        for parts in (simulated(made), simulated(plain))
    )
    assert found.confusion is not None
    counts = np.array(found.confusion)
    assert counts.sum() == 40
    assert np.trace(counts) / 40 == pytest.approx(found.accuracy)
    assert found.beside(auroc=None, f1=None, calibration_error=None, confusion=None) == without
    assert not {*ALL} & without.to_json().keys()


def test_scores_of_what_has_no_classes_or_many_models_are_refused() -> None:
    asked = {"evaluation": {"scores": ["auroc"]}, "algorithm": LOCAL, "privacy": {}}
    quadratic = {"data": {"source": "quadratic"}, "partition": {"scheme": "natural"}}
    own = BASE | {"evaluation": {"scores": ["auroc"], "personal": ["finetune"]}, "algorithm": LOCAL}
    for table, code in ((asked | quadratic, "score-of-another-task"), (own, "scores-of-one-model")):
        with pytest.raises(ConfigError) as refusal:
            simulated(config.validate(table)).evaluation()
        assert refusal.value.code == code
