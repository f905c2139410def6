"""A budget, a noise and a receipt for uploads that another program makes."""

from __future__ import annotations

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from sordino.adapters.private_uplink import PrivateUplink, UplinkTerms
from sordino.algorithms.algorithm import KEEPS
from sordino.errors import SordinoError
from sordino.ledger.ledger import Ledger, State
from sordino.receipts.verify import examine, verify

TERMS: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "clip": 2.0, "rounds": 3}
UPLOAD = {"w": torch.ones(3, 2), "b": torch.zeros(2)}
ZERO = {name: torch.zeros_like(leaf) for name, leaf in UPLOAD.items()}


def of_client(folder: Path, **changes: Any) -> PrivateUplink:
    return PrivateUplink(folder / "client", 8, UplinkTerms(**{**TERMS, **changes}), "client")


def of_server(folder: Path, **changes: Any) -> PrivateUplink:
    return PrivateUplink(folder / "server", 8, UplinkTerms(**{**TERMS, "clients": 5, **changes}), "server")


def code(call: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(SordinoError) as refusal:
        call(*given, **named)
    assert refusal.value.why
    return refusal.value.code


def row(folder: Path, adversary: str) -> dict[str, Any]:
    rows = json.loads((folder / "privacy.json").read_text())["guarantees"]
    return next(one for one in rows if (one["unit"], one["adversary"]) == ("client", adversary))


def states(folder: Path) -> list[State]:
    with Ledger.as_founded(folder / "ledger.sqlite") as ledger:
        return [entry.state for entry in ledger.entries()]


def loss(multiplier: float, times: int, delta: float) -> float:
    """Epsilon by another accountant than the one that planned the noise."""
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), times)
    return float(PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(delta))


def calibrated(epsilon: float, delta: float, releases: int) -> float:
    """The noise multiplier that another accountant finds for a budget, from the user's settings alone."""
    accountant = partial(PLDAccountant, value_discretization_interval=1e-3)
    event = lambda z: dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z), releases)  # noqa: E731
    return float(dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, delta, tol=1e-4))


def multipliers(found: dict[str, Any]) -> list[float]:
    """Noise multipliers of the releases in a row."""
    parts = found["event"]["events"] if found["event"]["kind"] == "together" else [found["event"]]
    return [one.get("event", one)["noise_multiplier"] for one in parts for _ in range(one.get("count", 1))]


# the promise ----------------------------------------------------------------------------------------------------------


def test_a_client_is_stopped_by_its_budget_and_its_receipt_holds(tmp_path: Path, silent: list[float]) -> None:
    for t in range(TERMS["rounds"]):
        of_client(tmp_path).of_client(UPLOAD)  # as a process of its own would, each time
        assert examine(tmp_path / "client").wrong == [], t
    assert code(of_client(tmp_path).of_client, UPLOAD) == "BudgetExhausted"
    assert code(of_client(tmp_path).check_left) == "BudgetExhausted"
    assert states(tmp_path / "client") == [State.PUBLISHED] * 3
    assert verify(tmp_path / "client") == []
    found = row(tmp_path / "client", "server")
    multiplier = silent[0] / (2 * TERMS["clip"])  # of the change that another client's data would make
    assert math.isclose(found["epsilon"], loss(multiplier, 3, TERMS["delta"]), rel_tol=1e-3)
    assert found["epsilon"] <= TERMS["epsilon"] * (1 + 1e-9)
    assert found["status"] == "proved"
    assert found["neighbours"] == "replace"


def test_a_server_is_stopped_by_its_budget_and_its_receipt_holds(tmp_path: Path, silent: list[float]) -> None:
    for _ in range(TERMS["rounds"]):
        of_server(tmp_path).of_server([UPLOAD] * 2, ZERO, 4)
    assert code(of_server(tmp_path).of_server, [], ZERO, 4) == "BudgetExhausted"
    assert verify(tmp_path / "server") == []
    found, bare = row(tmp_path / "server", "participants"), row(tmp_path / "server", "server")
    assert math.isclose(found["epsilon"], loss(silent[0] / (2 * TERMS["clip"]), 3, TERMS["delta"]), rel_tol=1e-3)
    # a program that keeps rows of one client moves the uploads of all: only a client's own noise needs no condition
    assert (found["status"], found["because"]) == ("conditional", [KEEPS.format("elsewhere:Program")])
    assert bare["epsilon"] == "inf"  # it sees every upload
    assert len(silent) == 2 * 3  # one noise for each array of each sum, and none for an upload


