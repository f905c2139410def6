"""A training function of the user's own: what it is given, what it may return, and what is promised."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino
from sordino import keys, tree
from sordino.algorithms.algorithm import KEEPS
from sordino.algorithms.fedavg import Server
from sordino.algorithms.trainer import ALONE, Trainer
from sordino.errors import SordinoError
from sordino.planning.planner import Planner
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.function_reader import PASSED, FunctionReader
from sordino.results import Result
from sordino.runs.simulation import simulated
from sordino.types import Examples, Grant
from sordino.user_code import lent
from tests.helpers import trainers
from tests.laws.cases import BY_NAME, CENTRAL, FIVE_STEPS

OF = "tests.helpers.trainers:sgd"
SMALL: dict[str, Any] = {"rounds": 1, "partition": {"scheme": "iid", "clients": 2}, "privacy": {}}


def trained(function: Callable[..., object], rows: int = 6, client: int = 0, **more: Any) -> dict[str, Tensor]:
    """What a client uploads in round 3 of a run with this function, on the rows of the digits."""
    parts = simulated(BY_NAME["fedavg"].experiment(**more))
    task, shard = parts.setup.task, parts.site("check", range(3)).shards[client]
    few, down = Examples(shard.x[:rows], shard.y[:rows]), Server(task.init(0), torch.tensor(3))
    trainer = Trainer("session:f")
    with lent({"f": function}):
        opened = trainer.read.open(few, Grant(0, rows, rows, Counter(0)), task)
        return trainer.local(task, down, (), opened, keys.root(7))[0].delta


def flat(result: Result) -> Tensor:
    """All numbers of a model, by their names: a file does not keep an order."""
    return tree.flat(dict(sorted(result.model.items())))


def refusal(function: Callable[..., object], **more: Any) -> SordinoError:
    with pytest.raises(SordinoError) as refused:
        trained(function, **more)
    return refused.value


# what it is given ----------------------------------------------------------------------------------------------------


def test_it_is_given_the_network_the_rows_and_the_round() -> None:
    def train(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        assert model.training
        assert isinstance(model[1], nn.Linear)  # type: ignore[index]
        assert rows.x.shape == (6, 1, 8, 8)
        assert (rows.x.dtype, rows.y.dtype, rows.x.requires_grad) == (torch.float32, torch.int64, False)
        assert round == 3
        return model

    assert not any(value.any() for value in trained(train).values())


def test_it_is_given_the_weights_that_were_sent() -> None:
    """They are in the network, and what it returns is compared with them."""

    def train(model: nn.Module, rows: Examples, round: int) -> dict[str, Tensor]:
        return {name: value + 1 for name, value in model.state_dict().items()}

    for value in trained(train).values():
        torch.testing.assert_close(value, torch.ones_like(value))


def test_draws_follow_the_run_the_round_and_the_client() -> None:
    import random

    def train(model: nn.Module, rows: Examples, round: int) -> dict[str, Tensor]:
        drawn = torch.rand(()) + np.random.rand() + random.random()
        return {name: value + drawn for name, value in model.state_dict().items()}

    torch.manual_seed(1)
    one = trained(train)
    torch.manual_seed(2)
    assert tree.norm(one) > 0
    assert tree.norm(tree.sub(one, trained(train))) == 0


def test_dropout_drops_in_the_function() -> None:
    def train(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        x = torch.ones(4, 20, 3, 3)
        dropped = [one for one in model if type(one).__name__ == "Dropout"]  # type: ignore[attr-defined]
        whole, each = (one(x) for one in dropped)
        assert 0 < int((whole == 0).sum()) < whole.numel()
        assert (whole.flatten(2).std(2) == 0).all()  # feature maps, dropped as a whole
        assert 0 < int((each == 0).sum()) < each.numel()
        assert (each.flatten(2).std(2) > 0).any()
        model.eval()
        assert torch.equal(dropped[0](x), x)
        return model

    trained(train, model={"name": "cnn"}, data={"source": "digits", "side": 16})


@pytest.mark.slow
def test_it_trains_as_fedavg_does(tmp_path: Path) -> None:
    """The same steps in a user's own words. Control: one step more is another model."""
    runs = {
        "own": {"algorithm": {"name": "trainer", "of": OF}},
        "fedavg": {"algorithm": FIVE_STEPS},
        "more": {"algorithm": FIVE_STEPS | {"local_steps": 4}},
    }
    found = {
        name: sordino.run(
            BY_NAME["fedavg"].experiment(**changes, rounds=1).model_dump(exclude_unset=True), out=tmp_path / name
        )
        for name, changes in runs.items()
    }
    models = {name: flat(result) for name, result in found.items()}
    assert (models["own"] - models["fedavg"]).norm() < 1e-6 * models["fedavg"].norm()
    assert (models["own"] - models["more"]).norm() > 1e-3 * models["fedavg"].norm()


