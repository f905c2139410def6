"""Flower's messages: what a client's mod and a server's strategy let through. Flower itself is not needed here."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino.adapters.flower import PrivateStrategy, private_mod, serve, site_app
from sordino.errors import SordinoError, WireError
from sordino.ledger.ledger import State
from sordino.privacy.noise.sources import SystemNoise
from sordino.sites import elsewhere
from tests.adapters.malformed import MODEL, files, malformed, npy
from tests.adapters.test_private_uplink import TERMS, ZERO, of_client, states

CONTEXT = SimpleNamespace(node_config={"partition-id": 7})
SECRET = "patient 4711"


def message(sent: dict[str, bytes] | None = None, kind: str = "train", node: int = 1, **records: Any) -> Any:
    """A message that holds what Flower's holds, as far as an adapter looks."""
    arrays = files() if sent is None else sent
    record = {name: SimpleNamespace(data=data) for name, data in arrays.items()}
    return SimpleNamespace(
        metadata=SimpleNamespace(message_type=kind, src_node_id=node, dst_node_id=node),
        content=SimpleNamespace(array_records={"arrays": record, **records}, config_records={}),
        has_error=lambda: False,
    )


def refused(mod: Any, asked: Any, reply: Any) -> SordinoError:
    def train(message: Any, context: Any) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.raises(SordinoError) as refusal:
        mod(asked, CONTEXT, train)
    return refusal.value


@pytest.mark.parametrize("many", [30, pytest.param(1_000, marks=pytest.mark.slow)])
def test_malformed_replies_do_not_leave_a_client(many: int, tmp_path: Path) -> None:
    mod = private_mod(tmp_path / "site-{partition-id}", MODEL, **TERMS)
    codes = {refused(mod, message(), message(sent)).code for sent in malformed(many)}
    assert codes == {"array-not-declared"}
    assert states(tmp_path / "site-7") == []  # nothing was released, and nothing paid


def test_two_records_of_arrays_do_not_leave_a_client(tmp_path: Path) -> None:
    mod = private_mod(tmp_path / "site", MODEL, **TERMS)
    assert refused(mod, message(), message(more={})).code == "array-not-declared"


def test_a_client_answers_nothing_but_training(tmp_path: Path) -> None:
    mod = private_mod(tmp_path / "site", MODEL, **TERMS)
    for kind in ("evaluate", "query", "evaluate.mine", "training"):
        assert refused(mod, message(kind=kind), message()).code == "client-only-trains"


def test_a_step_of_a_secure_sum_is_refused_with_its_reason(tmp_path: Path) -> None:
    mod, asked = private_mod(tmp_path / "site-{partition-id}", MODEL, **TERMS), message()
    asked.content.config_records["secaggplus_configs"] = {"stage": "setup"}
    assert refused(mod, asked, message()).code == "secure-sum-elsewhere"
    assert not (tmp_path / "site-7").exists()


def test_the_text_of_a_failure_stays_at_the_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mod = private_mod(tmp_path / "site", MODEL, **TERMS)
    for failure in (ValueError(SECRET), WireError(SECRET)):
        caplog.clear()
        error = refused(mod, message(), failure)
        assert error.code == "failed-at-client"
        assert SECRET not in repr(error)
        assert error.__cause__ is None
        assert error.__suppress_context__
        assert SECRET in caplog.text
        assert sent_by_nvflare(caplog) == []


