"""NVFlare: a result filter that makes a site's uploads private, an aggregator that makes a server's sums private, and
controller and executor of a whole sordino experiment.

The filter builds a new reply that holds the noised model update and nothing else, and refuses other kinds of results.
It is not a `DXOFilter`, since that passes on fields that it does not know.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sordino import branches
from sordino.adapters.private_uplink import Arrays, DeclaredArrays, PrivateUplink, UplinkTerms, log
from sordino.errors import Range, RunError, SordinoError, UnsoundGuarantee, WireError, check_range
from sordino.types import Params

try:
    from nvflare.apis.executor import Executor
    from nvflare.apis.filter import Filter
    from nvflare.apis.impl.controller import Controller
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
except ModuleNotFoundError:  # the classes can be read without the package
    Controller = Executor = Filter = ModelAggregator = object

TASK = "sordino"  # name of the tasks that carry messages of a run, and of these bytes in a Shareable
PROCESSED = "PROCESSED_ALGORITHM"  # in a result's meta: the filter that has encrypted it
Declaration = Mapping[str, Sequence[Any]]  # shape and type of each array, as in {"w": [[3, 2], "float32"]}


class PrivateFilter(Filter):  # type: ignore[misc]
    """A task result filter that clips and noises a site's model update in a round, and stops when its budget is spent.

    `folder`: keeps budget and receipt; "{site}" in it stands for the site's name. `model`: the declared arrays.
    `rounds`: how often this site answers, over all jobs. Metrics and numbers of steps stay at the site: every site
    weighs 1.
    """

    def __init__(self, folder: str, model: Declaration, epsilon: float, delta: float, clip: float, rounds: int) -> None:
        super().__init__()
        # attributes named like the arguments: NVFlare writes a job from them
        self.folder, self.model = folder, model
        self.epsilon, self.delta, self.clip, self.rounds = epsilon, delta, clip, rounds

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """The noised update, to be sent. Of an error the server learns only that there was one, where the site forbids
        NVFlare to send its log (`allow_log_streaming` in its resources.json).
        """
        from nvflare.apis.dxo import DXO, DataKind, from_shareable
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.shareable import make_reply

        if (code := shareable.get_return_code()) != ReturnCode.OK:
            return make_reply(code if code in vars(ReturnCode).values() else ReturnCode.EXECUTION_EXCEPTION)
        result, declared = from_shareable(shareable), DeclaredArrays.described(self.model)
        _check_change(result.data_kind == DataKind.WEIGHT_DIFF, result.meta or {})
        change = declared.tensors(result.data)
        folder = self.folder.format(site=fl_ctx.get_identity_name())
        terms = UplinkTerms(self.epsilon, self.delta, self.clip, self.rounds)
        noised = PrivateUplink(folder, declared.coordinates, terms, "client").of_client(change)
        return DXO(DataKind.WEIGHT_DIFF, data=_arrays(noised)).to_shareable()


class PrivateAggregator(ModelAggregator):  # type: ignore[misc]
    """An aggregator with central differential privacy: it adds noise to the sum of clipped updates, with which sites
    trust the server.

    `clients`: the most that may be registered; each pays for every round. `asked`: how many a round asks; the sum is
    divided by it, however many answer. When the budget is spent, the job ends with an error and keeps its last model.
    """

    def __init__(
        self,
        folder: str,
        model: Declaration,
        epsilon: float,
        delta: float,
        clip: float,
        rounds: int,
        clients: int,
        asked: int,
    ) -> None:
        super().__init__()
        check_range("asked", asked, Range(least=1, most=clients, whole=True), "out-of-range")
        self.folder, self.model = folder, model
        self.epsilon, self.delta, self.clip, self.rounds = epsilon, delta, clip, rounds
        self.clients, self.asked = clients, asked
        self._changes: dict[str, Params] = {}
        self._refusal: SordinoError | None = None  # latest refusal in this round

    @property
    def _declared(self) -> DeclaredArrays:
        return DeclaredArrays.described(self.model)

    @property
    def _uplink(self) -> PrivateUplink:
        terms = UplinkTerms(self.epsilon, self.delta, self.clip, self.rounds, self.clients)
        return PrivateUplink(self.folder, self._declared.coordinates, terms, "server")

    def reset_stats(self) -> None:
        """Begins a round; refused if the budget is spent."""
        self._changes, self._refusal = {}, None
        self._uplink.check_left()

    def accept(self, shareable: Any, fl_ctx: Any) -> bool:
        """True if a site's result is accepted; False if it is refused: the workflow goes on with other sites."""
        try:
            return bool(super().accept(shareable, fl_ctx))
        except Exception as error:  # a parser of untrusted bytes may raise anything
            log.warning("a result was refused: %s", getattr(error, "what", type(error).__name__))
            return False

    def accept_model(self, model: Any) -> None:
        """Stores a site's model update. Raises an error for a result of another kind, or for a second one in a round:
        it counts as zeros in the sum, and the workflow reports that the site's contribution was not accepted.
        """
        site, meta = str(model.meta.get("client_name")), model.meta
        try:
            _check_change(getattr(model.params_type, "value", None) == "DIFF", meta)
            if site in self._changes or len(self._changes) == self.asked:
                raise UnsoundGuarantee(
                    f"{site} answers twice, or beside the {self.asked} sites that a round asks",
                    why="a client takes part at most once in a round, and the sum is divided by those who were asked",
                    fix="set `asked` to the number of sites that a round of the job asks",
                    code="clients-beyond-plan",
                )
            self._changes[site] = self._declared.tensors(model.params)
        except SordinoError as refusal:
            self._refusal = refusal
            raise

    def aggregate_model(self) -> Any:
        """The noised mean update. Sites' metrics are dropped, since no noise protects them. If no site
        answered, or every result was refused, nothing is paid, and the job ends with the reason.
        """
        if not self._changes:
            raise self._refusal or RunError(
                "no site has answered in this round",
                why="the budget would pay for a sum that is noise alone",
                fix="look into the logs of the sites, and submit the job again: its budget is what it was",
                code="nobody-answered",
            )
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        mean = self._uplink.of_server(self._changes.values(), self._declared.zero, self.asked)
        self._changes = {}
        return FLModel(params=_arrays(mean), params_type=ParamsType.DIFF)


