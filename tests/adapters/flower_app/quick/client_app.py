"""The app of the clients. What makes it private stands between the two lines."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quick.task import Net, train

PLACE = Path(os.environ["QUICK_PLACE"])

# ----------------------------------------------------------------------------------------------------------------------
from sordino.adapters.flower import private_mod  # noqa: E402

private = private_mod(
    f"{PLACE}/site-{{partition-id}}", Net().state_dict(), epsilon=12.0, delta=1e-5, clip=1.0, rounds=3
)
# ----------------------------------------------------------------------------------------------------------------------


def chosen(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """With noise at the client where the run says so; and killed, once, when a round is paid and nothing has left."""
    if context.run_config["private"] != "client":
        return call_next(message, context)
    reply = private(message, context, call_next)
    dies = context.run_config["kill"] == "client" and context.node_config["partition-id"] == 0
    if dies and not (mark := PLACE / "killed-client").exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return reply


app = ClientApp(mods=[chosen])


@app.train()
def learn(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(net, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": 50})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
