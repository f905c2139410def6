"""Unsafe or impossible set-ups do not start: each is refused before anything is read or written, with its own code, a reason and a way out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from sordino import config, tree
from sordino.assemble import Parts, settle
from sordino.errors import SordinoError
from sordino.planning import Question
from sordino.privacy.sources import System
from sordino.tasks.task import Classification
from sordino.uplink import Uplink

ROOT = Path(__file__).parents[2]
BUDGET = "privacy={epsilon=4.0, delta=1e-5}"
CENTRAL = "uplink={client=[{name='clip', radius=1.0}], server=[{name='noise', neighbours='add_remove'}]}"
ALL = "uplink={client=[{name='clip', radius=1.0}], server=[{name='noise', neighbours='%s'}]%s}"

SET_UPS: list[tuple[str, list[str]]] = [
    ("one-step-only", ["algorithm.local_steps=2"]),
    ("one-step-only", ["algorithm={name='laplace', local_steps=2}"]),
    ("full-batch-only", ["algorithm.batch_size=16"]),
    ("full-batch-only", ["algorithm={name='gaussian_simple', batch_size=8}"]),
    ("client-momentum", ["algorithm.momentum=0.9"]),
    ("classic-gaussian-needs-small-epsilon", ["algorithm=gaussian_simple", "rounds=4", "privacy={epsilon=4.0}"]),
    ("classic-needs-budget", ["algorithm=fedavg", "read={name='noisy_gradient', clip=1.0, law='gaussian_classic', multiplier=5.0}", "algorithm.batch_size=full", "privacy={}"]),
    ("laplace-needs-l1-clip", ["algorithm=fedavg", "algorithm.batch_size=full", "read={name='noisy_gradient', clip=1.0, law='laplace', clip_order=2}", BUDGET]),
    ("minibatch-under-full-batch-bound", ["algorithm=fedavg", "read={name='noisy_gradient', clip=1.0}", BUDGET]),
    ("minibatch-under-full-batch-bound", ["algorithm=fedavg", "read={name='noisy_gradient', clip=1.0}", "algorithm.local_steps=1", BUDGET]),
    ("poisson-needs-add-remove", ["algorithm=fedavg", "algorithm.batch_size=full", "read={name='noisy_gradient', clip=1.0, sampling='poisson', rate=0.1}", BUDGET]),
    ("fixed-rows-add-remove", ["algorithm=fedavg", "read={name='noisy_gradient', clip=1.0, sampling='fixed_batches', neighbours='add_remove'}", BUDGET]),
    ("fixed-batches-need-epochs", ["algorithm=fedavg", "algorithm.local_steps=3", "read={name='noisy_gradient', clip=1.0, sampling='fixed_batches'}", BUDGET]),
    ("noise-not-positive", ["algorithm.multiplier=0.0", "privacy={}"]),
    ("noise-not-positive", ["algorithm.multiplier=-1.0", "privacy={}"]),
    ("noise-not-positive", ["algorithm=fedavg", "uplink={client=[{name='clip', radius=1.0}, {name='noise', multiplier=0.0}]}", "privacy={}"]),
    ("unbounded-sensitivity", ["algorithm=fedavg", "uplink={client=[{name='noise'}]}", BUDGET]),
    ("unbounded-sensitivity", ["algorithm=fedavg", "uplink={server=[{name='noise', neighbours='zero_out'}]}", BUDGET]),
    ("noise-before-clip", ["algorithm=fedavg", "uplink={client=[{name='clip', radius=2.0}, {name='noise'}, {name='clip', radius=1.0}]}", BUDGET]),
    ("local-noise-add-remove", ["algorithm=fedavg", "uplink={client=[{name='clip', radius=1.0}, {name='noise', neighbours='add_remove'}]}", BUDGET]),
    ("realised-denominator", ["algorithm=fedavg", ALL % ("zero_out", ", denominator='received'"), BUDGET]),
    ("two-noises", ["algorithm=fedavg", "uplink={client=[{name='clip', radius=1.0}, {name='noise'}], server=[{name='noise'}]}", BUDGET]),
    ("two-promises-one-budget", ["algorithm=whole_update", "algorithm.batch_size=full", "read={name='noisy_gradient', clip=1.0}", BUDGET]),
    ("add-remove-needs-poisson", ["algorithm=fedavg", CENTRAL, BUDGET]),
    ("add-remove-needs-poisson", ["algorithm=fedavg", CENTRAL, "cohort={name='random', size=5}", BUDGET]),
    ("poisson-needs-add-remove", ["algorithm=fedavg", ALL % ("zero_out", ""), "cohort={name='poisson', rate=0.5}", BUDGET]),
    ("server-stage-not-noise", ["algorithm=fedavg", "uplink={server=[{name='clip', radius=1.0}]}", "privacy={}"]),
    ("unknown-denominator", ["algorithm=fedavg", "uplink={denominator='guess'}", "privacy={}"]),
    ("budget-without-mechanism", ["algorithm=fedavg", BUDGET]),
    ("budget-without-mechanism", ["algorithm.multiplier=1.0", BUDGET]),
    ("mechanism-without-budget", ["algorithm=gaussian_gdp", "privacy={}"]),
    ("sizes-not-public", ["privacy={epsilon=4.0, public_sizes=false}"]),
    ("delta-too-large", ["privacy={epsilon=4.0, delta=0.01}"]),
    ("delta-too-large", ["algorithm=whole_update", "privacy={epsilon=4.0, delta=0.05}"]),
    ("delta-out-of-range", ["privacy={epsilon=4.0, delta=0.0}"]),
    ("delta-out-of-range", ["privacy={epsilon=4.0, delta=-1e-5}"]),
    ("delta-out-of-range", ["privacy={epsilon=4.0, delta=1.5}"]),
    ("epsilon-not-positive", ["privacy={epsilon=0.0}"]),
    ("epsilon-not-positive", ["privacy={epsilon=-3.0}"]),
    ("wrong-type", ["privacy={epsilon=nan}"]),
    ("wrong-type", ["privacy={epsilon=inf}"]),
    ("wrong-type", ["privacy={epsilon=true}"]),
    ("wrong-type", ["privacy={epsilon='four'}"]),
    ("step-too-large-for-convexity", ["algorithm={name='convex_stable', radius=4.0, lr=1.0}", BUDGET]),
    ("convex-needs-bounded-logistic", ["algorithm={name='convex_stable', radius=4.0}", BUDGET]),
    ("convex-needs-bounded-logistic", ["algorithm={name='convex_stable', radius=4.0}", "model={name='logistic', radius=5.0}", BUDGET]),
    ("radius-too-small", ["algorithm={name='convex_stable', radius=0.5, lr=0.1}", BUDGET]),
    ("clip-not-positive", ["algorithm.clip=0.0"]),
    ("clip-not-positive", ["algorithm.clip=-1.0"]),
    ("clip-not-positive", ["algorithm=fedavg", "uplink={client=[{name='clip', radius=-1.0}]}", "privacy={}"]),
    ("rate-out-of-range", ["algorithm={name='gaussian_sampled', rate=0.0}"]),
    ("rate-out-of-range", ["cohort={name='poisson', rate=1.5}"]),
    ("cohort-larger-than-population", ["cohort={name='round_robin', size=21}"]),
    ("ratio-not-positive", ["privacy={epsilon=4.0, schedule={name='geometric', ratio=-1.0}}"]),
    ("shares-exceed-the-budget", ["rounds=2", "privacy={epsilon=4.0, schedule={name='list', values=[3.0, 3.0], absolute=true}}"]),
    ("shares-too-few", ["rounds=3", "privacy={epsilon=4.0, schedule={name='list', values=[1.0, 1.0]}}"]),
    ("adaptive-out-of-range", ["privacy={epsilon=4.0, schedule={name='adaptive', start=2.0}}"]),
    ("budget-below-conversion", ["algorithm={name='gaussian_sampled', rate=0.5}", "privacy={epsilon=0.001, delta=1e-9, schedule={name='linear_back'}}"]),
    ("no-partial-work", ["stragglers={share=0.5, policy='keep'}"]),
    ("share-out-of-range", ["stragglers.share=1.5"]),
]  # fmt: skip


def start(overrides: list[str]) -> None:
    """Everything `sordino run` does before it makes a folder."""
    parts = Parts(settle(config.load(None, overrides)))
    assert parts.plan is not None
    parts.federation(":memory:", "refusals")


def _single_uploads() -> None:
    from sordino.privacy.stages import Clip, Noise

    uplink = Uplink(client=(Clip(1.0),), server=(Noise(neighbours="zero_out"),))
    zero = {"w": torch.zeros(2)}
    received = uplink.receive({0: zero}, zero, [1.0], 1.0, 1.0, System())
    assert tree.size(received.mean) == 2
    _ = received.each


def _batch_norm() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    Classification(net, name="mine", shape=(4,), mean=(0.0,), std=(1.0,), image=False)


CALLS: list[tuple[str, Callable[[], object]]] = [
    ("aggregate-only", _single_uploads),
    ("batch-norm", _batch_norm),
    ("noise-scale-not-positive", lambda: System().gaussian(torch.zeros(3), float("inf"))),
    ("delta-too-large", lambda: Question(3.0, 1e-3, "client", 1000, 100, 100)),
]

# refused deeper down, with tests of their own
ELSEWHERE = {
    "budget-out-of-reach": "tests/test_calibrate.py",
}


@pytest.mark.parametrize(("code", "overrides"), SET_UPS, ids=[f"{code}-{i}" for i, (code, _) in enumerate(SET_UPS)])
def test_set_ups_that_do_not_start(
    code: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SordinoError) as refused:
        start(overrides)
    error = refused.value
    assert error.code == code
    assert error.what
    assert error.why or error.fix
    assert len(str(error).splitlines()) <= 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "call"), CALLS, ids=[code for code, _ in CALLS])
def test_calls_that_are_refused(code: str, call: Callable[[], object]) -> None:
    with pytest.raises(SordinoError) as refused:
        call()
    assert refused.value.code == code


SOUND = [
    [],
    ["algorithm=fedavg"],
    ["algorithm=whole_update", BUDGET],
    ["algorithm=fedavg", CENTRAL, "cohort={name='poisson', rate=0.5}", "privacy={epsilon=8.0}"],
    ["algorithm=gaussian_simple", "algorithm.checked=true", "rounds=4", "privacy={epsilon=4.0}"],
    ["algorithm={name='noisy_steps', local_epochs=2, batch_size=8}", BUDGET],
]


@pytest.mark.parametrize("overrides", SOUND, ids=str)
def test_sound_neighbours_of_refused_set_ups_start(overrides: list[str]) -> None:
    """The control: a check that refuses everything would pass the tests above."""
    start(overrides)


def unsound_codes() -> dict[str, str]:
    found = {}
    for path in sorted((ROOT / "sordino").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UnsoundGuarantee":
                code = next(k.value for k in node.keywords if k.arg == "code")
                assert isinstance(code, ast.Constant), path
                found[str(code.value)] = path.name
    return found


def test_every_refusal_of_an_unsound_guarantee_is_in_a_table() -> None:
    tabled = {code for code, _ in SET_UPS} | {code for code, _ in CALLS} | set(ELSEWHERE)
    assert set(unsound_codes()) - tabled == set()
    for code, file in ELSEWHERE.items():
        assert re.search(rf"[\"']{code}[\"']", (ROOT / file).read_text()), f"{code} is not in {file}"


def test_there_are_enough_of_them() -> None:
    assert len({code for code, _ in [*SET_UPS, *CALLS]}) >= 30