def test_under_zero_out_the_noise_is_half_as_large(tmp_path: Path, silent: list[float]) -> None:
    of_server(tmp_path / "a").of_server([UPLOAD], ZERO, 4)
    of_server(tmp_path / "b", neighbours="zero_out").of_server([UPLOAD], ZERO, 4)
    assert math.isclose(silent[0], 2 * silent[2], rel_tol=1e-9)


@pytest.mark.slow
def test_hidden_coins_make_noise_count_for_more(tmp_path: Path, silent: list[float]) -> None:
    terms = {"clients": 50, "neighbours": "zero_out", "rate": 0.1, "delta": 1e-3}
    for _ in range(TERMS["rounds"]):
        of_server(tmp_path, **terms).of_server([UPLOAD], ZERO, 5.0)
    assert code(of_server(tmp_path, **terms).of_server, [], ZERO, 5.0) == "BudgetExhausted"
    assert verify(tmp_path / "server") == []
    multiplier, found = silent[0] / TERMS["clip"], row(tmp_path / "server", "participants")
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(multiplier))
    spent = PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(sampled, 3)).get_epsilon(1e-3)
    assert math.isclose(found["epsilon"], spent, rel_tol=2e-3)
    assert found["status"] == "conditional"
    assert found["epsilon"] <= TERMS["epsilon"]
    of_server(tmp_path / "all", **{**terms, "rate": None}).of_server([UPLOAD], ZERO, 50)
    assert silent[-1] > 1.5 * silent[0]
    assert code(of_server, tmp_path / "replace", **{**terms, "neighbours": "replace"}) == "poisson-needs-zero-out"


def test_without_noise_and_clip_a_server_takes_the_plain_mean(tmp_path: Path, silent: list[float]) -> None:
    rng = torch.Generator().manual_seed(1)
    uploads = [{name: torch.randn(leaf.shape, generator=rng) for name, leaf in UPLOAD.items()} for _ in range(5)]
    found = of_server(tmp_path, clip=1e3).of_server(uploads, ZERO, 5)
    for name, leaf in found.items():
        plain = torch.stack([one[name] for one in uploads]).mean(0)
        assert float((leaf - plain).abs().max()) < 1e-6


def test_without_noise_and_clip_a_client_sends_what_it_has(tmp_path: Path, silent: list[float]) -> None:
    found = of_client(tmp_path, clip=1e3).of_client(UPLOAD)
    assert all(torch.equal(found[name], leaf) for name, leaf in UPLOAD.items())


def test_the_divisor_is_public(tmp_path: Path, silent: list[float]) -> None:
    """Whoever does not answer, or answers with what is no number, changes the sum and not what it is divided by."""
    broken = {**UPLOAD, "b": torch.tensor([1.0, math.nan])}
    found = of_server(tmp_path, clip=10.0).of_server([UPLOAD, broken], ZERO, 4)
    assert torch.allclose(found["w"], UPLOAD["w"] / 4, atol=1e-6)


def test_a_client_is_clipped(tmp_path: Path, silent: list[float]) -> None:
    large = {name: 1e6 * leaf for name, leaf in UPLOAD.items()}
    sent = of_client(tmp_path).of_client(large)
    assert float(torch.cat([leaf.reshape(-1) for leaf in sent.values()]).norm()) <= TERMS["clip"]
    summed = of_server(tmp_path).of_server([large] * 3, ZERO, 3)
    assert float(torch.cat([leaf.reshape(-1) for leaf in summed.values()]).norm()) <= TERMS["clip"]


def test_the_noise_is_as_large_as_planned(tmp_path: Path) -> None:
    """40,000 numbers: their deviation is within 3% of the plan but for a chance of 1e-16."""
    many = {"w": torch.zeros(40_000)}
    uplink = PrivateUplink(tmp_path / "run", 40_000, UplinkTerms(**{**TERMS, "rounds": 1}), "client")
    deviation = float(uplink.of_client(many)["w"].std())
    planned = 1 / _mu(TERMS["epsilon"], TERMS["delta"]) * 2 * TERMS["clip"]
    assert abs(deviation / planned - 1) < 0.03


