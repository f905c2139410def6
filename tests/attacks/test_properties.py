"""A property of all of a client's images is read off its upload, and noise on the upload hides it."""

from __future__ import annotations

import pytest
import torch

from sordino import config
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.methods.properties import Brightness
from sordino.results.findings import AttackFinding

DIGITS = {
    "rounds": 2,
    "data": {"source": "digits", "train": 600},
    "partition": {"scheme": "iid", "clients": 10},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg", "batch_size": "full", "local_steps": 1, "local_epochs": None},
}
WHOLE = {"algorithm": {"name": "whole_update", "multiplier": 5.0}, "privacy": {"delta": 1e-5}}


def found(**changes: object) -> AttackFinding:
    (one,) = assault(config.validate(DIGITS | changes), names=("brightness",)).found
    return one


def test_what_is_asked_of_images_is_what_it_says() -> None:
    images = torch.rand(5, 1, 4, 4)
    assert torch.allclose(Brightness().much(images), images.mean((1, 2, 3)))


def blind(self: Brightness, views: list[UpdateView]) -> torch.Tensor:
    return torch.zeros(len(views))


@pytest.mark.slow
def test_the_judge_finds_nothing_where_an_attacker_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: an attack that looks at no upload has no power, and must not pass for a run that holds."""
    monkeypatch.setattr(Brightness, "score", blind)
    one = found(**WHOLE)
    assert one.measured[0].value == 0.5
    assert one.verdict == "no power"


@pytest.mark.slow
def test_bright_images_are_told_from_dark_ones_until_noise_hides_them() -> None:
    bare, hidden = found(), found(**WHOLE)
    assert bare.verdict == "reached"
    assert bare.measured[0].value > 0.8
    assert hidden.verdict == "stopped"
    assert (hidden.measured[0].control or 0) > 0.8 > hidden.measured[0].value


def test_sums_that_hide_uploads_give_it_nothing() -> None:
    one = found(algorithm={"name": "secagg_fl"}, uplink=["weigh", "secagg"])
    assert one.verdict == "not tried"
