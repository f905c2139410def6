"""Flower: a mod that makes a client's uploads private, a strategy that makes a server's sums private, and apps of a
whole sordino experiment.

A `ClientApp` that is wrapped by `private_mod` sends noised arrays and nothing else. A strategy inside `PrivateStrategy`
is shown one noised mean, as if it were the only reply, so what it computes from that needs no further noise.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino import branches
from sordino.adapters.private_uplink import Arrays, DeclaredArrays, PrivateUplink, UplinkTerms, failed, undeclared
from sordino.errors import BudgetExhausted, RunError, SordinoError, UnsoundGuarantee, WireError
from sordino.privacy.noise.sources import SystemNoise
from sordino.types import Neighbours, Params

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy

    Call = Callable[[Message, Context], Message]

log = logging.getLogger(__name__)
ACTION = "sordino"  # marks the messages of a whole experiment
SECURE_SUM = "secaggplus_configs"  # the record of a step of SecAgg and SecAgg+
WEIGHT = "num-examples"  # metric by which Flower's strategies weigh by default


def private_mod(
    folder: str | Path,
    model: Mapping[str, Any],
    *,
    epsilon: float,
    delta: float,
    clip: float,
    rounds: int,
    weighted_by: str = WEIGHT,
) -> Callable[[Message, Context, Call], Message]:
    """A mod for `ClientApp(mods=[...])`, which clips and noises this client's model update in a round.

    `folder`: keeps budget and receipt, and may name keys of the node's configuration, as in "runs/{partition-id}".
    `model`: the declared arrays. `rounds`: how often this client answers, over all runs of the app. Losses, scores and
    numbers of examples stay at the client: every client has weight 1.
    """
    declared = DeclaredArrays(model)
    terms = UplinkTerms(epsilon, delta, clip, rounds)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        try:
            return private(message, context, call_next)
        except (WireError, BudgetExhausted, UnsoundGuarantee):  # their texts repeat no value of a row
            raise
        except Exception as error:
            raise failed(error) from None

    def private(message: Message, context: Context, call_next: Call) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            raise UnsoundGuarantee(
                "this client is asked for something else than training",
                why="scores of a model on its rows are releases, and no noise covers them",
                fix="set fraction_evaluate = 0, and evaluate at the server, on data of its own",
                code="client-only-trains",
            )
        if SECURE_SUM in message.content.config_records:
            raise UnsoundGuarantee(
                "this client is asked for a step of Flower's secure sum",
                why="its steps send keys, shares and a number of examples, which are not the declared arrays",
                fix="leave the secure sum out: with noise at each client the server may see every upload; or run the "
                "experiment between real sites, whose secure sums add noise in shares",
                code="secure-sum-elsewhere",
            )
        uplink = PrivateUplink(str(folder).format_map(context.node_config), declared.coordinates, terms, "client")
        uplink.check_left()  # before any row is read
        key, before = _arrays(declared, message)
        try:
            reply = call_next(message, context)
        except Exception as error:  # of any kind: its text could repeat a row
            raise RuntimeError("the training failed") from error
        _, after = _arrays(declared, reply)
        released = declared.moved(before, uplink.of_client(declared.change(before, after)))
        return _message({key: _record(released)}, weighted_by, reply_to=message)

    return mod


class PrivateStrategy:
    """A Flower strategy with central differential privacy: clients trust the server with their updates, and the models
    that it sends out are noised, so they hide each single client.

    `clients`: the most that may be registered. Every client pays for every round. Flower samples cohorts of a fixed
    size: no amplification, and since one more client may push another one out, neighbours are `replace`. With a `rate`,
    a strategy that messages all clients has each message sent with that probability only, by a secret coin: Poisson
    sampling, which amplifies (Balle, Barthe and Gaboardi 2018), with neighbours `zero_out`.
    """

    def __init__(
        self,
        strategy: Strategy,
        folder: str | Path,
        model: Mapping[str, Any],
        *,
        epsilon: float,
        delta: float,
        clip: float,
        rounds: int,
        clients: int,
        neighbours: Neighbours | None = None,
        rate: float | None = None,
    ) -> None:
        neighbours = neighbours or ("replace" if rate is None else "zero_out")
        self._inner, self._declared, self._most, self._neighbours = strategy, DeclaredArrays(model), clients, neighbours
        terms = UplinkTerms(epsilon, delta, clip, rounds, clients, neighbours, rate)
        self._uplink = PrivateUplink(folder, self._declared.coordinates, terms, "server")
        self._rate, self._expected = rate, 0.0  # expected cohort size: 0 before a round, or if nobody is asked
        self._asked: frozenset[int] = frozenset()
        self._before: Arrays = {}

    def start(self, *args: Any, **settings: Any) -> Result:
        """Runs the loop of rounds of the wrapped Flower strategy."""
        return type(self._inner).start(self, *args, **settings)

    def summary(self) -> None:
        self._inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Training messages of the wrapped strategy; none once the budget is spent, so that the model stays as
        it is.
        """
        self._asked, self._expected = frozenset(), 0.0
        try:
            self._uplink.check_left()
        except BudgetExhausted as error:
            log.warning("round %s asks nobody: %s", server_round, error.what)
            return []
        messages = list(self._inner.configure_train(server_round, arrays, config, grid))
        nodes, registered = [one.metadata.dst_node_id for one in messages], len(set(grid.get_node_ids()))
        if len(set(nodes)) < len(nodes) or registered > self._most:
            raise UnsoundGuarantee(
                f"{len(nodes)} messages to {len(set(nodes))} of {registered} clients, where {self._most} are planned",
                why="a client takes part at most once in a round, and the promise counts the clients",
                fix="plan for all clients that may register, and send each one message",
                code="clients-beyond-plan",
            )
        if self._neighbours != "replace" and len(nodes) < registered:
            raise UnsoundGuarantee(
                f"a cohort of {len(nodes)} of {registered} clients, with {self._neighbours} neighbours",
                why='a cohort of fixed size puts another client in place of a missing one, as only "replace" allows',
                fix='leave neighbours = "replace", or ask every client in every round',
                code="fixed-cohort-replaces",
            )
        self._expected, self._before = len(nodes) * (self._rate or 1.0), _read(self._declared, arrays)
        if self._rate is not None:
            coins = SystemNoise().coins(len(nodes), self._rate).tolist()
            messages = [one for one, drawn in zip(messages, coins, strict=True) if drawn]
        self._asked = frozenset(one.metadata.dst_node_id for one in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The wrapped strategy's result from one noised mean. Clients' metrics are dropped, since no noise protects
        them. A round without a valid reply costs nothing and changes nothing; but under `zero_out`, where a missing
        client must go unnoticed, it is computed from a sum of zeros, and paid for.
        """
        if not self._expected:
            return None, None
        changes = self._changes(replies)
        first = list(itertools.islice(changes, 1))
        if not first and self._neighbours == "replace":
            log.error("round %s changes nothing: no client sent the declared arrays", server_round)
            return None, None
        mean = self._uplink.of_server(itertools.chain(first, changes), self._declared.zero, self._expected)
        after, weight = self._declared.moved(self._before, mean), getattr(self._inner, "weighted_by_key", WEIGHT)
        only = _message({"arrays": _record(after)}, weight, dst_node_id=1, message_type="train")
        made: ArrayRecord | None = self._inner.aggregate_train(server_round, [only])[0]
        return made, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: scores on clients' rows would be releases. The server may evaluate on data of its own
        (`evaluate_fn`).
        """
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """No result, since no client was asked to evaluate."""

    def _changes(self, replies: Iterable[Message]) -> Iterator[Params]:
        """Model update of each client with a valid reply; an invalid reply is skipped, as if it had never come."""
        waiting = set(self._asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node not in waiting or reply.has_error():
                    raise undeclared()
                waiting.discard(node)
                yield self._declared.change(self._before, _arrays(self._declared, reply)[1])
            except SordinoError as error:
                log.warning("the reply of client %s counts as zeros: %s", node, error.what)


def _arrays(declared: DeclaredArrays, message: Message) -> tuple[str, Arrays]:
    """The one record of arrays in a message, with its key; refused where it is not the declared model."""
    records = message.content.array_records
    if len(records) != 1:
        raise undeclared()
    key, record = next(iter(records.items()))
    return key, _read(declared, record)


def _read(declared: DeclaredArrays, record: ArrayRecord) -> Arrays:
    return declared.from_npy({name: one.data for name, one in record.items()})


def _record(arrays: Arrays) -> ArrayRecord:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(one) for name, one in arrays.items()})


