"""Pictures from gradients: closed forms on tiny networks, noise that hides them, and a mechanism that forgets its noise,
which is caught.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import config, keys, tree
from sordino.accounting.claims import ADVERSARIES, Adversary
from sordino.attacks.attack import assault, judged
from sordino.attacks.attacked_run import AttackSettings, UpdateView, pictures
from sordino.attacks.methods.inversion import (
    Analytic,
    DeepLeakage,
    ImprovedLeakage,
    InvertingGradients,
    first_linear,
    inputs,
)
from sordino.attacks.reconstruction import MARGIN, Likeness, Reconstruction, gradient, label_counts, labels_of, likeness
from sordino.audits.noise_sources import Silent
from sordino.results.findings import AttackResults
from sordino.tasks.nets import NETS, mlp
from sordino.tasks.supervised import Classification
from sordino.types import NoiseSource, Params
from tests.laws.cases import CASES, Case

SIDE, CLASSES = 4, 3


def uniform(seed: int, *shape: int) -> Tensor:
    return keys.uniform(keys.root(seed), torch.Size(shape).numel()).float().reshape(shape)


@cache
def network(name: str) -> Classification:
    shape = (1, SIDE, SIDE)
    net = mlp(shape, CLASSES, hidden=64) if name == "mlp" else NETS[name](shape, CLASSES)
    return Classification(net, name=name, shape=(SIDE, SIDE, 1), mean=(0.3,), std=(0.4,), image=True)


def view(name: str, images: int, noise: float = 0.0) -> tuple[UpdateView, Tensor, Tensor]:
    """What a server has of one full-batch step, the true images, and their labels."""
    task = network(name)
    params, truth = task.init(keys.root(3)), uniform(1, images, 1, SIDE, SIDE)
    labels = torch.arange(images) % CLASSES
    found = gradient(task, params, truth, F.one_hot(labels, CLASSES).float())
    size = float(tree.norm({str(i): g.detach() for i, g in enumerate(found)}))
    seen: Params = {}
    for i, (key, g) in enumerate(zip(params, found, strict=True)):
        drawn = keys.normal(keys.fold(keys.root(9), i), g.numel()).float().reshape(g.shape)
        seen[key] = g.detach() + noise * size * drawn
    others = uniform(2, 30, 1, SIDE, SIDE)
    return UpdateView(task, params, seen, images, others, torch.arange(30) % CLASSES, keys.root(5)), truth, labels


def reached(attack: Reconstruction, name: str, images: int, noise: float = 0.0) -> Likeness:
    seen, truth, _ = view(name, images, noise)
    return likeness(attack.draw(seen)[:images], truth)


# ---------------------------------------------------------------- closed forms


def test_a_linear_layer_tells_its_input() -> None:
    """dL/dW = dL/db x: exactly the input, in every unit."""
    x, slope = uniform(1, 6).double(), torch.tensor([0.5, -2.0], dtype=torch.float64)
    assert torch.allclose(inputs(torch.outer(slope, x), slope), x.expand(2, -1), atol=1e-12)


def test_images_come_back_from_inputs() -> None:
    """The way back of `look`, which for a network of one layer gives its scaled input."""
    task, x = network("logistic"), uniform(1, 2, 1, SIDE, SIDE)
    seen = task.look(task.init(keys.root(3)), x).reshape(x.shape)
    assert torch.allclose(task.image(seen), x, atol=1e-6)


def test_an_attackers_gradient_is_the_clients() -> None:
    task, rows = network("mlp"), (255 * uniform(1, 3, SIDE, SIDE, 1)).to(torch.uint8)
    params, labels = task.init(keys.root(3)), torch.arange(3)
    x, y = task.ready(rows, labels)
    theirs = task.gradient(params, x, y, lambda: torch.zeros(3, dtype=torch.int64))
    mine = gradient(task, params, pictures(rows), F.one_hot(labels, CLASSES).float())
    for key, found in zip(params, mine, strict=True):
        assert torch.allclose(tree.formed(theirs)[key], found, atol=1e-5)


@pytest.mark.parametrize(("name", "images"), [("logistic", 1), ("mlp", 1), ("mlp", 4)])
def test_pictures_are_read_off_the_first_layer(name: str, images: int) -> None:
    assert reached(Analytic(), name, images).psnr > 40


def test_only_a_layer_that_sees_pixels_is_read() -> None:
    params = {"0.weight": torch.zeros(5, 16), "0.bias": torch.zeros(5), "2.weight": torch.zeros(3, 5)}
    assert first_linear(params, (SIDE, SIDE, 1)) == ("0.weight", "0.bias")
    assert first_linear(params, (SIDE, SIDE, 3)) is None


# torch takes seconds to load its optimisers
SEARCHES = [
    pytest.param(attack, id=attack.called(), marks=pytest.mark.slow)
    for attack in (DeepLeakage(starts=1), ImprovedLeakage(starts=1), InvertingGradients(steps=120))
]


@pytest.mark.parametrize("attack", SEARCHES)
def test_pictures_are_found_whose_gradient_fits(attack: Reconstruction) -> None:
    assert reached(attack, "logistic", 1).psnr > 25


@pytest.mark.parametrize("attack", [Analytic(), *SEARCHES])
def test_noise_hides_the_pictures(attack: Reconstruction) -> None:
    """The negative control: an attack on noise is at the level of a guess."""
    seen, truth, _ = view("logistic", 1)
    mean = likeness(seen.elsewhere.mean(0, keepdim=True), truth).psnr
    assert reached(attack, "logistic", 1, noise=5.0).psnr < mean + MARGIN


def test_labels_are_counted() -> None:
    """Exactly where the model says the same of all images; and of four images of three classes."""
    seen, _, labels = view("mlp", 4)
    assert labels_of(label_counts(seen), 4).sort().values.tolist() == labels.sort().values.tolist()
    flat = {key: torch.zeros_like(value) for key, value in seen.before.items()}
    name = list(flat)[-1]
    shares = torch.tensor([0.5, 0.25, 0.25])
    told = seen._replace(before=flat, gradient=flat | {name: 1 / CLASSES - shares})
    assert label_counts(told).tolist() == pytest.approx((4 * shares).tolist(), abs=1e-5)


# ---------------------------------------------------------------- the judge


def test_the_best_match_does_not_depend_on_the_order() -> None:
    truth = uniform(1, 5, 1, SIDE, SIDE)
    found = likeness(truth.flip(0), truth)
    assert (found.psnr, found.ssim) == (100.0, pytest.approx(1.0))
    assert torch.equal(found.matched, truth)
    assert likeness(truth[:1] * float("nan"), truth).psnr < 20  # what is no number counts as grey


def test_a_verdict_needs_an_attack_with_power() -> None:
    assert judged(30.0, 10.0, 40.0, 3.0)[0] == "reached"
    assert judged(12.0, 10.0, 40.0, 3.0)[0] == "stopped"
    assert judged(12.0, 10.0, 12.0, 3.0)[0] == "no power"
    assert judged(12.0, 10.0, None, 3.0)[0] == "stopped"


# ---------------------------------------------------------------- a whole run


def attacked(by: Adversary | None = None, **more: object) -> AttackResults:
    table = {
        "rounds": 2,
        "partition": {"scheme": "iid", "clients": 3},
        "data": {"source": "digits", "train": 60},
        "algorithm": {"name": "gaussian_gdp", "multiplier": 8.0},
        "privacy": {"delta": 1e-5},
        "engine": {"executor": "loop"},
    }
    asked = AttackSettings(images=1, victims=2, trials=60)
    return assault(config.validate(table | more), names=("analytic", "label_shares", "canary"), asked=asked, by=by)


@pytest.mark.slow
def test_the_gates_of_a_run_stop_what_succeeds_without_them() -> None:
    found = {one.attack: one for one in attacked().found}
    psnr = found["analytic"].measured[0]
    assert found["analytic"].verdict == "stopped"
    assert psnr.control is not None
    assert psnr.control > 40 > psnr.baseline + MARGIN > psnr.value
    assert found["canary"].measured[0].control == 1.0
    (example,) = [held for held in found["analytic"].promises if held.unit == "example"]
    assert (example.status, example.adversary, example.neighbours) == ("proved", "server", "replace")


@pytest.mark.slow
def test_a_mechanism_that_forgets_its_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: the same claims and no noise. Pictures come back, and the canary refutes the claim."""

    def silent(*place: object) -> NoiseSource:
        return Silent()

    monkeypatch.setattr("sordino.engine.site.for_round", silent)
    found = {one.attack: one.verdict for one in attacked().found}
    assert found == {"analytic": "reached", "label_shares": "reached", "canary": "broken"}


