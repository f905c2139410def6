"""What rests on code of somebody's own: a network, a loss, what a method or a reader asks of rows. Its rows are
conditional in all that is printed, and the same on a machine that has none of that code.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import config, user_code
from sordino.accounting.accountants import best
from sordino.accounting.claims import Claim
from sordino.accounting.events import Gaussian
from sordino.algorithms.algorithm import KEEPS
from sordino.algorithms.fedavg import FedAvg
from sordino.data.dataset import Dataset
from sordino.errors import OwnCodeError
from sordino.planning.accounts import STATES, Accounts
from sordino.planning.phase import shown_rows
from sordino.planning.planner import Planner
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.receipts.verify import examine, verify
from sordino.report import run_facts, run_page
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.types import Bound, Grant, LocalWork, Reader
from tests.laws import warm
from tests.laws.adversary import other_data
from tests.laws.cases import BY_NAME

HERE = "tests.runs.test_own_code"
CODE = """
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def loss(output: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(output, label, reduction="none")


OWN: dict[str, dict[str, Any]] = {"Net": {"model": {"name": f"{HERE}:Net"}}, "loss": {"loss": {"name": f"{HERE}:loss"}}}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_promise_about_rows_that_own_code_sees_is_conditional(name: str, tmp_path: Path) -> None:
    """In the plan, in the receipt, on the page, and when the receipt is made again."""
    made = BY_NAME["gaussian_gdp"].experiment(**OWN[name])
    condition = KEEPS.format(f"{HERE}:{name}")
    planned = simulated(made)
    rows = Planner(planned.setup).guarantees
    ended = start(made, tmp_path / "run")
    for row in (*rows, *ended.receipt.guarantees):
        if row.finite:
            assert (row.status, condition in row.because) == ("conditional", True), row
    assert any(row.unit == "example" and row.finite for row in ended.receipt.guarantees)
    assert condition in run_page.page(run_facts.gather(tmp_path / "run"))
    assert verify(tmp_path / "run") == []


class Picky(Net):
    """A network that takes no image that is white."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.flatten(1) > 0.99).all(1).any()):
            raise ValueError("a white image")
        return super().forward(x)


@pytest.mark.slow
def test_own_code_that_fails_at_some_rows_tells_them_and_every_receipt_says_that_it_is_trusted(tmp_path: Path) -> None:
    """Whether the run goes on is seen by everybody, and no noise covers that."""

    made = BY_NAME["gaussian_gdp"].experiment(model={"name": f"{HERE}:Picky"})
    trained, _ = simulated(made).population.shares
    changed = int(trained[1][0])

    def white(data: Dataset) -> Dataset:
        x = np.array(data.train.x)
        x[changed] = 255
        return replace(data, train=data.train._replace(x=x))

    receipt = start(made, tmp_path / "one").receipt
    assert any(f"{HERE}:Picky" in said and "fail at none" in said for said in receipt.assumptions)
    with other_data(white), pytest.raises(OwnCodeError, match="a white image"):
        start(made, tmp_path / "other")


def test_a_library_s_own_network_and_loss_stay_proved() -> None:
    for own in ({}, {"model": {"name": "mlp", "hidden": 8}}):
        planned = simulated(BY_NAME["gaussian_gdp"].experiment(**own))
        assert shown_rows(planned.setup.experiment) == ()
        rows = Planner(planned.setup).guarantees
        assert {row.status for row in rows if row.finite} == {"proved"}


@pytest.mark.slow
def test_who_verifies_needs_none_of_the_code(tmp_path: Path) -> None:
    """In another process, from which the file has gone: the condition follows from the name alone."""
    (tmp_path / "gone.py").write_text(CODE)

    def said(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "sordino", *words]
        process = warm.Process(command, cwd=tmp_path, stdout=subprocess.PIPE)
        out, _ = process.communicate()
        assert process.returncode is not None
        return process.returncode, (out or b"").decode()

    assert said("run", "model.name=gone:Net", "rounds=2", "--out", "run", "--quiet")[0] == 0
    (tmp_path / "gone.py").unlink()
    assert KEEPS.format("gone:Net") in (tmp_path / "run" / "privacy.json").read_text()
    code, told = said("privacy", "verify", "run")
    assert (code, "holds" in told) == (0, True), told


@pytest.mark.parametrize(
    "own",
    [
        {"algorithm": {"name": "mine:Method"}},
        {"read": {"name": "mine:Reader"}},
        {"uplink": {"client": [{"name": "clip", "radius": 1.0}, {"name": "mine:Stage"}]}},
        {"model": {"name": "session:Net"}},
        {"data": {"source": "mine:Rows"}},
    ],
)
def test_whatever_is_shown_rows_is_found_by_its_name(own: dict[str, Any]) -> None:
    assert len(shown_rows(config.validate({"privacy": {}, "algorithm": {"name": "fedavg"}} | own))) == 1
    others: dict[str, Any] = {
        "data": {"source": "session:data"},
        "partition": {"scheme": "mine:Scheme"},
        "evaluation": {"metrics": ["mine:metric"]},
    }
    assert shown_rows(config.validate(others)) == ()


def test_a_client_alone_in_its_process_is_bounded_by_its_clip() -> None:
    """Clients of one process share a network, so what it keeps of one reaches the uploads of others. At a site of its
    own a client's upload is all that leaves, and its clip bounds it."""
    planned = simulated(BY_NAME["whole_update"].experiment(model={"name": f"{HERE}:Net"}))
    condition = KEEPS.format(f"{HERE}:Net")
    for only, status in ((None, "conditional"), ((1,), "proved")):
        rows = Planner(planned.setup, only).guarantees
        (row,) = (row for row in rows if (row.unit, row.adversary) == ("client", "server"))
        assert (row.status, condition in row.because) == (status, status == "conditional")


class Loose(Clip):
    """It states the bound of a clip, and clips nothing."""

    def encode(self, x: Any, bound: Bound, grant: Grant) -> Any:
        return x


@dataclass(frozen=True)
class Stating(FedAvg):
    uplink: Uplink = Uplink(client=(Loose(1.0), Noise()))


@dataclass(frozen=True)
class Keeping(FedAvg):
    """Code of somebody's own that prices nothing: its uplink is made of the library's stages."""

    uplink: Uplink = Uplink(client=(Clip(1.0), Noise()))


class Quiet(NoisyGradient):
    """A reader that states half of its cost."""


@pytest.mark.parametrize(("name", "stated"), [("Stating", "Loose"), ("Keeping", "")])
def test_a_stage_that_states_its_own_bound_is_conditional_in_all_books(name: str, stated: str, tmp_path: Path) -> None:
    """In the plan, in the books of one client alone, in the receipt, and when the receipt is made again."""
    of = BY_NAME["whole_update"]
    made = of.experiment(algorithm={"name": f"{HERE}:{name}", "local_steps": 3, "lr": 0.5})
    planned = simulated(made)
    condition = STATES.format(f"{HERE}:{stated}")
    alone = Planner(planned.setup, (1,)).guarantees
    ended = start(made, tmp_path / "run")
    everywhere = (*Planner(planned.setup).guarantees, *alone, *ended.receipt.guarantees)
    about = [row for row in everywhere if row.finite and row.unit == "client"]
    assert len(about) > 3
    assert {condition in row.because for row in about} == {bool(stated)}
    (mine,) = (row for row in alone if (row.unit, row.adversary) == ("client", "server"))
    assert mine.status == ("conditional" if stated else "proved")
    assert verify(tmp_path / "run") == []
    assert examine(tmp_path / "run", code=False).wrong == []


class BySize(NoisyGradient):
    """Its noise is in proportion to a client's number of examples, and so is what it states; no budget sizes it."""

    def offer(self) -> None:  # type: ignore[override]
        return None

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        return Claim.to_everyone("example", "replace", Gaussian(size / 50), "proved", ())


@dataclass(frozen=True)
class Sized(FedAvg):
    read: Reader = BySize(1.0)


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_reader_states_of_one_size_is_said_of_no_other(hidden: bool) -> None:
    noise = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}
    central = {"uplink": noise, "cohort": {"name": "poisson", "rate": 0.5}}
    own = {"algorithm": {"name": f"{HERE}:Sized", "batch_size": "full"}}
    case = BY_NAME["gaussian_gdp"]
    asked = own | (central if hidden else {"privacy": {}, "cohort": {"name": "everyone"}})
    setup = simulated(case.experiment(rounds=1, **asked)).setup
    sizes = setup.public.sizes
    assert min(sizes) < sizes[0]
    (row,) = (row for row in Planner(setup).guarantees if (row.unit, row.adversary) == ("example", "server"))
    assert row.epsilon == best(Gaussian(min(sizes) / 50), row.delta, "replace").epsilon