def _message(records: dict[str, Any], weighted_by: str, **to: Any) -> Message:
    """A message with these records, whose sender has weight 1."""
    from flwr.app import Message, MetricRecord, RecordDict

    return Message(RecordDict({**records, "metrics": MetricRecord({weighted_by: 1.0})}), **to)


# whole experiments ----------------------------------------------------------------------------------------------------


def serve(grid: Grid, **settings: Any) -> Any:
    """Runs a whole sordino experiment in the main function of a `ServerApp`; where its folder holds earlier rounds, it
    continues after them. The settings are those of `sordino serve` (see `sites.elsewhere.serve_elsewhere`).
    """
    elsewhere: Any = branches.part("sites", "elsewhere")

    class FlowerNodes(elsewhere.Nodes):  # type: ignore[misc]
        starts_anew = True

        def present(self) -> set[int]:
            return set(grid.get_node_ids())

        def ask(self, node: int, question: bytes) -> str:
            message = _carrying(question, dst_node_id=node, message_type=f"query.{ACTION}")
            for ticket in grid.push_messages([message]):
                if ticket is not None:
                    return str(ticket)
            raise RunError(
                f"Flower did not take a message of {len(question)} bytes",
                why="it is longer than the SuperLink, or a proxy before it, allows",
                fix="raise that limit, which the log of the SuperLink names, and start again: the run continues from "
                "its folder",
                code="not-carried",
            )

        def answers(self, tickets: Collection[str]) -> dict[str, bytes]:
            replies = list(grid.pull_messages(list(tickets))) if tickets else []
            return {reply.metadata.reply_to_message_id: _carried(reply) for reply in replies}

    return elsewhere.serve_elsewhere(FlowerNodes(), **settings)