def test_a_run_without_protection_is_its_own_control() -> None:
    found = attacked(algorithm={"name": "fedavg", "batch_size": "full"}, privacy={}).found[0]
    assert found.verdict == "reached"
    assert found.measured[0].value == found.measured[0].control
    assert all(held.status == "none" for held in found.promises)


@pytest.mark.slow
def test_noise_of_a_trusted_server_protects_from_others_alone() -> None:
    """The server gets every upload as it is; participants get models behind noise on their sum."""
    uplink = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "multiplier": 3.0}]}
    settings = {"algorithm": {"name": "fedavg", "batch_size": "full"}, "uplink": uplink}
    told: dict[str, str] = {}
    for by in ADVERSARIES[:2]:
        found = attacked(by, **settings).found[0]
        told[by] = found.verdict
        (client,) = [held for held in found.promises if held.unit == "client"]
        assert (client.adversary, math.isfinite(client.epsilon)) == (by, by == "participants")
    assert told == {"server": "reached", "participants": "stopped"}


def test_of_a_sum_that_hides_no_single_upload_is_seen() -> None:
    uplink = {"client": [{"name": "weigh"}, {"name": "secagg"}]}
    found = {one.attack: one for one in attacked(algorithm={"name": "fedavg"}, privacy={}, uplink=uplink).found}
    assert found["canary"].verdict == "not tried"
    assert found["analytic"].measured[0].value < found["analytic"].measured[0].control


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["ldp_fl", "gaussian_gdp", "fedavg"])
def test_a_gate_between_images_and_attackers_is_seen(name: str) -> None:
    """Answers at random are protection, too: behind them an attack has the same run without them as its control, where
    one step over one image gives the image back."""
    gate = {"clip": 1.0} if name == "gaussian_gdp" else {"local_steps": 1, "batch_size": "full"}
    table = {"rounds": 1, "partition": {"scheme": "iid", "clients": 3}, "algorithm": {"name": name, **gate}}
    asked = AttackSettings(images=1, victims=1)
    (found,) = assault(config.validate(table), names=("analytic",), asked=asked).found
    itself = found.measured[0].value == found.measured[0].control
    assert found.measured[0].control == 100.0  # dB: the image itself
    assert (itself, found.verdict) == ((True, "reached") if name == "fedavg" else (False, "stopped"))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "names"), [("mlp", ("dlg", "idlg")), ("cnn_norm", ("inverting_gradients",))])