@pytest.mark.slow
def test_parts_of_the_library_state_nothing_of_somebodys_own() -> None:
    for case in BY_NAME.values():
        method = simulated(case.experiment()).setup.algorithm
        assert not list(user_code.parts(method.read, method.uplink)), case.name
    assert list(user_code.parts([Quiet(1.0)])) == [f"{HERE}:Quiet"]


class Remembering(torch.nn.Module):
    """It adds to a row the largest that it has seen."""

    low: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(64, 10)
        self.register_buffer("low", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        seen = x.flatten(1)
        out: Tensor = self.last(seen + self.low.to(seen.dtype))
        self.low.data.copy_(torch.maximum(self.low, seen.detach().mean(0)))
        return out


@pytest.mark.slow
def test_the_adversary_sees_what_a_network_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One example of a client changes what another client sends. It is refused; as it was, it ran beside a number that
    was called proved."""
    from contextlib import nullcontext

    from sordino.errors import UnsoundGuarantee
    from sordino.tasks.supervised import Classification
    from tests.laws.adversary import VICTIM, other_example, play

    case = BY_NAME["gaussian_gdp"]
    model = {"name": f"{HERE}:Remembering"}
    few = {"source": "digits", "train": 80, "test": 40}
    real = case.experiment(
        privacy=case.privacy | {"noise": "system"}, model=model, cohort={"name": "everyone"}, data=few
    )
    with pytest.raises(UnsoundGuarantee) as refused:
        start(real, tmp_path / "refused")
    assert refused.value.code == "model-remembers"
    monkeypatch.setattr(Classification, "remembers", "")
    monkeypatch.setattr(Classification, "still", lambda *asked, **given: nullcontext())
    whole = Accounts._held
    monkeypatch.setattr(Accounts, "_held", lambda self, *asked: whole(_without_code(self), *asked))
    one = play(real, tmp_path / "one")
    other = play(real, tmp_path / "other", other_example(simulated(real)))
    pairs = zip(one.sent, other.sent, strict=True)
    first = {k for (t, k, mine), (_, _, theirs) in pairs if t == "/0" and mine != theirs}
    assert first > {VICTIM}
    assert ("example", "server") in one.finite


def _without_code(accounts: Accounts) -> Accounts:
    from dataclasses import replace

    return replace(accounts, own_code=())
