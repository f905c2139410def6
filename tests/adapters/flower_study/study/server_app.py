"""The app of the server: a run folder, which the same app continues."""

from __future__ import annotations

import os
import signal

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.adapters.flower import serve
from sordino.runs.play import Progress

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    place = context.run_config["place"]

    def watch(progress: Progress) -> None:
        if context.run_config["kill"] and progress.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    serve(
        grid,
        experiment=f"{place}/experiment.toml",
        agreement=f"{place}/agreement.toml",
        identity=f"{place}/server",
        sites=f"{place}/sites.toml",
        folder=f"{place}/run",
        rehearsal=True,
        watch=watch,
    )