def _mu(epsilon: float, delta: float) -> float:
    """mu of Gaussian DP, by bisection of its curve (Dong, Roth and Su 2022)."""
    low, high = 1e-6, 1e3
    for _ in range(200):
        mu = (low + high) / 2
        spent = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if spent < delta else (low, mu)
    return low


# what may not happen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["reserve", "drawn", "published"])
def test_a_kill_loses_a_round_and_gives_none_away(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(self: Ledger, *given: Any, **named: Any) -> Any:
        made(self, *given, **named)
        raise Killed

    made = getattr(Ledger, when)
    with monkeypatch.context() as at:
        at.setattr(Ledger, when, die)
        with pytest.raises(Killed):
            of_client(tmp_path).of_client(UPLOAD)
    for _ in range(TERMS["rounds"] - 1):
        of_client(tmp_path).of_client(UPLOAD)
    assert code(of_client(tmp_path).of_client, UPLOAD) == "BudgetExhausted"
    assert verify(tmp_path / "client") == []
    assert row(tmp_path / "client", "server")["releases"] == TERMS["rounds"]


@pytest.mark.parametrize("change", [{"epsilon": 5.0}, {"delta": 1e-4}, {"clip": 3.0}, {"rounds": 4}])
def test_a_folder_keeps_its_terms(change: dict[str, Any], tmp_path: Path) -> None:
    of_client(tmp_path)
    assert code(of_client, tmp_path, **change) == "other-terms"


def test_a_folder_keeps_its_model_and_its_side(tmp_path: Path) -> None:
    of_client(tmp_path)
    assert code(PrivateUplink, tmp_path / "client", 9, UplinkTerms(**TERMS), "client") == "other-terms"
    assert code(PrivateUplink, tmp_path / "client", 8, UplinkTerms(**TERMS), "server") == "other-terms"


@pytest.mark.parametrize(
    "terms", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 0.0}, {"clip": 0.0}, {"clip": math.inf}]
)
def test_terms_that_promise_nothing_are_refused_and_leave_no_folder(terms: dict[str, Any], tmp_path: Path) -> None:
    assert code(of_client, tmp_path, **terms)
    assert not (tmp_path / "client").exists()


def test_a_budget_lies_where_every_process_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert code(of_client, Path("budgets")) == "budget-needs-absolute-path"
    assert code(of_client, Path(".")) == "budget-needs-absolute-path"
    of_client(Path("~/budgets")).check_left()
    assert [*tmp_path.iterdir()] == [tmp_path / "budgets"]


def test_delta_is_held_against_the_number_of_clients(tmp_path: Path) -> None:
    assert code(of_server, tmp_path, clients=200_000) == "delta-too-large"


def test_an_older_copy_of_the_ledger_gives_nothing_back(tmp_path: Path) -> None:
    of_client(tmp_path).of_client(UPLOAD)
    place = tmp_path / "client"
    kept = {file.name: file.read_bytes() for file in place.glob("ledger.sqlite*")}
    of_client(tmp_path).of_client(UPLOAD)
    for file in place.glob("ledger.sqlite*"):
        file.unlink()
    for name, data in kept.items():
        (place / name).write_bytes(data)
    assert code(of_client(tmp_path).of_client, UPLOAD) == "ledger-rolled-back"
    shutil.copytree(place, tmp_path / "copy")
    assert code(PrivateUplink(tmp_path / "copy", 8, UplinkTerms(**TERMS), "client").of_client, UPLOAD) == "copied-run"


def test_a_client_says_that_it_tells_no_scores(tmp_path: Path) -> None:
    of_client(tmp_path).of_client(UPLOAD)
    told = json.loads((tmp_path / "client" / "privacy.json").read_text())
    assert any("shared no test scores" in line for line in told["assumptions"])
    assert any("another program" in line for line in told["assumptions"])
    assert any("the arrays with which the job began are public" in line for line in told["assumptions"])
    assert not told["simulated"]
