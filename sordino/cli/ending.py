"""Exit of the command line: a failure becomes an error of three lines and an exit code, and never a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from sordino import user_code
from sordino.cli.screen import json_asked
from sordino.errors import BackendUnavailable, ConfigError, RunError, SordinoError

PRINTERS = {"rich", "click", "typer"}  # the packages that all output goes through
USAGE: type[Exception] = typer.BadParameter.__mro__[1]  # of whichever click typer was built with
CLOSED_PIPE = 141  # exit code of a program that SIGPIPE ended


def ended(do: Callable[[], None]) -> int:
    """Run a command and return its exit code, after all that it printed has been written out."""
    status = _status(do)
    try:
        sys.stdout.flush()
    except OSError as error:
        _hush()
        return status or _lost(error)
    return status


def _status(do: Callable[[], None]) -> int:
    try:
        with user_code.blamed():
            do()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # said by typer and rich as "1", which is a bug here
            _hush()
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
        _hush()
        return _lost(error)
    return 0


def _tell(error: SordinoError) -> int:
    console = Console(stderr=True, soft_wrap=True)
    with contextlib.suppress(OSError):
        if json_asked():
            said = {"code": error.code, "what": error.what, "why": error.why, "fix": error.fix}
            print(json.dumps({"error": said, "exit_code": error.exit_code}), file=sys.stderr, flush=True)
            return error.exit_code
        console.print(f"[bold red]error[/bold red] {escape(error.what)}  [dim]({error.code})[/dim]")
        if error.why:
            console.print(f"  [bold]why[/bold] {escape(error.why)}")
        if error.fix:
            console.print(f"  [bold]fix[/bold] {escape(error.fix)}")
    return error.exit_code


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


def _hush() -> None:
    """Discard later output: it cannot be printed, and Python would complain of that at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
