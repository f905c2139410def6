"""Uploads of one direction each under PrivUnit: they share the budget, add up, and are right in the mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import tree
from sordino.accounting.events import Repeat, Response, from_json
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise import LaplaceNoise
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.privunit import OneDirection, parameters
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.runs.run import start
from sordino.types import Bound
from tests.algorithms.lc_fl_runs import EVERYONE, POISSON, grant, made, rows_of

# one direction --------------------------------------------------------------------------------------------------------
PRIVUNIT: dict[str, Any] = {"uplink": [{"name": "clip", "radius": 1.0}, "privunit"]}


@pytest.mark.parametrize("cohort", [EVERYONE, POISSON], ids=["visible", "hidden"])
def test_directions_share_the_budget_and_add_up(cohort: dict[str, Any], tmp_path: Path) -> None:
    """Pure against everybody, also the server: 8 over four rounds are 2 for each. A hidden cohort hides nobody from a
    server that gets the uploads.
    """
    table = {"rounds": 4, "cohort": cohort, "privacy": {"epsilon": 8.0, "delta": 1e-3}, **PRIVUNIT}
    ended = start(made({"name": "fedavg", "local_steps": 2}, **table), tmp_path / "run")
    for adversary in ("server", "participants", "public"):
        row = rows_of(ended.receipt.to_json())["client", adversary]
        event = from_json(row["event"])
        assert isinstance(event, Repeat)
        assert isinstance(event.event, Response)  # and no sample of one
        assert event.event.levels == 2
        assert event.event.epsilon == pytest.approx(2.0, rel=1e-9)
        assert row["accountants"]["pure"] == pytest.approx(2.0 * event.count, rel=1e-9)
        assert row["accountants"]["pure"] <= 8.0
        assert row["neighbours"] == "replace"
        assert row["status"] == "proved"
    assert "pure" in ended.receipt.budget.currency


def test_a_direction_is_right_in_the_mean() -> None:
    """300 answers of 10 coordinates and length 1.822: a coordinate's mean deviates by 0.0333 radii, six times that is
    allowed: a false alarm in 50 million.
    """
    uplink = Uplink((Clip(2.0), OneDirection(multiplier=0.2)))
    x = {"w": torch.tensor([[3.0, 0.0], [0.0, -4.0]]), "b": torch.tensor([0.0, 0, 0, 12.0, 0, 0])}
    draws = [uplink.encode(x, grant(Counter(i))) for i in range(300)]
    drawn = torch.stack([tree.flat(draw) for draw in draws])
    wanted = 2.0 * tree.flat(x) / 13.0
    assert (drawn.mean(0) - wanted).abs().max() < 6 * 2.0 * 0.0333
    assert (drawn.mean(0) + wanted).abs().max() > 1.0  # the opposite would be seen
    length = 2.0 * parameters(10, 5.0).length
    assert torch.allclose(drawn.norm(dim=1), torch.full((300,), length), rtol=1e-3)
    nothing = uplink.encode(tree.zeros_like(x), grant(Counter(1)))
    assert float(tree.norm(nothing)) == pytest.approx(length, rel=1e-3)  # not even that it was empty


def test_directions_hide_nobody_s_presence_and_need_a_radius(tmp_path: Path) -> None:
    private: dict[str, Any] = {"privacy": {"epsilon": 8.0, "delta": 1e-3}}
    presence: Any = [{"name": "clip", "radius": 1.0}, {"name": "privunit", "neighbours": "add_remove"}]
    for uplink, code in ((presence, "unknown-neighbours"), (["privunit"], "unbounded-sensitivity")):
        with pytest.raises(UnsoundGuarantee) as caught:
            start(made({"name": "fedavg"}, uplink=uplink, **private), tmp_path / "run")
        assert caught.value.code == code
        assert not (tmp_path / "run").exists()


def test_a_random_direction_keeps_no_budget_of_a_shorter_clip() -> None:
    """Under one noise of epsilon 8, a client of epsilon 0.1 would be clipped to an eightieth. Gaussian and Laplace noise
    hide that better; an answer leans towards it as towards a whole clip, far beyond e^0.1 times as often as without it.
    """
    noise, cap = OneDirection(neighbours="zero_out", multiplier=1 / 8), parameters(16, 8.0)
    most, long, short = Bound(l1=4.0, l2=1.0), torch.eye(16)[0], torch.eye(16)[0] / 80

    def leaning(total: torch.Tensor) -> float:
        answers = torch.stack([noise.release(total, most, 1 / 8, Counter(i)) for i in range(200)])
        return float((answers[:, 0] / cap.length >= cap.gamma).double().mean())

    assert min(leaning(long), leaning(short)) > 0.8 > math.exp(0.1) * leaning(torch.zeros(16)) + 0.5
    with pytest.raises(UnsoundGuarantee) as caught:
        Uplink((Clip(1.0, personal=True),), (noise,))
    assert caught.value.code == "personal-clip-needs-central-noise"
    assert Uplink((Clip(1.0, personal=True),), (Noise(LaplaceNoise(), "zero_out"),)).personal
