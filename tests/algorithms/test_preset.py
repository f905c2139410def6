"""Presets: what may be set is what their base takes, beside what they take themselves; what a promise fixes is not, and
what would break a bound is refused whatever setting breaks it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sordino import algorithms, config
from sordino.algorithms import algorithm_named, all_algorithms, fedavg
from sordino.algorithms.client_noise import gaussian_gdp, laplace, noisy_steps
from sordino.algorithms.cuag_pfl import cuag_pfl
from sordino.algorithms.dp_prox import dp_fedavg, dp_prox, dp_sgd
from sordino.algorithms.dp_scaffold import dp_scaffold
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.lc_fl import lc_fl
from sordino.algorithms.optional import RequestsClients
from sordino.algorithms.phases import Phased
from sordino.algorithms.preset import Preset, preset
from sordino.algorithms.udp import WholeModel, udp
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.runs.forecast import Forecast
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.synthesis.slaug import slaug_fl
from sordino.synthesis.slaug.prepare import Train
from sordino.synthesis.slaug.training import Calibrated
from tests.laws.cases import CASES

PRESETS = {name: made for name, made in all_algorithms().items() if isinstance(made, Preset)}
# what a method decides itself: every field of its base that is missing in what may be set
DECIDED = {
    "dp_sgd": {"local_steps", "local_epochs", "batch_size"},
    "convex_stable": {"local_epochs", "batch_size", "lr_decay", "lr_decay_per", "weight_decay", "momentum", "most_grad"},
    "cuag_pfl": {"local_epochs", "server_lr"},
    "prifedsync": {"local_epochs", "server_lr"},
    "slaug_fl": {"local_steps"},
}  # fmt: skip
ONE_STEP = ("laplace", "gaussian_simple", "gaussian_gdp", "gaussian_sampled")


def trained(made: Any) -> Any:
    return made.training if isinstance(made, Phased) else made


def built(name: str, **settings: Any) -> Any:
    return config.build({"name": name, **settings}, all_algorithms(), "algorithm")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_takes_what_its_base_takes(name: str) -> None:
    made = trained(PRESETS[name]())
    free = {f.name for f in fields(made) if f.name not in ("read", "uplink") and not f.name.startswith("_")}
    assert free - config.parameters(PRESETS[name]).keys() == DECIDED.get(name, set())


@pytest.mark.parametrize("name", PRESETS)
def test_its_signature_is_the_schema(name: str) -> None:
    made = PRESETS[name]
    listed = inspect.signature(made).parameters
    assert config.parameters(made).keys() == listed.keys()
    assert get_type_hints(made).keys() == listed.keys()
    shared = [f for f in fields(trained(made())) if f.name in listed and f.name != "batch_size"]
    assert all(listed[f.name].default == getattr(trained(made()), f.name) for f in shared)  # what is shown is built
    assert made.__doc__
    assert "base" not in listed


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("field", "value"), [("server_lr", 0.5), ("lr", 0.03), ("weight_decay", 0.25)])
def test_what_is_set_arrives(name: str, field: str, value: float) -> None:
    if field in DECIDED.get(name, set()):
        with pytest.raises(ConfigError) as refusal:
            built(name, **{field: value})
        assert refusal.value.code == "unknown-key"
        assert "itself" in refusal.value.why
    else:
        assert getattr(trained(built(name, **{field: value})), field) == value
        assert getattr(trained(built(name)), field) != value


@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"local_steps": 2}, "one-step-only"),
        ({"local_epochs": 2}, "one-step-only"),
        ({"local_epochs": 3, "batch_size": 5}, "one-step-only"),
        ({"local_epochs": 1, "batch_size": 5}, "full-batch-only"),
        ({"batch_size": 5}, "full-batch-only"),
        ({"momentum": 0.9}, "client-momentum"),
        ({"local_epochs": 1, "momentum": 0.9}, "client-momentum"),
    ],
)
def test_a_bound_of_one_step_is_kept_whatever_is_set(name: str, settings: dict[str, Any], code: str) -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        built(name, **settings)
    assert refusal.value.code == code


@pytest.mark.parametrize("name", ONE_STEP)
def test_what_acts_on_noised_gradients_is_free(name: str) -> None:
    free = {"weight_decay": 0.1, "most_grad": 1.0, "server_lr": 0.5, "lr_decay": 0.9}
    made = built(name, **free)
    assert made.read == built(name).read  # the noise is what it was
    assert made.work.count(100) == 1
    assert built(name, local_epochs=1).work.count(100) == 1  # one full-batch epoch is one step


def promised(**settings: Any) -> tuple[Any, ...]:
    """Participations, noisy reads, and every row of the guarantees as planned."""
    table: dict[str, Any] = {"rounds": 3, "partition": {"scheme": "iid", "clients": 3}, "privacy": {"epsilon": 2.0}}
    parts = simulated(config.validate({**table, "algorithm": settings}))
    return list(parts.setup.plan.participations), list(parts.setup.plan.reads), Forecast(parts).planner.guarantees


def test_the_promise_of_a_run_does_not_hear_of_free_settings() -> None:
    free = {"server_lr": 0.5, "weight_decay": 0.1, "most_grad": 1.0}
    assert promised(name="gaussian_gdp", **free) == promised(name="gaussian_gdp")
    steps = {"name": "noisy_steps", "local_steps": 2}
    assert promised(**steps, momentum=0.9, **free) == promised(**steps)
    assert promised(name="noisy_steps", local_epochs=2) == promised(**steps)
    assert promised(name="noisy_steps", local_epochs=3) != promised(**steps)  # control


@pytest.mark.parametrize("name", DECIDED)
def test_what_a_method_decides_is_refused_with_the_reason(name: str) -> None:
    for field in DECIDED[name]:
        for make in (built, lambda n, **settings: PRESETS[n](**settings)):
            with pytest.raises(ConfigError) as refusal:
                make(name, **{field: 1})
            assert refusal.value.code == "unknown-key"
            assert field in str(refusal.value)
            assert "the method itself fixes this value" in refusal.value.why


def test_steps_leave_epochs_and_epochs_leave_steps() -> None:
    assert (lc_fl().local_steps, lc_fl(local_epochs=2).local_steps) == (10, None)
    assert noisy_steps(local_steps=None) == noisy_steps()
    assert noisy_steps(local_epochs=2, batch_size=8).work.count(16) == 4
    assert dp_scaffold(local_epochs=2).local_steps is None
    with pytest.raises(ConfigError) as refusal:
        lc_fl(local_steps=2, local_epochs=2)
    assert refusal.value.code == "steps-and-epochs"


def test_narrowed_fields_arrive_at_the_base_and_at_the_gates() -> None:
    made = cuag_pfl("published", batch_size=20, local_steps=4)
    assert (made.batch_size, made.local_steps) == (20, 4)
    assert (made.uplink.client[1].batch, made.uplink.client[1].steps) == (20, 4)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as refusal:
        built("cuag_pfl", batch_size="full")
    assert refusal.value.code == "wrong-type"


def test_other_forms_of_a_method_keep_what_is_set() -> None:
    made = udp(clip_target="model", server_lr=0.5, momentum=0.3)
    assert isinstance(made, WholeModel)
    assert (made.server_lr, made.momentum, made.lr_decay) == (0.5, 0.3, 0.997)
    assert dp_prox(mu=0.3, server_lr=2.0).mu == 0.3


def test_python_refuses_what_there_is_not() -> None:
    with pytest.raises(TypeError, match="nothing_such"):
        laplace(nothing_such=1)
    with pytest.raises(TypeError, match="read"):
        gaussian_gdp(read=None)
    with pytest.raises(ConfigError, match="batch_size"):
        dp_sgd(batch_size=5)


def test_a_sentence_is_a_preset() -> None:
    """As in the docstring; and a form that is chosen by name."""

    @preset(FedProx(mu=0.5), fixed=("lr_decay",), strong=FedProx(mu=5.0, lr=0.01))
    def mine(base: FedProx, more: float = 1.0, *, lr: float) -> FedProx:
        """Mine."""
        return base.having(server_lr=more * lr)

    assert list(inspect.signature(mine).parameters)[:3] == ["more", "lr", "preset"]
    assert inspect.signature(mine).parameters["lr"].default == 0.1
    assert mine() == FedProx(mu=0.5, server_lr=0.1)
    assert mine(2.0, lr=0.2) == FedProx(mu=0.5, lr=0.2, server_lr=0.4)
    assert mine(preset="strong") == FedProx(mu=5.0, lr=0.01, server_lr=0.01)
    assert mine(preset="strong", mu=0.5) == FedProx(mu=0.5, lr=0.01, server_lr=0.01)


# slaug_fl -------------------------------------------------------------------------------------------------------------


def slaug(**settings: Any) -> tuple[Calibrated, Train]:
    made = built("slaug_fl", **settings)
    assert isinstance(made.training, Calibrated)
    alone = made.preparation[0]
    assert isinstance(alone, Train)
    return made.training, alone


def test_what_is_set_wins_over_the_preset_even_where_it_is_the_default() -> None:
    training, alone = slaug(preset="paper_text", momentum=0.9)
    assert training.momentum == alone.momentum == 0.9
    unset, _ = slaug(preset="paper_text")
    assert unset.momentum == 0.0  # control: not set, the preset fills it in
    training, alone = slaug(preset="released_code", lr_decay=0.998, keeps_momentum=False, rank="f1")
    assert (training.lr_decay, training.keeps_momentum, alone.rank) == (0.998, False, "f1")
    assert (training.label_mode, alone.probe) == ("shifted", "test")


def test_slaug_takes_what_its_training_takes() -> None:
    training, _ = slaug(server_lr=0.5, most_grad=2.0)
    assert (training.server_lr, training.most_grad) == (0.5, 2.0)
    assert isinstance(trained(slaug_fl(proto_upload="server_side")), Calibrated)


# the registry ---------------------------------------------------------------------------------------------------------


def test_files_give_the_names() -> None:
    assert {"fedavg", "scaffold", "laplace", "slaug_fl", "fedopt", "ditto"} <= all_algorithms().keys()
    assert list(all_algorithms()) == sorted(all_algorithms())
    assert all(
        made.__module__.startswith(("sordino.algorithms.", "sordino.synthesis.")) for made in all_algorithms().values()
    )


@pytest.mark.parametrize("name", sorted(all_algorithms()))
def test_a_name_is_found_in_the_files_that_say_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the list of all, which is made by loading every file."""
    known = all_algorithms()[name]
    monkeypatch.setattr(algorithms, "all_algorithms", dict)
    assert algorithm_named(name) is known
    assert algorithm_named(f"{name}_") is None


