"""Parts of a user's own: by name, and as objects of a Python session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sordino
from sordino import config, keys, user_code
from sordino.algorithms.fedavg import FedAvg
from sordino.config import session
from sordino.data.sources import RowSource, SourceRows
from sordino.errors import ConfigError, LedgerError, OwnCodeError, PartitionError, SordinoError, UnsoundGuarantee
from sordino.partition import Scheme
from sordino.runs.play import Callback
from sordino.runs.population import Population
from sordino.runs.simulation import simulated
from sordino.sampling import Cohort, PoissonSample, alike, check_promises
from sordino.tasks.losses import alone
from tests.laws.cases import BY_NAME

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
ROWS = {"x": X, "y": Y}
TINY: dict[str, Any] = {
    "algorithm": "fedavg", "rounds": 2, "partition": {"scheme": "iid", "clients": 3},
    "evaluation": {"every": 2, "final": 1},
}  # fmt: skip


class Net(torch.nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.last = torch.nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x)
        return found


@dataclass(frozen=True)
class Turns(Scheme):
    reads_labels: ClassVar[bool] = False
    clients: int = 3

    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        assert not labels.any()  # it is not shown what it does not read
        return [np.arange(k, len(labels), self.clients) for k in range(self.clients)]


class Twice(Turns):
    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        return [np.arange(3), np.arange(2, 9)]


class Beyond(Turns):
    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        return [np.arange(3), [len(labels)]]


class Declared(RowSource):
    classes: ClassVar[int | None] = 2
    reach: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)

    def __init__(self, size: int = 60) -> None:
        self.size = size

    def rows(self, seed: int) -> SourceRows:
        return SourceRows(X[: self.size], Y[: self.size])


class Scaled(Declared):
    def __init__(self, first: float = 1.0) -> None:
        self.first = first

    def rows(self, seed: int) -> SourceRows:
        x = np.array(X)
        x[0] = self.first
        return SourceRows(x / np.abs(x).max(), Y)


@dataclass(frozen=True)
class Pairs(Cohort):
    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        return [round_index % population, (round_index + 1) % population]

    def participations(self, rounds: int, population: int) -> Any:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return 2.0


class Hiding(Pairs):
    hidden = True


class Claiming(Pairs):
    def amplify(self, event: Any, adversary: str) -> Any:
        return event


class Coins(PoissonSample):
    pass


class Rigged(PoissonSample):
    def toss(self, population: int, coins: Any, rates: Any = None) -> list[int]:
        return [0]


def focal(output: Tensor, label: Tensor) -> Tensor:
    losses = F.cross_entropy(output, label, reduction="none")
    return (1 - (-losses).exp()) ** 2 * losses


def mean(output: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(output, label)


def share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == 1).float().mean())


class Diary(Callback):
    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.receipts: list[Any] = []

    def on_round(self, row: Any) -> None:
        self.rows.append(row)

    def on_end(self, receipt: Any) -> None:
        self.receipts.append(receipt)


# objects of a session -------------------------------------------------------------------------------------------------


def test_a_session_names_what_can_be_found_again_and_lends_the_rest() -> None:
    class Local(FedAvg):
        pass

    found = session.named({"model": Net, "algorithm": Local(lr=0.5), "data": ROWS, "label": "y"})
    here = __name__
    assert found.settings == {
        "model": {"name": f"{here}:Net"},
        "algorithm": {"name": "session:Local", "lr": 0.5},
        "data.source": "session:data",
        "data.label": "y",
    }
    assert found.lent == {"Local": Local, "data": ROWS}
    assert session.named({"algorithm": FedAvg(lr=0.5)}).settings == {"algorithm": {"name": "fedavg", "lr": 0.5}}
    with pytest.raises(ConfigError) as refusal:
        session.named({"model": Net()})
    assert refusal.value.code == "object-for-a-class"


def test_a_run_of_a_session_goes_on_only_with_the_same_data(tmp_path: Path) -> None:
    result = sordino.run(data=ROWS, model=Net, out=tmp_path / "run", **TINY)
    assert any("session:data" in note for note in result.notes)
    assert sordino.verify(tmp_path / "run").wrong == []
    with pytest.raises(ConfigError) as gone:
        sordino.resume(tmp_path / "run")
    assert gone.value.code == "own-session"
    with pytest.raises(LedgerError) as other:
        sordino.resume(tmp_path / "run", data={"x": -X, "y": Y})
    assert other.value.code == "ledger-foreign"
    assert sordino.resume(tmp_path / "run", data=ROWS).accuracy == result.accuracy
    with pytest.raises(ConfigError) as page:
        sordino.open_run(tmp_path / "run").report()
    assert page.value.code == "own-session"
    assert "sordino.open_run(folder, data=...).report()" in page.value.fix
    assert sordino.open_run(tmp_path / "run", data=ROWS).report().is_file()
    assert not list(user_code.named({"source": "digits"}))
    assert list(user_code.named(config.load(tmp_path / "run" / "experiment.toml").model_dump())) != []


def test_a_session_is_not_there_in_other_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        sordino.run(data=ROWS, out=tmp_path / "run", **{**TINY, "engine.executor": "processes"})
    assert refusal.value.code == "session-object-in-processes"


def test_a_frame_is_a_table_and_real_noise_wants_its_schema(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "u", "v"), "y": Y})
    (tmp_path / "t.csv").write_text(frame.to_csv(index=False))
    lent = session.named({"data": frame, "label": "y", "rounds": 1})
    written = config.load(None, [], {"data.source": "tabular", "data.path": str(tmp_path / "t.csv"), "data.label": "y"})
    with user_code.lent(lent.lent):
        made = Population(config.load(None, [], lent.settings))
        assert made.dataset.fingerprint() == Population(written).dataset.fingerprint()
        real = Population(config.load(None, [], {**lent.settings, "privacy.noise": "system"}))
        with pytest.raises(UnsoundGuarantee) as refusal:
            _ = real.dataset
    assert refusal.value.code == "table-without-schema"


# data, partitions, cohorts --------------------------------------------------------------------------------------------


def _population(**settings: Any) -> Population:
    return Population(config.load(None, [], session.named(settings).settings))


def test_a_source_is_cut_to_what_it_declares_and_refused_where_it_does_not_fit() -> None:
    made = _population(data=Declared, partition=Turns)
    assert np.abs(made.dataset.train.x).max() <= 1
    assert made.dataset.classes == 2
    assert made.disclosures.learned_from_rows == ()
    assert sorted(np.concatenate(list(made.shares[0])).tolist()) == list(range(len(made.dataset.train.y)))
    for bad in (
        {"x": X, "y": Y[:3]},
        {"x": X, "y": Y * 0.5},
        {"x": X * np.inf, "y": Y},
        {"x": X, "y": Y + 1, "classes": 2},
    ):
        with user_code.lent({"data": bad}), pytest.raises(SordinoError) as refusal:
            _ = _population(data=bad).dataset
        assert refusal.value.code == "own-rows-unfit"


def test_real_noise_wants_declared_rows_and_a_partition_without_labels() -> None:
    real = {"privacy.noise": "system"}
    with user_code.lent({"data": ROWS}), pytest.raises(UnsoundGuarantee) as refusal:
        _ = _population(data=ROWS, partition=Turns, **real).dataset
    assert refusal.value.code == "own-data-undeclared"
    with pytest.raises(UnsoundGuarantee) as labels:
        _ = _population(data=Declared, **real).shares  # dirichlet
    assert labels.value.code == "partition-from-labels"
    _ = _population(data=Declared, partition=Turns, **real).shares


def test_rows_that_were_scaled_by_each_other_are_said_to_be_made_one_by_one() -> None:
    """One record changes all rows of such a source, and nothing shows it: a receipt has to say what it rests on."""

    def others(largest: float) -> tuple[Any, Any]:
        with user_code.lent({}):
            settings = session.named({"data": Scaled, "partition": Turns}).settings
            made = Population(config.load(None, [], {**settings, "data.options": {"first": largest}}))
            return made.dataset.train.x, made.disclosures.assumed

    (x, said), (moved, _) = others(1.0), others(1000.0)
    assert (x != moved).any(1).sum() > 40
    assert any("made from one record alone" in one for one in said)
    with user_code.lent({"data": ROWS}):
        assert any("made from one record alone" in one for one in _population(data=ROWS).disclosures.assumed)


@pytest.mark.parametrize("scheme", [Twice, Beyond])
def test_a_row_is_one_clients_at_most(scheme: type[Scheme]) -> None:
    with pytest.raises(PartitionError) as refusal:
        _ = _population(data=Declared, partition=scheme).shares
    assert refusal.value.code == "own-partition"


def test_a_cohort_of_ones_own_claims_no_amplification() -> None:
    check_promises(Pairs())
    check_promises(Coins(0.5))
    for cheat in (Hiding(), Claiming(), Rigged(0.5)):
        with pytest.raises(UnsoundGuarantee) as refusal:
            check_promises(cheat)
        assert refusal.value.code == "own-cohort-amplifies"


# losses, metrics, callbacks -------------------------------------------------------------------------------------------


def test_a_loss_never_sees_two_examples() -> None:
    output, label = torch.randn(5, 4), torch.arange(5) % 4
    seen = []

    def spying(output: Tensor, label: Tensor) -> Tensor:
        seen.append(tuple(output.shape))
        return focal(output, label)

    assert torch.allclose(alone(spying, "spying")(output, label), focal(output, label))
    assert set(seen) == {(1, 4)}
    with pytest.raises(ConfigError) as refusal:
        alone(mean, "mean")(output, label)
    assert refusal.value.code == "loss-not-per-example"


@pytest.mark.slow
def test_a_loss_in_place_of_cross_entropy_gives_the_same_run_where_it_is_the_same(tmp_path: Path) -> None:
    def same(output: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output, label, reduction="none")

    private = {**TINY, "algorithm": "gaussian_gdp", "data": ROWS, "privacy.epsilon": 8.0}
    one = sordino.run(out=tmp_path / "one", **private)
    other = sordino.run(out=tmp_path / "other", loss=same, **private)
    for name, weights in one.model.items():
        assert torch.allclose(weights, other.model[name], atol=1e-3)
    with pytest.raises(ConfigError) as refusal:
        sordino.run(out=tmp_path / "third", loss=same, data=ROWS, **{**TINY, "algorithm": "moon"})
    assert refusal.value.code == "loss-of-the-algorithm"


def test_a_bound_that_speaks_of_cross_entropy_holds_for_no_other_loss() -> None:
    case = BY_NAME["convex_stable"]
    assert simulated(case.experiment()).setup.plan.offer is not None  # the control
    with pytest.raises(UnsoundGuarantee) as refusal:
        _ = simulated(case.experiment(loss={"name": "tests.runs.test_own_parts:focal"})).setup.plan
    assert refusal.value.code == "convex-needs-bounded-logistic"


def test_with_real_noise_a_metric_is_private_and_a_callback_is_not_told(tmp_path: Path) -> None:
    diary, rows = Diary(), {**ROWS, "classes": 2, "reach": (-2.0, 2.0)}
    settings = {**TINY, "algorithm": "gaussian_gdp", "privacy.noise": "system", "privacy.epsilon": 8.0}
    result = sordino.run(data=rows, metrics=[share], callbacks=diary, out=tmp_path / "run", **settings)
    assert set(result.metrics[-1].own) == {"share"}
    assert "share" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert len(diary.rows) == 2
    assert len(diary.receipts) == 1
    assert not {"own", "accuracy", "loss", "clients"} & set(diary.rows[-1])


class BadNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no luck")


class BadRows(Declared):
    def rows(self, seed: int) -> SourceRows:
        raise KeyError("no luck")


class BadTurns(Turns):
    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        raise KeyError("no luck")


class BadPairs(Pairs):
    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        raise KeyError("no luck")


class BadDiary(Diary):
    def on_round(self, row: Any) -> None:
        raise KeyError("no luck")


def bad_loss(output: Tensor, label: Tensor) -> Tensor:
    raise KeyError("no luck")


def bad_metric(logits: Tensor, labels: Tensor) -> float:
    raise KeyError("no luck")


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"model": BadNet}, "forward"),
        ({"data": BadRows}, "rows"),
        ({"partition": BadTurns}, "assign"),
        ({"cohort": BadPairs}, "draw"),
        ({"loss": bad_loss}, "bad_loss"),
        ({"metrics": bad_metric}, "bad_metric"),
        ({"callbacks": BadDiary}, "on_round"),
    ],
)
def test_an_error_in_a_part_is_told_with_its_place(settings: Any, method: str, tmp_path: Path) -> None:
    with pytest.raises(OwnCodeError) as refusal:
        sordino.run(out=tmp_path / "run", **{**TINY, "data": Declared, **settings})
    assert refusal.value.exit_code == 2
    assert f"KeyError: 'no luck' ({Path(__file__).name}, line " in refusal.value.what
    assert method in refusal.value.why


class Pair(NamedTuple):
    delta: dict[str, Tensor]
    steps: Tensor


class SendsMore(FedAvg):
    """A field beside the change, which `zero` does not know."""

    def local(self, task: Any, down: Any, c: Any, shard: Any, key: Any) -> Any:
        up, c = super().local(task, down, c, shard, key)
        return Pair(up.delta, torch.tensor(5.0)), c


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_an_upload_that_zero_does_not_know_is_refused(executor: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        sordino.run(
            **{**TINY, "algorithm": SendsMore(lr=0.1)}, data=ROWS, engine={"executor": executor}, out=tmp_path / "run"
        )
    assert refused.value.code == "upload-unlike-zero"
    assert "steps" in refused.value.what
