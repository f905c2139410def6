"""The program: its commands, in the order in which a user meets them, and its exit. Each command imports what it needs
when it runs, so that --help is instant; a failure becomes an error of three lines and an exit code, and never a
traceback.

Exit codes: 0 done, 1 unexpected, 2 configuration, 3 data, 4 privacy refusal, 5 ledger, 6 run folder, 7 message, 8
encrypted and secure sums, 130 interrupted (resumable), 141 the pipe it prints into was closed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.main import get_command_name
from typer.models import CommandInfo

from sordino import user_code
from sordino.branches import BRANCHES, part, parts, present
from sordino.cli import CommandGroup, Verb, data, doctor, foreign, json_asked, looking, privacy, running
from sordino.errors import BackendUnavailable, ConfigError, RunError, SordinoError
from sordino.version import __version__

app = CommandGroup(
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
app.command(cls=Verb)(running.compare)
app.command()(looking.algorithms)
app.command()(looking.schema)
app.command()(looking.check)
app.add_typer(data.app, name="data")
app.add_typer(privacy.app, name="privacy")
app.command()(doctor.doctor)


def _add_verbs_of_branches() -> None:
    """Adds the commands of optional subpackages; `data announce` joins the group of that name."""
    groups = {"data": data.app, "privacy": privacy.app}
    for kind, cls in (("verbs", None), ("verbs of experiments", Verb)):
        for name in parts(kind):
            made, (*group, last) = part(kind, name), name.split()
            if isinstance(made, CommandGroup):
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
def only(word: str) -> CommandGroup:
    """The program reduced to one command or group of commands; the whole program if there is none of this name.
    Building all parsers would take a tenth of a second.
    """
    found = copy.copy(app)
    found.registered_commands = [one for one in app.registered_commands if _name(one) == word]
    found.registered_groups = [one for one in app.registered_groups if one.name == word]
    return found if found.registered_commands or found.registered_groups else app


def _name(verb: CommandInfo) -> str:
    assert verb.callback is not None
    return verb.name or get_command_name(verb.callback.__name__)


PRINTERS = {"rich", "click", "typer"}  # the packages that all output goes through
USAGE: type[Exception] = typer.BadParameter.__mro__[1]  # of whichever click typer was built with
CLOSED_PIPE = 141  # exit code of a program that SIGPIPE ended


def ended(do: Callable[[], None]) -> int:
    """Runs a command; returns its exit code once all that it printed has been written out."""
    status = _status(do)
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        return status or _lost(error)
    return status


def _status(do: Callable[[], None]) -> int:
    try:
        with user_code.blamed():
            do()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # said by typer and rich as "1", which is a bug here
            _discard_output()
            return CLOSED_PIPE
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except SordinoError as error:
        return _tell(error)
    except USAGE as error:  # the parser says it by itself where JSON was not asked for
        fix = "the same command with --help says what it takes"
        return _tell(ConfigError(str(error), fix=fix, code="wrong-usage"))
    except typer.Abort:
        return 1
    except ModuleNotFoundError as error:
        if str(error.name).startswith("sordino"):
            raise
        return _tell(_missing(str(error.name).partition(".")[0]))
    except (MemoryError, RecursionError) as error:
        return _tell(_too_large(error))
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # torch raises the same error for everything
            raise
        return _tell(_too_large(error))
    except OSError as error:
        at = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not PRINTERS & {*at.parts}:
            return _tell(_failed(error))
        _discard_output()
        return _lost(error)
    return 0


def _tell(error: SordinoError) -> int:
    console = Console(stderr=True, soft_wrap=True)
    with contextlib.suppress(OSError):
        if json_asked():
            fields = {"code": error.code, "what": error.what, "why": error.why, "fix": error.fix}
            print(json.dumps({"error": fields, "exit_code": error.exit_code}), file=sys.stderr, flush=True)
            return error.exit_code
        console.print(f"[bold red]error[/bold red] {_lines(error.what)}  [dim]({error.code})[/dim]")
        if error.why:
            console.print(f"  [bold]why[/bold] {_lines(error.why)}")
        if error.fix:
            console.print(f"  [bold]fix[/bold] {_lines(error.fix)}")
    return error.exit_code


def _lines(text: str) -> str:
    """Text of an error, which may repeat what another party has written, with its lines."""
    return "\n".join(map(foreign, text.split("\n")))


def _lost(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    return _tell(
        RunError(
            "the output could not be printed",
            why=error.strerror or str(error),
            fix="free some space, or send the output elsewhere; nothing of a run is lost: `sordino show RUN` "
            "prints it again",
            code="output-lost",
        )
    )


def _failed(error: OSError) -> RunError:
    return RunError(
        f"{error.filename} cannot be used" if error.filename else "the system refused a file operation",
        why=error.strerror or str(error),
        fix="check that the file exists, is of the right kind, and that you may read or write it; then try again",
        code="file-unusable",
    )


def _too_large(error: Exception) -> RunError:
    deep = isinstance(error, RecursionError)
    return RunError(
        "something is nested too deeply" if deep else "there is not enough memory",
        why=str(error).partition("\n")[0] or "the system gave no more",
        fix="look for a file or a folder with too many levels"
        if deep
        else "take a smaller model, fewer clients in a round or fewer engine.workers, or a machine with more memory; a "
        "run that has begun continues with `sordino resume RUN`",
        code="nested-too-deeply" if deep else "out-of-memory",
    )


def _missing(package: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"sordino needs {package}, which is not installed here",
        why="the installation is not complete, or sordino was installed for another Python than this one",
        fix=f"install sordino again, or: pip install {package}",
        code="dependency-missing",
    )


def _discard_output() -> None:
    """Discard later output: it cannot be printed, and Python would complain of that at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
