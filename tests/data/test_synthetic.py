"""synthetic(alpha, beta): what Li et al. (MLSys 2020) say of it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sordino import run
from sordino.data import dataset, sources
from sordino.data.dataset import DrawnRows
from sordino.data.sources import CLASSES, FEATURES, device_examples, truth


def test_devices_have_sizes_a_tail_and_tests_of_their_own() -> None:
    found = sources.synthetic(1.0, 1.0, clients=200, seed=4)
    sizes = np.bincount(found.train.group) + np.bincount(found.test.group, minlength=200)
    assert sizes.min() >= 50
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.25)
    assert sizes.max() > 1500
    assert (np.bincount(found.train.group) == np.floor(0.9 * sizes)).mean() > 0.95
    assert found.train.x.shape[1] == FEATURES
    assert found.classes == CLASSES
    assert sources.synthetic(seed=4, largest=80, clients=50).train.group is not None
    assert np.bincount(sources.synthetic(seed=4, largest=80, clients=50).train.group).max() <= 72


def test_labels_are_what_the_truth_of_a_device_says_and_variances_fall() -> None:
    rng = np.random.default_rng(1)
    pooled = []
    for _ in range(20):
        device = truth(1.0, 1.0, rng)
        x, y = device_examples(device, 1000, rng)
        assert np.array_equal(y, np.argmax(x @ device.w + device.b, axis=1))
        pooled.append(x - device.v)
    variances = np.concatenate(pooled).var(0)
    assert variances == pytest.approx(np.arange(1, FEATURES + 1) ** -1.2, rel=0.05)  # 20,000 draws: 5 standard errors


def test_alpha_sets_how_much_truths_differ_and_beta_inputs() -> None:
    def spread(alpha: float, beta: float) -> tuple[float, float]:
        rng = np.random.default_rng(7)
        devices = [truth(alpha, beta, rng) for _ in range(400)]
        return float(np.std([d.w.mean() for d in devices])), float(np.std([d.v.mean() for d in devices]))

    assert spread(0.0, 0.0) == pytest.approx((1 / np.sqrt(600), 1 / np.sqrt(60)), rel=0.15)
    assert spread(1.0, 0.0)[0] == pytest.approx(1.0, rel=0.15)
    assert spread(0.0, 2.0)[1] == pytest.approx(2.0, rel=0.15)


def test_the_iid_set_has_one_truth() -> None:
    """What is learned from half of the devices holds for the others; without iid it does not."""

    def error(iid: bool) -> float:
        found = sources.synthetic(1.0, 1.0, clients=10, iid=iid, largest=400, seed=2)
        x, first = np.hstack([found.train.x, np.ones((len(found.train.x), 1))]), found.train.group < 5
        least, *_ = np.linalg.lstsq(x[first], np.eye(CLASSES)[found.train.y[first]], rcond=None)
        return float(((x[~first] @ least).argmax(1) != found.train.y[~first]).mean())

    assert error(iid=True) < 0.4 < 0.7 < error(iid=False)


def test_the_seed_is_all_that_is_random() -> None:
    one, again, other = (sources.synthetic(seed=s).fingerprint() for s in (1, 1, 2))
    assert one == again != other


def test_rows_lie_in_memory_once() -> None:
    """Of a hundred thousand devices a second copy would not fit."""
    tracemalloc.start()
    try:
        found = sources.synthetic(clients=400, largest=300)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    held = sum(column.nbytes for split in (found.train, found.test) for column in split)
    assert peak < 1.2 * held


@pytest.mark.one_fast
@pytest.mark.parametrize("iid", [False, True])
def test_rows_that_are_drawn_again_are_the_rows_that_were_held(iid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    held = sources.synthetic(clients=40, seed=3, largest=90, iid=iid)
    monkeypatch.setattr(sources, "HELD", 0)
    drawn = sources.synthetic(clients=40, seed=3, largest=90, iid=iid)
    assert isinstance(drawn.train.x, DrawnRows)
    assert (np.asarray(drawn.train.x) == held.train.x).all()
    for rows in (np.array([5, 0, 700, 700, 3]), np.array([], np.int64), slice(100, 400)):
        assert (drawn.train.x[rows] == held.train.x[rows]).all()
    for rows in (np.array([-1]), np.array([len(drawn.train.x)]), np.ones(len(drawn.train.x), bool)):
        with pytest.raises(IndexError, match="by their numbers"):
            drawn.train.x[rows]
    assert all((getattr(drawn.train, part) == getattr(held.train, part)).all() for part in ("y", "group"))
    assert (drawn.test.x == held.test.x).all()
    assert drawn.fingerprint(b"key") == held.fingerprint(b"key")
    monkeypatch.setattr(dataset, "AT_ONCE", 7)
    assert drawn.fingerprint(b"key") == held.fingerprint(b"key") != drawn.fingerprint(b"other")


def test_a_run_on_rows_that_are_drawn_again_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ('data={source="synthetic", clients=12, largest=60}', "rounds=2", "model.name=logistic", "algorithm=fedavg")
    run(None, *words, "privacy={}", "partition={scheme='natural'}", out=tmp_path / "held")
    monkeypatch.setattr(sources, "HELD", 0)
    run(None, *words, "privacy={}", "partition={scheme='natural'}", out=tmp_path / "drawn")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("held", "drawn")]
    assert models[0] == models[1]


def test_of_many_devices_no_input_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "HELD", 0)
    tracemalloc.start()
    try:
        found = sources.synthetic(clients=500, seed=1, largest=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    inputs = len(found.train.x) * FEATURES * 4
    assert peak < inputs / 2  # labels, owners, test rows and states