def test_digits_are_found_behind_a_network(model: str, names: tuple[str, ...]) -> None:
    """From one update of two digits; smooth images even behind convolutions."""
    table = {
        "rounds": 1,
        "partition": {"scheme": "iid", "clients": 3},
        "algorithm": {"name": "fedavg", "batch_size": "full"},
        "model": {"name": model},
    }
    found = assault(config.validate(table), names=names, asked=AttackSettings(images=2, victims=1)).found
    assert {one.attack: one.verdict for one in found} == dict.fromkeys(names, "reached")


OF_EVERY_KIND = {  # who is protected from the server's look at one upload
    "scaffold": "reached",
    "central": "reached",  # the server is trusted here
    "fedgen": "reached",
    "pdp_prox_local": "stopped",
    "secagg_fl": "stopped",
    "cuag_pfl_no_noise": "stopped",  # sums of blocks are all that it sends
    "moon": "reached",
    "vhl": "reached",
    "slaug_fl": "reached",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.name in OF_EVERY_KIND], ids=lambda case: case.name)
def test_every_kind_of_method_can_be_attacked(case: Case) -> None:
    asked = AttackSettings(images=1, victims=1, trials=50)
    found = assault(case.experiment(), names=("analytic", "label_shares", "canary"), asked=asked).found
    assert found[0].verdict == OF_EVERY_KIND[case.name]
    assert all(one.verdict != "broken" for one in found)