def sent_by_nvflare(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a site's error log would have, which NVFlare sends to its server unless the site forbids it."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_without_budget_does_not_train(tmp_path: Path) -> None:
    for _ in range(TERMS["rounds"]):
        of_client(tmp_path).of_client(ZERO)
    mod = private_mod(tmp_path / "client", MODEL, **TERMS)
    assert refused(mod, message(), AssertionError("it trained")).code == "BudgetExhausted"


class Array:
    """An array as Flower keeps it."""

    def __init__(self, array: NDArray[Any] | None = None, **said: Any) -> None:
        self.data, self.array = said["data"] if array is None else npy(array), array


class Message:
    """A new message as Flower makes it."""

    def __init__(self, content: dict[str, Any], **to: Any) -> None:
        self.content, self.to = content, to


@pytest.fixture
def flwr(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an adapter takes of Flower to make a message."""
    made = SimpleNamespace(Array=Array, ArrayRecord=dict, Message=Message, MetricRecord=dict, RecordDict=dict)
    monkeypatch.setitem(sys.modules, "flwr.app", made)  # type: ignore[arg-type]


def test_a_reply_holds_the_arrays_and_nothing_else(flwr: None, silent: list[float], tmp_path: Path) -> None:
    mod = private_mod(tmp_path / "site", MODEL, **{**TERMS, "clip": 1e3})
    asked, trained = message(), message(files(b=np.ones(2, np.float32)))
    trained.content.metric_records = {"losses": {"loss": 0.5, "num-examples": 17}}
    reply: Any = mod(asked, CONTEXT, lambda message, context: trained)
    assert reply.content["metrics"] == {"num-examples": 1.0}
    assert [*reply.content] == ["arrays", "metrics"]
    assert {name: one.array.tolist() for name, one in reply.content["arrays"].items()} == {
        "w": MODEL["w"].tolist(),
        "b": [1.0, 1.0],
    }
    assert reply.to == {"reply_to": asked}
    assert len(silent) == 2


class Inner:
    """A strategy that asks the nodes that it is given."""

    weighted_by_key = "weight"

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes
        self.shown: list[Any] = []

    def aggregate_train(self, server_round: int, replies: list[Any]) -> tuple[Any, Any]:
        self.shown = replies
        return replies[0].content["arrays"], {"loss": 0.5}

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        return [message(node=node) for node in self.nodes]


def strategy(folder: Path, nodes: list[int], **changes: Any) -> PrivateStrategy:
    return PrivateStrategy(Inner(nodes), folder / "server", MODEL, **{**TERMS, "clients": 5, **changes})  # type: ignore[arg-type]


def grid(many: int) -> Any:
    return SimpleNamespace(get_node_ids=lambda: range(many))


ARRAYS: Any = message().content.array_records["arrays"]


@pytest.mark.slow
def test_a_server_adds_no_malformed_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = strategy(tmp_path, [1, 2, 3])
    caplog.set_level(logging.ERROR)
    asked.configure_train(1, ARRAYS, None, grid(5))  # type: ignore[arg-type]
    for sent in malformed(1_000):
        good = message(files(b=np.ones(2, np.float32)), node=2)
        found = list(asked._changes([message(sent, node=1), good, good, message(node=9), message(more={}, node=3)]))
        assert len(found) == 1
        assert found[0]["b"].tolist() == [1.0, 1.0]


def test_a_round_of_refused_replies_alone_is_not_paid_for(
    flwr: None, silent: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = strategy(tmp_path, [1, 2, 3])
    asked.configure_train(1, ARRAYS, None, grid(5))  # type: ignore[arg-type]
    assert asked.aggregate_train(1, [message(more={}, node=node) for node in (1, 2)]) == (None, None)
    assert "round 1 changes nothing" in caplog.text
    assert states(tmp_path / "server") == []
    seen = strategy(tmp_path / "zero", [0, 1, 2, 3, 4], neighbours="zero_out")
    seen.configure_train(1, ARRAYS, None, grid(5))  # type: ignore[arg-type]
    assert seen.aggregate_train(1, [])[0] is not None  # a missing client must not be seen
    assert states(tmp_path / "zero" / "server") == [State.PUBLISHED]


def test_a_strategy_sees_one_noised_mean(flwr: None, silent: list[float], tmp_path: Path) -> None:
    asked = strategy(tmp_path, [1, 2, 3], clip=1e3)
    asked.configure_train(1, ARRAYS, None, grid(5))  # type: ignore[arg-type]
    replies = [message(files(b=np.full(2, float(node), np.float32)), node=node) for node in (1, 2)]
    arrays, metrics = asked.aggregate_train(1, replies)
    inner: Any = asked._inner
    assert [[*one.content] for one in inner.shown] == [["arrays", "metrics"]]
    assert inner.shown[0].content["metrics"] == {"weight": 1.0}
    assert arrays is not None
    assert np.allclose(arrays["b"].array, 3 / 3, atol=1e-6)  # of three that were asked, though two have answered
    assert metrics is None


@pytest.mark.slow
def test_coins_draw_a_cohort_and_the_divisor_stays(flwr: None, silent: list[float], tmp_path: Path) -> None:
    """400 coins at a rate of 0.5: their number is within 50 of 200 but for a chance of 1e-6."""
    many = list(range(400))
    asked = strategy(tmp_path, many, clients=400, rate=0.5, clip=1e3, rounds=1)
    sent = list(asked.configure_train(1, ARRAYS, None, grid(400)))  # type: ignore[arg-type]
    drawn = {one.metadata.dst_node_id for one in sent}
    assert 150 <= len(drawn) <= 250
    others = [message(files(b=np.full(2, 9.0, np.float32)), node=node) for node in many if node not in drawn]
    reply = message(files(b=np.full(2, 60.0, np.float32)), node=min(drawn))
    arrays, _ = asked.aggregate_train(1, [*others[:3], reply])
    assert arrays is not None
    assert np.allclose(arrays["b"].array, 60 / 200, atol=1e-6)  # of 0.5 times 400, however the coins fell


@pytest.mark.slow
def test_a_round_in_which_nobody_is_drawn_is_noised_and_paid(
    flwr: None, silent: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemNoise, "coins", lambda self, count, rate: torch.zeros(count, dtype=torch.bool))
    asked = strategy(tmp_path, [1, 2], clients=5, rate=0.5, rounds=1)
    with pytest.raises(SordinoError):  # two of five: the strategy must ask everybody
        asked.configure_train(1, ARRAYS, None, grid(5))  # type: ignore[arg-type]
    assert list(asked.configure_train(1, ARRAYS, None, grid(2))) == []  # type: ignore[arg-type]
    arrays, _ = asked.aggregate_train(1, [])
    assert arrays is not None
    assert len(silent) == len(MODEL)
    assert states(tmp_path / "server") == [State.PUBLISHED]


@pytest.mark.parametrize(
    ("nodes", "registered", "terms", "code"),
    [
        ([1, 1], 5, {}, "clients-beyond-plan"),
        ([1, 2], 6, {}, "clients-beyond-plan"),
        ([1, 2], 5, {"neighbours": "zero_out"}, "fixed-cohort-replaces"),
    ],
)
def test_a_cohort_that_the_promise_does_not_cover_is_not_asked(
    nodes: list[int], registered: int, terms: dict[str, Any], code: str, tmp_path: Path
) -> None:
    asked = strategy(tmp_path, nodes, **terms)
    with pytest.raises(SordinoError) as refusal:
        asked.configure_train(1, ARRAYS, None, grid(registered))  # type: ignore[arg-type]
    assert refusal.value.code == code
    assert refusal.value.fix
    assert asked.aggregate_train(1, [message(node=1)]) == (None, None)
    assert states(tmp_path / "server") == []


def test_every_client_may_be_zeroed_out(tmp_path: Path) -> None:
    asked = strategy(tmp_path, [0, 1, 2, 3, 4], neighbours="zero_out")
    assert len(list(asked.configure_train(1, ARRAYS, None, grid(5)))) == 5  # type: ignore[arg-type]


def test_nobody_is_asked_for_scores_nor_beyond_the_budget(tmp_path: Path) -> None:
    asked = strategy(tmp_path, [1, 2])
    assert list(asked.configure_evaluate(1, ARRAYS, None, grid(5))) == []  # type: ignore[arg-type]
    for _ in range(TERMS["rounds"]):
        asked._uplink.of_server([], asked._declared.zero, 2)
    assert list(asked.configure_train(4, ARRAYS, None, grid(5))) == []  # type: ignore[arg-type]
    assert asked.aggregate_train(4, [message(node=1)]) == (None, None)


# whole experiments ---------------------------------------------------------------------------------------------------


class ClientApp:
    """An app that knows its one function."""

    def query(self, action: str) -> Any:
        def known(function: Any) -> Any:
            self.answer = function
            return function

        return known


def test_a_site_of_a_whole_experiment_tells_nothing_of_what_fails(
    flwr: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Neither its settings, nor what it was asked, nor the text of an error leave it."""
    monkeypatch.setitem(sys.modules, "flwr.clientapp", SimpleNamespace(ClientApp=ClientApp))  # type: ignore[arg-type]
    terms = dict.fromkeys(("experiment", "server_key", "client", "data", "identity", "folder"), f"{tmp_path}/{SECRET}")
    app: Any = site_app(**terms)
    asked = message()
    for data in (b"", b"no question", SECRET.encode()):
        asked.content.array_records = {"sordino": {"sordino": SimpleNamespace(data=data)}}
        answer = app.answer(asked, CONTEXT)
        assert [*answer.content] == ["sordino"]
        assert answer.content["sordino"]["sordino"].data == b""
    assert "this site does not answer" in caplog.text
    assert sent_by_nvflare(caplog) == []
    with pytest.raises(SordinoError) as failure:
        site_app(**{**terms, "folder": "{unknown}"}).answer(asked, CONTEXT)  # type: ignore[attr-defined]
    assert failure.value.code == "failed-at-client"
    assert SECRET not in repr(failure.value)
    assert not [*tmp_path.iterdir()]


def test_a_message_that_flower_does_not_take_ends_the_run(
    flwr: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asks(nodes: Any, **settings: Any) -> None:
        assert nodes.present() == {1, 2}
        nodes.ask(1, b"a question")

    monkeypatch.setattr(elsewhere, "serve_elsewhere", asks)
    for taken in ([], [None]):
        grid: Any = SimpleNamespace(get_node_ids=lambda: [1, 2], push_messages=lambda messages, taken=taken: taken)
        with pytest.raises(SordinoError) as refusal:
            serve(grid)
        assert refusal.value.code == "not-carried"
