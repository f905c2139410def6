"""NVFlare: a result filter that makes a site's uploads private.

It is no `DXOFilter`, which lets pass whatever it does not know: what leaves is a new reply that holds the noised model
and nothing else, and any other result is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino.adapters.declared import DeclaredArrays, undeclared
from sordino.adapters.private_uplink import PrivateUplink, UplinkTerms

try:
    from nvflare.apis.filter import Filter
except ModuleNotFoundError:  # it can be looked at without the package
    Filter = object


class PrivateFilter(Filter):  # type: ignore[misc]
    """A task result filter that clips and noises what a site has learned in a round, and stops with its budget.

    `folder`: keeps budget and receipt; "{site}" in it stands for the site's name. `model`: shape and type of each
    declared array, as in {"w": [[3, 2], "float32"]}. `rounds`: how often this site answers, over all jobs. Metrics and
    numbers of steps stay at the site: every site has weight 1.
    """

    def __init__(
        self,
        folder: str,
        model: Mapping[str, Sequence[Any]],
        epsilon: float,
        delta: float,
        clip: float,
        rounds: int,
    ) -> None:
        super().__init__()
        # the names of the arguments: a job is written down from them
        self.folder, self.model = folder, model
        self.epsilon, self.delta, self.clip, self.rounds = epsilon, delta, clip, rounds

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """The reply that leaves. An error here is logged at the site, and the server learns that there was one."""
        from nvflare.apis.dxo import DXO, DataKind, from_shareable
        from nvflare.apis.fl_constant import FLContextKey, ReturnCode
        from nvflare.apis.shareable import make_reply
        from nvflare.app_common.app_constant import AppConstants

        if (code := shareable.get_return_code()) != ReturnCode.OK:
            return make_reply(code if code in vars(ReturnCode).values() else ReturnCode.EXECUTION_EXCEPTION)
        declared = DeclaredArrays.described(self.model)
        result, asked = from_shareable(shareable), fl_ctx.get_prop(FLContextKey.TASK_DATA)
        if result.data_kind == DataKind.WEIGHT_DIFF:
            change = declared.tensors(result.data)
        elif result.data_kind == DataKind.WEIGHTS:
            before = from_shareable(asked).data
            change = declared.change(before, result.data)
        else:  # metrics, statistics, a collection
            raise undeclared()
        folder = self.folder.format(site=fl_ctx.get_identity_name())
        terms = UplinkTerms(self.epsilon, self.delta, self.clip, self.rounds)
        uplink = PrivateUplink(folder, declared.coordinates, terms, "client")
        noised = uplink.of_client(change)
        full = result.data_kind == DataKind.WEIGHTS
        sent = declared.moved(before, noised) if full else {name: leaf.numpy() for name, leaf in noised.items()}
        reply = DXO(result.data_kind, data=sent).to_shareable()
        if (number := asked.get_header(AppConstants.CURRENT_ROUND)) is not None:
            reply.set_header(AppConstants.CURRENT_ROUND, number)  # as the server said it
        return reply
