"""The program: its commands, in the order in which a user meets them. Each imports what it needs when it runs, so that
--help is instant.

Exit codes: 0 done, 1 unexpected, 2 configuration, 3 data, 4 privacy refusal, 5 ledger, 6 run folder, 7 message, 8
encrypted and secure sums, 130 interrupted (resumable), 141 the pipe it prints into was closed."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
from functools import cache
from typing import Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from sordino.branches import BRANCHES, part, parts, present
from sordino.cli import catalogue, comparing, data, doctor, looking, privacy, running
from sordino.cli.ending import ended
from sordino.cli.options import Verb, Verbs
from sordino.cli.screen import json_asked
from sordino.errors import ConfigError
from sordino.version import __version__

app = Verbs(
    name="sordino",
    help="Private federated learning with honest guarantees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown" if sys.stdout.isatty() else None,  # pipes get plain lines
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(running.new)
app.command(cls=Verb)(running.run)
app.command()(running.resume)
app.command()(looking.watch)
app.command("list")(looking.list_)
app.command()(looking.show)
app.command()(looking.predict)
app.command(cls=Verb)(comparing.compare)
app.command()(catalogue.algorithms)
app.command()(catalogue.schema)
app.command()(catalogue.check)
app.add_typer(data.app, name="data")
app.add_typer(privacy.app, name="privacy")
app.command()(doctor.doctor)


def _add_verbs_of_branches() -> None:
    """Add the commands that branches bring; `data announce` joins the group of that name."""
    groups = {"data": data.app, "privacy": privacy.app}
    for kind, cls in (("verbs", None), ("verbs of experiments", Verb)):
        for name in parts(kind):
            made, (*group, last) = part(kind, name), name.split()
            if isinstance(made, Verbs):
                app.add_typer(made, name=name)
            else:
                (groups[group[0]] if group else app).command(last, cls=cls)(made)


_add_verbs_of_branches()


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The entry point: a user's mistake ends in a short message and an exit code, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="replace")  # a terminal without an infinity sign shows a question mark
    sys.exit(ended(_go))


MEANT = {"train": "run", "fit": "run", "simulate": "run", "evaluate": "show", "test": "predict"}


def _go() -> None:
    if (verb := next(iter(sys.argv[1:]), "")) in MEANT:
        raise ConfigError(f"there is no command {verb!r}", fix=f"write sordino {MEANT[verb]}", code="unknown-command")
    verbs = only(verb)
    if verbs is app and verb[:1] not in ("", "-") and (missing := [name for name in BRANCHES if name not in present()]):
        raise ConfigError(
            f"there is no command {verb!r} here",
            why=f"this installation lacks parts of the program: {', '.join(missing)}",
            fix="install sordino whole",
            code="no-branch",
        )
    if json_asked():  # what is wrong with the words is then said as JSON, too
        sys.exit(verbs(standalone_mode=False))
    verbs(standalone_mode=True)


@cache
def only(word: str) -> Verbs:
    """The program reduced to the command, or the group of commands, of this name; whole where there is none. Building
    the parsers of all commands would take a tenth of a second.
    """
    found = copy.copy(app)
    found.registered_commands = [one for one in app.registered_commands if _name(one) == word]
    found.registered_groups = [one for one in app.registered_groups if one.name == word]
    return found if found.registered_commands or found.registered_groups else app


def _name(verb: CommandInfo) -> str:
    assert verb.callback is not None
    return verb.name or get_command_name(verb.callback.__name__)
