"""Commands of real sites: serve, join, hold-key, and the agreement before a run."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli import Quiet, Screen, Verbose, foreign, say, write
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from sordino.runs.play import Ended, Progress
    from sordino.sites.connecting import Standing
    from sordino.sites.join import Proposed
    from sordino.transport.run_events import RunEvent

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
Identity = Annotated[Path, typer.Option(help="The key that signs messages, made by `sordino identity new`.")]
Certificates = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with this party's certificates, as made by `sordino certificates`."),
]
Rehearsal = Annotated[
    bool, typer.Option("--rehearsal", help="Trial with seeded noise: it protects no one, and the receipt says so.")
]
Moved = Annotated[
    bool,
    typer.Option(
        "--moved",
        help="With real noise: this folder was moved, or restored from an older copy; "
        "what it does not know counts as spent.",
    ),
]
WithCode = Annotated[
    bool, typer.Option("--with-code", help="Import the classes that the invitation names; read them first.")
]
JsonLines = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead of tables; on standard error one for each event."),
]
Invited = Annotated[Path, typer.Argument(metavar="INVITATION.toml", help="Invitation from the server's operator.")]
Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the server, if not that of the invitation.")
]
Data = Annotated[Path, typer.Option("--data", metavar="PATH", help="Data of this site; they never leave it.")]
Name = Annotated[str, typer.Option(help="Name of this client in the agreement.")]


def seconds(text: str) -> float:
    """A time like 30s, 10m or 2h.

    >>> seconds("10m"), seconds("1.5h")
    (600.0, 5400.0)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is not a time: write 30s, 10m or 2h")
    return float(match[1]) * UNITS[match[2]]


def announce(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment of the run.")],
    data: Data,
    name: Annotated[str, typer.Option(help="Name for this client.")],
    identity: Identity,
    out: Annotated[Path | None, typer.Option(help="Output file; never overwritten.")] = None,
) -> None:
    """Announce this site's data to the others: sizes, the shape of an example, a digest; no row."""
    from sordino import config
    from sordino.receipts.signature import private_key
    from sordino.sites.join import data_key
    from sordino.sites.own_data import OwnData

    own = OwnData(config.load(experiment), data, data_key(private_key(identity)))
    _remark(Console(stderr=True), own.remarks)
    _write(own.announced(name).toml(), out)


def agree(
    announced: Annotated[list[Path], typer.Argument(metavar="ANNOUNCED.toml ...", help="Announcements of the sites.")],
    out: Annotated[Path | None, typer.Option(help="Output file; never overwritten.")] = None,
) -> None:
    """Combine the announcements of all sites into one agreement, if they fit together."""
    from sordino.sites.agreement_file import merged, read

    _write(merged([read(path) for path in announced]).toml(), out)


def _write(text: str, out: Path | None) -> None:

    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text, new=True)
        typer.echo(str(out))


def serve(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file, as in a simulation.")],
    identity: Identity,
    allowed: Annotated[Path, typer.Option("--list", help="List of trusted sites: see `sordino identity`.")],
    agreement: Annotated[Path, typer.Option(help="Agreement of the sites: see `sordino data agree`.")],
    bind: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:9443",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address by which sites reach the server, if another.")
    ] = "",
    certificates: Certificates = None,
    own: Annotated[Path | None, typer.Option(metavar="PATH", help="Test data of the server.")] = None,
    minimum: Annotated[int, typer.Option(min=1, help="Fewest clients in a round; with fewer it waits.")] = 2,
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Longest wait for silent sites in a round.")] = "10m",
    out: Annotated[Path | None, typer.Option(help="Run folder; a run in it continues.")] = None,
    moved: Moved = False,
    rehearsal: Rehearsal = False,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Serve a run between real sites. The same command continues a stopped run."""
    from sordino import config
    from sordino.cli.running import show_run
    from sordino.receipts.signature import private_key
    from sordino.sites.serve import ServeOptions
    from sordino.sites.serve import serve as serving
    from sordino.transport.run_events import ROUTINE, WARNINGS
    from sordino.transport.sites import Patience
    from sordino.transport.tls import of_server

    loaded, console = config.load(experiment), Console(stderr=True, quiet=quiet or as_json)
    options = ServeOptions(
        experiment=loaded,
        agreement=agreement,
        folder=out or Path("runs") / loaded.name,
        identity=private_key(identity),
        allowed=allowed,
        bind=bind,
        address=address,
        tls=None if certificates is None else of_server(certificates),
        own=own,
        patience=Patience(timeout=seconds(deadline), minimum=minimum),
        rehearsal=rehearsal,
        moved=moved,
    )
    say = _noting(console)

    def hears(event: RunEvent) -> None:
        if as_json and not quiet:
            _in_json(event)
        elif event.event not in ROUTINE:
            say(f"{'warning: ' if event.event in WARNINGS else ''}{event.words}")

    def go(watch: Callable[[Progress], None]) -> Ended:
        return serving(options, watch, hears, lambda invitation: say(f"sites join with {invitation}"))

    show_run(go, [], as_json, quiet, "the same command")


def join(
    invitation: Invited,
    name: Name,
    identity: Identity,
    data: Data,
    certificates: Certificates = None,
    address: Address = "",
    max_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Refuse a run that can cost a unit that its noise protects (such as an example) more than this, "
            "whatever the server asks. A person with several rows can lose more: see --show-plan."
        ),
    ] = None,
    share_scores: Annotated[
        bool, typer.Option("--share-scores", help="Send this site's test scores to the server; no noise covers them.")
    ] = False,
    key_digest: Annotated[
        str, typer.Option(help="Digest of the key holder's public key, from the key holder and not from the server.")
    ] = "",
    show_plan: Annotated[bool, typer.Option("--show-plan", help="Print what would leave this site, and exit.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Consent without being asked.")] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder of this site; a run in it continues.")] = None,
    with_code: WithCode = False,
    moved: Moved = False,
    rehearsal: Rehearsal = False,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Take part in a run with this site's data. It connects to the server; nothing listens here."""
    from sordino.receipts.signature import private_key
    from sordino.runs.rounds import patience
    from sordino.sites.join import JoinOptions, plan, proposed
    from sordino.sites.join import join as joining

    shown = Console(stderr=True, quiet=quiet or as_json)
    options = JoinOptions(
        invitation=invitation,
        identity=private_key(identity),
        folder=out,
        address=address,
        certificates=certificates,
        with_code=with_code,
        rehearsal=rehearsal,
        data=data,
        name=name,
        max_epsilon=max_epsilon,
        shares_scores=share_scores,
        key_digest=key_digest,
        moved=moved,
    )
    asked = proposed(options)
    console = Screen()
    if show_plan:
        plan(console, asked)
        asked.check()
        return

    def consent(found: Proposed) -> bool:
        plan(console if not (quiet or as_json) else shown, found)
        _remark(shown, found.data.remarks)
        return yes or _agreed()

    with patience() as stopped:
        hears = _in_json if as_json and not quiet else _failures(shown)
        left = joining(asked, consent, stopped, _standing(shown), hears)
    if left is None:
        shown.print("Declined: nothing was sent, nothing was spent.")
        raise typer.Exit(4)
    if as_json:
        say({"folder": str(asked.folder), "over": left.over, **left.receipt.to_json()})
    elif not quiet:
        from sordino.cli.tables import guarantees

        if left.receipt.guarantees:
            console.print(guarantees(left.receipt.guarantees, left.receipt.simulated, left.receipt.phases))
        else:
            console.print("Nothing was asked of this site, and nothing was spent.")
        console.print(f"What this site has spent is in [bold]{escape(str(asked.folder))}[/bold].")
    if not left.over:
        shown.print("Stopped. The run continues without this site; the same command rejoins it.")
        raise typer.Exit(130)