def test_files_are_searched_once_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks many times, and one search through all files takes 10 ms."""
    known = algorithm_named("fedavg")
    monkeypatch.setattr(algorithms, "files", None)
    assert algorithm_named("fedavg") is known


def test_a_new_name_in_a_file_is_found_and_a_second_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def brand_new(base: FedAvg) -> FedAvg:
        return base

    brand_new.__module__ = fedavg.__name__
    monkeypatch.setattr(fedavg, "a", preset(FedAvg())(brand_new), raising=False)
    found = all_algorithms.__wrapped__()
    assert found.keys() - all_algorithms().keys() == {"brand_new"}
    brand_new.__name__ = "laplace"
    monkeypatch.setattr(fedavg, "a", preset(FedAvg())(brand_new))
    with pytest.raises(TypeError, match="two algorithms are called 'laplace'"):
        all_algorithms.__wrapped__()


def test_every_name_has_a_row_of_laws() -> None:
    assert all_algorithms().keys() == {case.algorithm["name"] for case in CASES}


def test_a_file_of_a_users_own_enters_no_list(tmp_path: Path) -> None:
    before = dict(all_algorithms())

    class Mine(FedAvg, name="fedavg"):
        pass

    assert before == all_algorithms()
    assert all_algorithms()["fedavg"] is FedAvg
    assert issubclass(Mine, FedAvg)


class Heir(FedAvg):
    """A subclass that says neither `takes_mean` nor `carries_statistics`."""


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["model={name='resnet18', norm='batch', width=4}"], "statistics-not-carried"),
        (["uplink={server=[{name='median', f=1}]}", "cohort={name='everyone'}"], "robust-sum-needs-a-mean"),
    ],
)
def test_promises_about_uploads_are_not_inherited(settings: list[str], code: str) -> None:
    """Whatever a subclass overrides, what it does not say is refused; FedAvg and FedProx say it."""

    def plan(name: str) -> object:
        return simulated(
            config.load(None, [f"algorithm={name}", "partition.clients=5", "privacy={}", *settings])
        ).setup.plan

    assert plan("fedavg")
    assert plan("fedprox")
    with pytest.raises(ConfigError) as refusal:
        plan(f"{__name__}:Heir")
    assert refusal.value.code == code


def test_an_optional_method_needs_its_side() -> None:
    """Without the base the engine would never ask it, and a method would quietly be another one."""

    def requested(self: Any, s: Any) -> list[int]:
        return [0]

    with pytest.raises(TypeError, match="RequestsClients is not among its bases"):
        type("Half", (FedAvg,), {"requested_clients": requested})
    with pytest.raises(TypeError, match="OwnModels is not among its bases"):
        type("Half", (FedAvg,), {"personal": requested})
    with pytest.raises(TypeError, match="OtherReads is not among its bases"):
        type("Half", (FedAvg,), {"wants": "sums"})
    with pytest.raises(TypeError, match="abstract"):
        type("Silent", (FedAvg, RequestsClients), {})()
    made = type("Both", (FedAvg, RequestsClients), {"requested_clients": requested})
    assert RequestsClients.of(made()).requested_clients(None) == [0]


@pytest.mark.parametrize("file", sorted(Path("experiments").glob("*.toml")), ids=lambda file: file.stem)
def test_experiments_of_one_algorithm_run(file: Path, tmp_path: Path) -> None:
    experiment = config.load(file, ["rounds=2", "evaluation.final=1"])
    assert experiment.algorithm["name"] == file.stem
    assert start(experiment, tmp_path / "run").metrics[-1].accuracy > 0.1


@pytest.mark.parametrize("placement", ["once", "per_client"])
@pytest.mark.parametrize("method", [dp_prox, dp_fedavg])
def test_noise_is_for_the_neighbours_that_are_asked_for(method: Any, placement: str) -> None:
    """With every update, replaced clients were given noise for one that counts for nothing, half as wide."""
    for neighbours in ("replace", "zero_out"):
        noise = method(clip=0.5, noise_placement=placement, neighbours=neighbours, multiplier=1.0).uplink.noise()
        assert noise.neighbours == neighbours
