"""NVFlare: a result filter that makes a site's uploads private, and an aggregator that makes a server's sums private.

The filter is no `DXOFilter`, which lets pass whatever it does not know: what leaves is a new reply that holds the
noised change of the model and nothing else, and any other result is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino.adapters.declared import Arrays, DeclaredArrays
from sordino.adapters.private_uplink import PrivateUplink, UplinkTerms, log
from sordino.errors import Range, SordinoError, WireError, check_range
from sordino.types import Params

try:
    from nvflare.apis.filter import Filter
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
except ModuleNotFoundError:  # the classes can be read without the package
    Filter = ModelAggregator = object

Declaration = Mapping[str, Sequence[Any]]  # shape and type of each array, as in {"w": [[3, 2], "float32"]}


class PrivateFilter(Filter):  # type: ignore[misc]
    """A task result filter that clips and noises what a site has learned in a round, and stops with its budget.

    `folder`: keeps budget and receipt; "{site}" in it stands for the site's name. `model`: the declared arrays.
    `rounds`: how often this site answers, over all jobs. Metrics and numbers of steps stay at the site: every site
    weighs 1.
    """

    def __init__(self, folder: str, model: Declaration, epsilon: float, delta: float, clip: float, rounds: int) -> None:
        super().__init__()
        # under the names of the arguments, from which a job is written
        self.folder, self.model = folder, model
        self.epsilon, self.delta, self.clip, self.rounds = epsilon, delta, clip, rounds

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """The reply that leaves. An error is logged at the site, and the server learns only that there was one."""
        from nvflare.apis.dxo import DXO, DataKind, from_shareable
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.shareable import make_reply

        if (code := shareable.get_return_code()) != ReturnCode.OK:
            return make_reply(code if code in vars(ReturnCode).values() else ReturnCode.EXECUTION_EXCEPTION)
        result, declared = from_shareable(shareable), DeclaredArrays.described(self.model)
        if result.data_kind != DataKind.WEIGHT_DIFF:
            raise _no_change()
        change = declared.tensors(result.data)
        folder = self.folder.format(site=fl_ctx.get_identity_name())
        terms = UplinkTerms(self.epsilon, self.delta, self.clip, self.rounds)
        noised = PrivateUplink(folder, declared.coordinates, terms, "client").of_client(change)
        return DXO(DataKind.WEIGHT_DIFF, data=_arrays(noised)).to_shareable()


class PrivateAggregator(ModelAggregator):  # type: ignore[misc]
    """An aggregator that adds noise to the sum of clipped changes: sites trust the server with what they send.

    `clients`: all that may be registered; each pays for every round. `asked`: how many of them a round asks, by which
    the sum is divided, whoever answers. A job whose budget is spent ends with an error, and its last model stays.
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

    @property
    def _declared(self) -> DeclaredArrays:
        return DeclaredArrays.described(self.model)

    @property
    def _uplink(self) -> PrivateUplink:
        terms = UplinkTerms(self.epsilon, self.delta, self.clip, self.rounds, self.clients)
        return PrivateUplink(self.folder, self._declared.coordinates, terms, "server")

    def reset_stats(self) -> None:
        """Begins a round, if the budget pays for it."""
        self._changes.clear()
        self._uplink.check_left()

    def accept_model(self, model: Any) -> None:
        """Keeps a site's change, once. Anything else counts as zeros, as if the site had not answered."""
        site = str(model.meta.get("client_name"))
        try:
            if getattr(model.params_type, "value", None) != "DIFF" or site in self._changes:
                raise _no_change()
            if len(self._changes) < self.asked:
                self._changes[site] = self._declared.tensors(model.params)
        except SordinoError as error:
            log.warning("what %s sent counts as zeros: %s", site, error.what)

    def aggregate_model(self) -> Any:
        """The noised mean. Metrics of sites are dropped, as no noise covers them."""
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        mean = self._uplink.of_server(self._changes.values(), self._declared.zero, self.asked)
        self._changes.clear()
        return FLModel(params=_arrays(mean), params_type=ParamsType.DIFF)


def _arrays(change: Params) -> Arrays:
    return {name: leaf.numpy() for name, leaf in change.items()}


def _no_change() -> WireError:
    return WireError(
        "the result is not one change of a model",
        why="a clip bounds a change; a whole model, metrics or statistics would leave as they are",
        fix="set params_transfer_type = TransferType.DIFF, and let the filter stand before training tasks alone",
        code="not-a-change",
    )