# what it returns -----------------------------------------------------------------------------------------------------

RETURNED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "nothing": (lambda model: None, "nothing"),
    "a number": (lambda model: 3.0, "float"),
    "another network": (lambda model: nn.Linear(2, 2), "does not have"),
    "another name": (lambda model: {"weight": np.zeros(3)}, "does not have"),
    "a part": (lambda model: {"1.bias": np.zeros(10)}, "no 1.weight"),
    "another shape": (lambda model: {**model.state_dict(), "1.bias": np.zeros(11)}, "11"),
    "half precision": (lambda model: model.half(), "float16"),
    "whole numbers": (lambda model: {**model.state_dict(), "1.bias": np.zeros(10, int)}, "int64"),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("case", RETURNED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    returned, said = RETURNED[case]
    error = refusal(lambda model, rows, round: returned(model))
    assert error.code == "trainer-result"
    assert said in error.what
    assert error.why
    assert error.fix


def test_arrays_of_numpy_are_rounded_to_the_model() -> None:
    found = trained(lambda model, rows, round: {n: v.double().numpy() + 0.5 for n, v in model.state_dict().items()})
    assert all(value.dtype == torch.float32 and torch.allclose(value, torch.tensor(0.5)) for value in found.values())


class Frozen(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
        self[1].requires_grad_(False)


def test_what_is_frozen_stays() -> None:
    """A change of it would be lost without a word."""

    def thaws(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        for value in model.parameters():
            value.data += 1
        return model

    error = refusal(thaws, model={"name": f"{__name__}:Frozen"})
    assert (error.code, "1.weight" in error.what or "1.bias" in error.what) == ("trainer-result", True)
    assert trained(trainers.sgd, model={"name": f"{__name__}:Frozen"}).keys() == {"2.weight", "2.bias"}


def test_batch_norm_sends_its_statistics_and_keeps_its_counter() -> None:
    def passes(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        model(rows.x)
        return model

    found = trained(passes, model={"name": "resnet18", "norm": "batch", "width": 4})
    assert not any("num_batches_tracked" in name for name in found)
    assert {name for name, value in found.items() if value.any()} == {name for name in found if "running" in name}


@pytest.mark.slow
def test_numbers_that_are_not_finite_count_as_zero_behind_a_clip(tmp_path: Path) -> None:
    def broken(model: nn.Module, rows: Examples, round: int) -> dict[str, Tensor]:
        return {name: value + float("nan") for name, value in model.state_dict().items()}

    clipped = {"client": [{"name": "clip", "radius": 1.0}]}
    run = sordino.run(train=broken, uplink=clipped, out=tmp_path / "clipped", **SMALL)
    begun = simulated(BY_NAME["fedavg"].experiment()).setup.task.init(keys.root(0))
    assert all(value.isfinite().all() for value in run.model.values())
    assert begun.keys() == run.model.keys()
    with pytest.raises(SordinoError) as refused:
        sordino.run(train=broken, out=tmp_path / "bare", **SMALL)
    assert refused.value.code != "own-code"


def test_an_error_is_told_with_its_place() -> None:
    def fails(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        raise KeyError("no such layer")

    error = refusal(fails)
    assert error.code == "own-code"
    assert "no such layer" in error.what
    assert Path(__file__).name in error.what


def test_a_process_that_ends_is_told() -> None:
    error = refusal(lambda model, rows, round: os._exit(3))
    assert error.code == "trainer-ended"
    assert "3" in error.what


# what it remembers ---------------------------------------------------------------------------------------------------


def play(of: str, folder: Path, **more: Any) -> Tensor:
    own = {"name": "trainer", "of": f"tests.helpers.trainers:{of}"}
    made = BY_NAME["fedavg"].experiment(**{"rounds": 1, "algorithm": own, **more})
    return flat(sordino.run(made.model_dump(exclude_unset=True), out=folder))


@pytest.fixture
def others_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file is this process's input, and /dev/null in the place of an empty one."""
    (file := tmp_path / "null").write_text("of others")
    monkeypatch.setattr(os, "devnull", str(file))
    own, mine = os.dup(0), os.open(file, os.O_RDONLY)
    os.dup2(mine, 0)
    yield
    os.dup2(own, 0)
    os.close(own)
    os.close(mine)


def test_it_has_nothing_to_read(others_wrote: None) -> None:
    """What one client has read of a file the next has not, whose process shares its place in it."""
    assert trained(trainers.reads)
    assert os.read(0, 3) == b"of "


@pytest.mark.slow
def test_nothing_of_one_client_reaches_the_next(tmp_path: Path) -> None:
    """Twin: a function that goes on with the rows of the client before. In processes of its own it has none; in a shared
    one it has, and the receipt rests on its not doing so."""
    shared = {"read": {"name": "function", "process": "shared"}}
    honest, apart = play("sgd", tmp_path / "honest"), play("remembers", tmp_path / "apart")
    assert torch.equal(honest, apart)
    trainers._SEEN.clear()
    together = play("remembers", tmp_path / "together", **shared)
    trainers._SEEN.clear()
    assert (together - honest).norm() > 1e-3 * honest.norm()
    assert torch.equal(play("sgd", tmp_path / "shared", **shared), honest)


# what is promised ----------------------------------------------------------------------------------------------------


def promised(only: tuple[int, ...] | None = None, **more: Any) -> dict[tuple[str, str], Any]:
    planned = simulated(BY_NAME["trainer_whole_update"].experiment(**more))
    return {(row.unit, row.adversary): row for row in Planner(planned.setup, only).guarantees}


def test_an_example_has_the_row_of_its_client() -> None:
    """Noise at the client: replacing one example moves no more than replacing all of them."""
    rows = promised()
    for adversary in ("server", "participants", "public"):
        client, example = rows["client", adversary], rows["example", adversary]
        assert client.epsilon == pytest.approx(4.0, rel=1e-3)
        assert example.epsilon == client.epsilon
        assert "implied by the client row" in example.because


def test_under_central_noise_an_example_costs_two_steps_of_its_client() -> None:
    """Its client counts for nothing, and then with another example; the server sees uploads as they are."""
    rows = promised(uplink=CENTRAL, cohort={"name": "everyone"})
    assert not rows["client", "server"].finite
    assert not rows["example", "server"].finite
    assert PASSED in rows["example", "server"].because
    client, example = rows["client", "public"], rows["example", "public"]
    assert client.epsilon == pytest.approx(4.0, rel=1e-3)
    assert client.epsilon < example.epsilon < float("inf")
    assert "implied by the client row (group privacy)" in example.because


def test_without_noise_nothing_is_promised() -> None:
    planned = simulated(BY_NAME["trainer"].experiment())
    assert not any(row.finite for row in Planner(planned.setup).guarantees)


def test_the_condition_says_what_the_process_leaves_open() -> None:
    for process, text in (("fresh", ALONE), ("shared", KEEPS)):
        for row in promised(read={"name": "function", "process": process}).values():
            assert row.status == "conditional"
            assert text.format(OF) in row.because
            assert (KEEPS if process == "fresh" else ALONE).format(OF) not in row.because
    alone = promised((1,))["client", "server"]
    assert (alone.status, ALONE.format(OF) in alone.because) == ("proved", False)


def test_a_network_of_ones_own_keeps_its_condition() -> None:
    """It is in this process, too: evaluation and personal models show it rows."""
    for row in promised(model={"name": f"{__name__}:Frozen"}).values():
        assert {ALONE.format(OF), KEEPS.format(f"{__name__}:Frozen")} <= {*row.because}


@pytest.mark.parametrize("read", ["open", "noisy_gradient", "responses"])
def test_other_readers_are_refused(read: str) -> None:
    settings = {"noisy_gradient": {"clip": 1.0}, "responses": {"epsilon": 1.0}}.get(read, {})
    made = BY_NAME["trainer"].experiment(read={"name": read, **settings}, privacy={"epsilon": 4.0, "delta": 1e-5})
    with pytest.raises(SordinoError) as refused:
        _ = simulated(made).setup.plan
    assert refused.value.code == "reader-does-not-give"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"algorithm": {"name": "trainer"}}, "trainer-without-function"),
        ({"algorithm": {"name": "trainer", "of": "tests.helpers.trainers:nowhere"}}, "own-import"),
        ({"algorithm": {"name": "trainer", "of": "tests.helpers.trainers:LR"}}, "trainer-not-a-function"),
        ({"algorithm": {"name": "trainer", "of": "torch.nn:Linear"}}, "trainer-not-a-function"),
        ({"loss": {"name": f"{__name__}:Frozen"}}, "loss-of-the-algorithm"),
        ({"data": {"source": "digits", "augment": "crop_flip"}}, "augment-of-the-trainer"),
        ({"algorithm": {"name": "fedavg"}, "read": {"name": "function"}}, "reader-does-not-give"),
    ],
)
def test_it_is_refused_before_anything_is_written(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    made = {"algorithm": {"name": "trainer", "of": OF}, **SMALL, **changes}
    with pytest.raises(SordinoError) as refused:
        sordino.run(made, out=tmp_path / "run")
    assert refused.value.code == code
    assert not (tmp_path / "run").exists()


def test_a_fresh_process_needs_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    task = simulated(BY_NAME["trainer"].experiment()).setup.task
    monkeypatch.setattr("sys.platform", "darwin")
    FunctionReader("shared").check(Trainer(OF).work, task)
    with pytest.raises(SordinoError) as refused:
        FunctionReader().check(Trainer(OF).work, task)
    assert refused.value.code == "no-fresh-process"


def test_an_attack_s_control_is_handed_the_rows_too() -> None:
    """The same run without protection still asks for rows."""
    from sordino.audits.replay import UnprotectedRounds

    bare = UnprotectedRounds(simulated(BY_NAME["trainer"].experiment()))
    assert isinstance(bare.algorithm.read, FunctionReader)
    assert bare.round().together is not None


# in Python -----------------------------------------------------------------------------------------------------------


class Loop:
    """A callable object."""

    def __call__(self, model: nn.Module, rows: Examples, round: int) -> nn.Module:
        return trainers.sgd(model, rows, round)


@pytest.mark.slow
def test_it_is_a_keyword_in_python(tmp_path: Path) -> None:
    named = sordino.run(train=trainers.sgd, out=tmp_path / "named", **SMALL)
    assert f'of = "{OF}"' in (tmp_path / "named" / "experiment.toml").read_text()
    for name, function in {"local": lambda *given: trainers.sgd(*given), "object": Loop()}.items():
        result = sordino.run(train=function, out=tmp_path / name, **SMALL)
        assert torch.equal(flat(result), flat(named))
        assert "session:" in (tmp_path / name / "experiment.toml").read_text()
        assert sordino.resume(tmp_path / name, train=function).accuracy == named.accuracy


def test_a_receipt_is_verified_without_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone.py").write_text("def train(model, rows, round):\n    return model\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = BY_NAME["trainer_whole_update"].experiment(algorithm={"name": "trainer", "of": "gone:train"}, rounds=1)
    sordino.run(made.model_dump(exclude_unset=True), out="run")
    (tmp_path / "gone.py").unlink()
    monkeypatch.delitem(sys.modules, "gone")
    verdict = sordino.verify("run")
    assert verdict.wrong == []
    assert not any("own code" in said for said in verdict.unseen)
    assert "every release is the one that the experiment plans" in verdict.agreed