class RunController(Controller):  # type: ignore[misc]
    """Runs a whole sordino experiment with the sites of a job; where its folder holds earlier rounds, it continues
    after them. The settings are those of `sordino serve` (see `sites.elsewhere.serve_elsewhere`).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = dict(settings)

    def start_controller(self, fl_ctx: Any) -> None:
        """Does nothing; NVFlare requires it."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Does nothing; NVFlare requires it."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        from nvflare.apis.controller_spec import Task
        from nvflare.apis.shareable import Shareable

        elsewhere: Any = branches.part("sites", "elsewhere")
        controller = self
        came, lock = dict[str, bytes](), threading.Lock()

        class JobNodes(elsewhere.Nodes):  # type: ignore[misc]
            def present(self) -> set[str]:
                if abort_signal.triggered:
                    raise RunError(
                        "the job was aborted", fix="submit it again: it continues from its folder", code="job-aborted"
                    )
                return {one.name for one in fl_ctx.get_engine().get_clients()}

            def ask(self, node: str, question: bytes) -> str:
                ticket, asked = uuid.uuid4().hex, Shareable()
                asked[TASK] = question

                def done(task: Any, fl_ctx: Any) -> None:
                    with lock:
                        came.setdefault(ticket, b"")  # no answer came

                def received(client_task: Any, fl_ctx: Any) -> None:
                    with lock:
                        came[ticket] = _carried(client_task.result)
                    client_task.result = None

                controller.send(Task(TASK, asked, result_received_cb=received, task_done_cb=done), fl_ctx, [node])
                return ticket

            def answers(self, tickets: Collection[str]) -> dict[str, bytes]:
                with lock:
                    return {ticket: came.pop(ticket) for ticket in [*tickets] if ticket in came}

        elsewhere.serve_elsewhere(JobNodes(), **self.settings)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Takes part in a whole sordino experiment. In the terms (see `sites.elsewhere.SiteTerms`) "{site}" stands for the
    site's name, as in "/data/{site}"; `client` is this name, where it is left out.
    """

    def __init__(self, terms: Mapping[str, Any]) -> None:
        super().__init__()
        self.terms = dict(terms)
        self._site: Any = None

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.shareable import Shareable, make_reply

        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        if self._site is None:
            site, elsewhere = fl_ctx.get_identity_name(), branches.part("sites", "elsewhere")
            own = {k: v.replace("{site}", site) if isinstance(v, str) else v for k, v in self.terms.items()}
            self._site = elsewhere.SiteElsewhere(elsewhere.SiteTerms(**{"client": site, **own}))
        reply = Shareable()
        reply[TASK] = self._site.answer(_carried(shareable))
        return reply

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        from nvflare.apis.event_type import EventType

        if event_type == EventType.END_RUN and self._site is not None:
            self._site.close()


def _carried(shareable: Any) -> bytes:
    """The bytes of a message; empty if it is of another kind, or reports a failure."""
    found = shareable.get(TASK)
    return found if isinstance(found, bytes) else b""


def _arrays(change: Params) -> Arrays:
    return {name: leaf.numpy() for name, leaf in change.items()}


def _check_change(change: bool, meta: Mapping[str, Any]) -> None:
    """Refuses a result of another kind, and one that an earlier filter has encrypted."""
    if meta.get(PROCESSED) is not None:
        raise UnsoundGuarantee(
            "the result was encrypted, or processed in another way, before it could be clipped",
            why="what cannot be read cannot be clipped",
            fix="let a PrivateFilter stand before the filter that encrypts; before a PrivateAggregator none may",
            code="secure-sum-elsewhere",
        )
    if not change:
        raise WireError(
            "the result is not one change of a model",
            why="a clip bounds a change; a whole model, metrics or statistics would leave as they are",
            fix="set params_transfer_type = TransferType.DIFF, and let the filter stand before training tasks alone",
            code="not-a-change",
        )
