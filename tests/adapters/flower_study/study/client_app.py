"""The app of the sites: what each has accepted, and what is its own, stands in the configuration of its node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordino.adapters.flower import site_app

whole = site_app(
    experiment="{study}/experiment.toml",
    server_key="{study}/server.pub",
    client="site-{partition-id}",
    data="{study}/site-{partition-id}-data",
    identity="{study}/site-{partition-id}",
    folder="{study}/site-{partition-id}-run",
    rehearsal=True,
)
app = ClientApp()


@app.query("sordino")
def answer(message: Message, context: Context) -> Message:
    """As the app above; killed, once, when a round is computed and nothing has left."""
    reply = whole(message, context)
    own = Path(f"{context.node_config['study']}/site-0-run/replies")
    if context.node_config["partition-id"] == 0 and [*own.glob("answer-*")] and not (own / "killed").exists():
        (own / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return reply