def _agreed() -> bool:
    try:
        return typer.confirm("Take part?", default=False)
    except typer.Abort:
        raise ConfigError(
            "this site has not consented to take part",
            why="there is no terminal to ask on, or the question was interrupted",
            fix="read the output of --show-plan; a service consents with --yes",
            code="no-consent",
        ) from None


def hold_key(
    invitation: Invited,
    identity: Identity,
    certificates: Certificates = None,
    address: Address = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the key; an existing key is used again.")] = None,
    with_code: WithCode = False,
    rehearsal: Rehearsal = False,
    quiet: Quiet = False,
) -> None:
    """Run the key holder of encrypted sums: it decrypts sums and holds no data."""
    from sordino.receipts.signature import private_key
    from sordino.runs.rounds import patience
    from sordino.sites.connecting import InvitedOptions
    from sordino.sites.key_holder import hold

    shown = Console(stderr=True, quiet=quiet)
    options = InvitedOptions(
        invitation=invitation,
        identity=private_key(identity),
        folder=out,
        address=address,
        certificates=certificates,
        with_code=with_code,
        rehearsal=rehearsal,
    )
    with patience() as stopped:
        over = hold(options, stopped, _standing(shown), _noting(shown))
    if not over:
        shown.print("Stopped. The run continues without this key holder; the same command restarts it.")
        raise typer.Exit(130)


def _remark(console: Console, remarks: Sequence[str]) -> None:
    """Print remarks that only the owner of the rows may know."""
    for remark in remarks:
        console.print(f"[yellow]note[/yellow] {foreign(remark)} (told here only)", soft_wrap=True, highlight=False)


def _noting(console: Console) -> Callable[[str], None]:
    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed; the run goes on
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            console.print(f"[dim]{now} {foreign(text)}[/dim]", highlight=False, soft_wrap=True)

    return say


def _in_json(event: RunEvent) -> None:
    """Print an event as a line of JSON, as events.jsonl has it."""
    with contextlib.suppress(OSError):  # the terminal was closed; the run goes on
        print(json.dumps(event.to_json()), file=sys.stderr, flush=True)


def _failures(console: Console) -> Callable[[RunEvent], None]:
    """Print failures at this site, and requests of the server that it refused."""
    say = _noting(console)
    return lambda event: say(f"warning: {event.words}") if event.event in ("failed", "declined") else None


def _standing(console: Console) -> Callable[[Standing, str], None]:
    """Print changes of the connection to the server."""
    last, note, since, reported = "", _noting(console), 0.0, 0.0

    def say(standing: Standing, why: str) -> None:
        nonlocal last, since, reported
        if standing == "late":  # of one answer: the site is as connected as before
            note(f"warning: an answer came too late: {why}")
            return
        text = "connected" if standing in ("waiting", "working") else f"{standing}{': ' + why if why else ''}"
        now = time.monotonic()
        if text != last:
            last, since, reported = text, now, now
            note(text)
        elif text != "connected" and now > reported + UNITS["h"]:  # it tries without end, and reports once an hour
            reported = now
            note(f"{text} (for {(now - since) / UNITS['h']:.0f} h; it goes on trying)")

    return say
