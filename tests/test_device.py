"""A run on an accelerator: nothing of it is left on the processor, and every draw is the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from sordino import device, keys
from sordino.config import Experiment, validate
from sordino.engine.executor import check_between_machines, device_of
from sordino.errors import ConfigError
from sordino.privacy.readers import function_reader
from sordino.privacy.uplink.sensing import cosines, matrix
from sordino.runs import run
from tests.laws.cases import BY_NAME, CASES
from tests.laws.test_executors import paid
from tests.laws.traces import Trace, finished
from tests.pretended import DEVICE, LeftBehind, accelerator

QUICK = ("gaussian_gdp", "scaffold")
ONE_EACH = {str((case.algorithm["name"], case.uplink)): case.name for case in reversed(CASES)}  # algorithm and gate
# the dropout of its discriminator follows how a tensor lies in memory, which is another way there: another mask
TAKEN_APART = {"slaug_fl"}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Experiment], Trace]:
    """A run on the pretended accelerator."""

    def play(experiment: Experiment) -> Trace:
        monkeypatch.setattr(run, "device_of", lambda name: str(DEVICE))
        with accelerator():
            found = finished(experiment, tmp_path / "away")
        monkeypatch.undo()
        return found

    return play


def alike(name: str, executor: str = "auto") -> Experiment:
    return BY_NAME[name].experiment(engine={"executor": executor, "workers": 1, "precision": "fp32"})


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow)
        for n in sorted({*QUICK, "central", *ONE_EACH.values()})
    ],
)
def test_a_run_elsewhere_is_the_same_run(name: str, played: Callable[[Experiment], Trace], tmp_path: Path) -> None:
    """Its numbers are computed by the same processor here, so no byte of it may differ."""
    away, here = played(alike(name)), finished(alike(name), tmp_path / "here")
    if name in TAKEN_APART:
        assert [paid(entry) for entry in away.ledger] == [paid(entry) for entry in here.ledger]
    else:
        assert away == here


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, pytest.param("central", marks=pytest.mark.slow)])
def test_so_is_one_client_after_the_other(name: str, played: Callable[[Experiment], Trace], tmp_path: Path) -> None:
    assert played(alike(name, "loop")) == finished(alike(name, "loop"), tmp_path / "here")


def test_a_network_of_its_own_draws_begins_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that a constructor draws; and the broken twin, who lets the accelerator draw."""
    from sordino.tasks.architecture import Architecture

    built = Architecture(name="mlp", options={"hidden": 3}, inputs=(1, 4, 4), outputs=2)
    here = [value.tolist() for value in built.built(5).state_dict().values()]
    with accelerator(), device.on(str(DEVICE)):
        assert [value.tolist() for value in built.built(5).state_dict().values()] == here
        monkeypatch.setattr("sordino.tasks.architecture.drawing", nullcontext)
        with pytest.raises((LeftBehind, ConfigError)):
            built.built(5)


@pytest.mark.parametrize("where", ["sordino.engine.client_states.here", "sordino.keys.here"])
def test_what_is_left_behind_is_found(
    where: str, played: Callable[[Experiment], Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twins: rows, or drawn numbers, that nobody moves."""
    monkeypatch.setattr(where, lambda value: value)
    with pytest.raises(LeftBehind):
        played(alike("scaffold"))


def test_draws_are_the_same_everywhere() -> None:
    with accelerator(), device.on(str(DEVICE)):
        there = keys.uniform(5, 4), torch.zeros(2)
    assert all(one.device == DEVICE for one in there)
    assert there[0].tolist() == keys.uniform(5, 4).tolist()


def test_what_belongs_on_the_processor_stays_there() -> None:
    with accelerator(), device.on(str(DEVICE)), device.on(device.CPU):
        assert torch.zeros(2).device.type == keys.uniform(5, 4).device.type == "cpu"


def test_a_matrix_that_is_kept_lies_where_its_run_computes() -> None:
    """After a run on the processor one of the same process computes elsewhere, and the other way round."""
    here = matrix("gaussian", 3, 8, 0).phi, cosines(8)
    with accelerator(), device.on(str(DEVICE)):
        there = matrix("gaussian", 3, 8, 0).phi, cosines(8)
    assert all(one.device == DEVICE for one in there)
    assert [one.tolist() for one in there] == [one.tolist() for one in here]
    assert matrix("gaussian", 3, 8, 0).phi.device.type == cosines(8).device.type == "cpu"


def test_products_there_are_of_32_bits_and_repeatable() -> None:
    """As long as a run computes there; torch by itself lets a GPU's convolutions multiply in tf32, of 19 bits."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic
    with accelerator(), device.on(str(DEVICE)):
        assert (cudnn.allow_tf32, cudnn.deterministic) == (False, True)
    assert (cudnn.allow_tf32, cudnn.deterministic) == before == (True, False)


@pytest.mark.parametrize(
    ("name", "code"), [("mps", "device-without-float64"), ("abacus", "unknown-device"), ("xpu", "unknown-device")]
)
def test_other_devices_are_refused(name: str, code: str) -> None:
    with pytest.raises(ConfigError) as error:
        device_of(name)
    assert error.value.code == code


def test_an_accelerator_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert (device_of("auto"), device_of("cuda"), device_of("cuda:0")) == ("cuda", "cuda", "cuda:0")
    with pytest.raises(ConfigError, match="finds 1 such"):
        device_of("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == "cpu"
    with pytest.raises(ConfigError):
        device_of("cuda")


def test_a_misspelt_device_is_found_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        run.checked(validate({"engine": {"device": "cdua"}}), tmp_path / "run", dry=True)
    assert error.value.code == "unknown-device"


def test_one_thread_has_it() -> None:
    with pytest.raises(ConfigError) as error:
        validate({"engine": {"device": "cuda", "workers": 2}})
    assert error.value.code == "device-of-one-process"


def test_sites_and_hosts_have_none() -> None:
    with pytest.raises(ConfigError) as error:
        check_between_machines("cuda")
    assert error.value.code == "device-of-one-process"


def test_where_a_fork_does_not_differentiate_a_clean_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process knows of an accelerator, and has differentiated."""
    monkeypatch.setattr(function_reader, "_CANNOT_FORK", set[str]())
    torch.ones(2, requires_grad=True).sum().backward()
    apart = finished(BY_NAME["trainer"].experiment(), tmp_path / "run")
    assert {function_reader.NO_FORK} == function_reader._CANNOT_FORK
    read = {"name": "function", "process": "shared"}
    assert apart.model == finished(BY_NAME["trainer"].experiment(read=read), tmp_path / "shared").model