def site_app(**terms: Any) -> ClientApp:
    """`ClientApp` that takes part in a whole sordino experiment as a site. The terms (see `sites.elsewhere.SiteTerms`)
    may name keys of the node's configuration, as in data = "/data/{partition-id}".
    """
    from flwr.clientapp import ClientApp

    elsewhere, app = branches.part("sites", "elsewhere"), ClientApp()

    @app.query(ACTION)  # type: ignore[untyped-decorator]
    def answer(message: Message, context: Context) -> Message:
        try:
            own = {k: v.format_map(context.node_config) if isinstance(v, str) else v for k, v in terms.items()}
            site = elsewhere.SiteElsewhere(elsewhere.SiteTerms(**own))
            try:
                answered = site.answer(_carried(message))
            finally:
                site.close()
        except Exception as error:  # Flower would send its text to the server
            raise failed(error) from None
        return _carrying(answered, reply_to=message)

    return app


def _carrying(data: bytes, **to: Any) -> Message:
    """A Flower message that carries these bytes, as an array: Flower sends long arrays in pieces."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    array = Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)
    return Message(RecordDict({ACTION: ArrayRecord({ACTION: array})}), **to)


def _carried(message: Message) -> bytes:
    """The bytes that `_carrying` put into a message; empty if the message is of another kind, or reports an error."""
    records = {} if message.has_error() else message.content.array_records
    return records[ACTION][ACTION].data if ACTION in records and ACTION in records[ACTION] else b""
