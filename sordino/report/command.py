"""`sordino report`, `sordino privacy export` and `sordino dashboard`: pages and figures of a run, documents for third
parties, and a run live in a browser.

The dashboard is a separate program that only reads a run's files. It holds no keys of the run, can be started and
stopped at any time, and cannot make the run fail.
"""

from __future__ import annotations

import contextlib
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.branches import when_used
from sordino.cli import Figures, PlanCode, Quiet, Screen, SignedBy
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from sordino.receipts.documents import Evidence


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    evaluator: Annotated[
        bool,
        typer.Option(
            "--evaluator", help="With real noise: add scores that only the evaluator may see, in RUN/private."
        ),
    ] = False,
    figures: Figures = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page and its figures, if RUN is read-only.")] = None,
) -> None:
    """One self-contained page per run: curves, guarantees in words, spending, partition. Opens from disk, needs no
    network.
    """
    if out is not None and len(folders) > 1:
        raise ConfigError(
            f"--out {out} with {len(folders)} runs",
            why="their pages would overwrite each other",
            fix="give one RUN with each --out",
            code="one-run-for-out",
        )
    with when_used("torch"):
        from sordino.report.figures import available, of_run
        from sordino.report.run_facts import gather
        from sordino.report.run_page import page_of, write

    if figures is not None:
        available()
    for folder in folders:
        facts = gather(folder, evaluator)
        elsewhere = None if out is None else out / page_of(folder, evaluator).name
        written = [write(folder, elsewhere, facts, evaluator)]
        if figures is not None:
            written += of_run(facts, written[0].parent / "figures", figures)
        for path in written:
            Screen().print(str(path), highlight=False, soft_wrap=True, markup=False)
        if open_:
            typer.launch(str(written[0].resolve()))


class Document(StrEnum):
    """Documents that `sordino privacy export` writes."""

    annex = "annex"
    registry = "registry"
    card = "card"
    dsse = "dsse"


FILES = {
    Document.annex: "annex.html",
    Document.registry: "deployment.yaml",
    Document.card: "model-card.md",
    Document.dsse: "receipt.dsse.json",
}


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a copy of its public files.")],
    as_: Annotated[
        Document,
        typer.Option(
            "--as",
            help="annex: a page for a data protection assessment; registry: a record for the registry of DP "
            "deployments; card: a model card; dsse: a signed envelope with an in-toto statement.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Output file; .pdf for an annex prints it. [default: in RUN]")
    ] = None,
    key: SignedBy = None,
    with_code: PlanCode = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Export even a receipt that does not hold; the document says so on its top."),
    ] = False,
) -> None:
    """Export a document for third parties from receipt and ledger alone. Both are verified first: exit code 5."""
    target = out if out is not None else folder / FILES[as_]
    kinds = {FILES[as_][FILES[as_].rindex(".") :], *([".pdf"] if as_ is Document.annex else [])}
    if target.suffix not in kinds:
        raise ConfigError(
            f"--as {as_.value} cannot be written as {target.name}",
            fix=f"give a file that ends in {' or '.join(sorted(kinds))}",
            code="unknown-document-kind",
        )
    with when_used("torch"):
        from sordino.receipts.documents import gather

    found = gather(folder, key, with_code, anyway and as_ is not Document.dsse)  # which has no top to say it on
    typer.echo(str(_written(found, as_, folder, target)))


def _written(found: Evidence, as_: Document, folder: Path, target: Path) -> Path:
    from sordino.ledger.files import atomic_write
    from sordino.receipts.documents import card, record
    from sordino.receipts.signature import envelope

    with when_used("torch"):
        from sordino.report.run_page import annex_page, as_pdf

    if target.suffix == ".pdf":
        return as_pdf(annex_page(found), target)
    made = {Document.annex: annex_page, Document.registry: record, Document.card: card}
    text = made[as_](found) if as_ in made else envelope(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, text.encode())
    return target


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
    from sordino.report.dashboard import Dashboard, new_token, token_of
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
