"""`sordino dashboard`: a run in a browser while it goes on, served by a separate program that only reads its files.

It holds no keys of the run, can be started and stopped at any time, and cannot make the run fail.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import Quiet


def dashboard(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: of a simulation, a server or a site.")],
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 is any free one.")
    ] = "127.0.0.1:0",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the access token; made if it does not exist."),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the server's certificate, as made by `sordino certificates`."),
    ] = None,
    evaluator: Annotated[
        bool,
        typer.Option("--evaluator", help="With real noise: add what only the evaluator may see; needs a token."),
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a run live in the browser: rounds, scores, sites, epsilon spent. It only reads files.

    At /metrics it has numbers of the run for Prometheus. Another address than this machine's own needs --certificates
    and --token-file.
    """
    from sordino.receipts.folder import RunFolder
    from sordino.report.dashboard.http_server import Dashboard, new_token, token_of
    from sordino.report.dashboard.run_state import WatchedRun
    from sordino.transport.tls import of_server

    RunFolder(run).check()
    watched = WatchedRun(run, evaluator)
    token, new = (None, False) if token_file is None else token_of(token_file)
    if token is None and evaluator and watched.real:
        token, new = new_token(), True
    tls = None if certificates is None else of_server(certificates)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt), Dashboard(watched, bind, tls, token) as server:
            watched.look()
            link = f"{server.link}?token={token}" if new else server.link
            if not quiet or new:
                typer.echo(link)
            if token is not None and not new:
                typer.echo(f"The token is in {token_file}: open {server.link}?token=...")
            if open_:
                typer.launch(f"{server.link}?token={token}" if token is not None else link)
            server.serve_forever()
    finally:
        signal.signal(signal.SIGTERM, before)
