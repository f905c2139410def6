"""A page of the documentation followed from top to bottom, as a reader would: see test_docs.py."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import typer.main

from sordino import config
from sordino.cli import main
from sordino.cli.program import app
from sordino.data import schema
from sordino.partition import SCHEMES
from sordino.planning.methods import Methods
from sordino.sampling.by_budget import COHORTS

ROOT = Path(__file__).parents[2]


DOCS = ROOT / "docs"


READ_BY_PEOPLE = {"text", "json", "mermaid"}


FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)\s*$", re.MULTILINE | re.DOTALL)


CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    language: str
    told: dict[str, str]  # what the fence says beside the language
    body: str
    line: int


class Broken(AssertionError):
    """A block that does not do what its page says."""


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        language, *words = shlex.split(found["info"]) or [""]
        told = dict(word.partition("=")[::2] for word in words)
        yield Block(language, told, found["body"], text[: found.start()].count("\n") + 1)


def follow(text: str, page: str = "page", patient: bool = True) -> int:
    """Do what a page says, in the current directory; how many blocks were run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for block in blocks(text):
        if block.language in READ_BY_PEOPLE or block.language.startswith("{"):
            continue
        if block.language not in DO:
            raise Broken(f"{page}:{block.line}: a block in {block.language!r}: say sh, python, toml, or text")
        if "skip" in block.told:
            if len(block.told["skip"].split()) < 3:
                raise Broken(f"{page}:{block.line}: skipped without a reason")
            continue
        if "slow" in block.told and not patient:
            continue
        try:
            DO[block.language](block, names)
        except Exception as error:
            raise Broken(f"{page}:{block.line}: {type(error).__name__}: {error}") from error
        ran += 1
    return ran


def do_sh(block: Block, _: dict[str, Any]) -> None:
    for line in block.body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        expected = int(block.told.get("exit", 0))
        match words:
            case ["cd", folder]:
                os.chdir(folder)
            case ["sordino", *arguments]:
                code, said = killed(arguments) if expected == KILLED else sordino(arguments)
                if code != expected:
                    raise Broken(f"{line!r} ended with {code}, not {expected}:\n{said[-2000:]}")
            case ["python", file, *arguments]:
                run_file(file, arguments)
            case _:
                raise Broken(
                    f"{line!r}: a reader without that tool is stuck; use sordino, python or cd, or say why not"
                )


KILLED = 128 + signal.SIGKILL  # as a shell says it


def killed(arguments: list[str]) -> tuple[int, str]:
    """A command that does not survive, in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "sordino", *arguments], capture_output=True, text=True)
    code = 128 - done.returncode if done.returncode < 0 else done.returncode
    return code, done.stdout + done.stderr


def sordino(arguments: list[str]) -> tuple[int, str]:
    """The installed command, in this process."""
    said = io.StringIO()
    before = sys.argv
    sys.argv = ["sordino", *arguments]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return code, said.getvalue()
    finally:
        sys.argv = before
    return 0, said.getvalue()


def run_file(file: str, arguments: list[str]) -> None:
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [file, *arguments], [str(Path(file).resolve().parent)]
    try:
        source = Path(file).read_text()
        exec(
            compile(source, str(Path(file).resolve()), "exec"),
            {"__name__": "__main__", "__file__": str(Path(file).resolve())},
        )
    except SystemExit as end:
        if end.code:
            raise Broken(f"{file} ended with {end.code}") from None
    finally:
        sys.argv, sys.path[:] = before


def do_python(block: Block, names: dict[str, Any]) -> None:
    if "file" in block.told:
        ast.parse(block.body)
        Path(block.told["file"]).write_text(block.body)
    else:
        importlib.invalidate_caches()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.body, f"<line {block.line}>", "exec"), names)


def do_toml(block: Block, _: dict[str, Any]) -> None:
    target = Path(block.told.get("file", "block.toml"))
    target.write_text(block.body)
    if target.name.endswith(".schema.toml"):
        schema.read(target)
        return
    experiment = config.load(target)
    _ = Methods(experiment).phases  # without the data, which no page brings along
    config.build(experiment.cohort, COHORTS, "cohort")
    config.build(experiment.partition, SCHEMES, "partition", "scheme")


DO = {"sh": do_sh, "python": do_python, "toml": do_toml}


def script(name: str) -> ModuleType:
    """A program of the docs, which finds those beside it as it does when it is started."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spoken(text: str) -> str:
    """A page without its blocks."""
    return FENCE.sub("", text)


@cache
def said_by_the_program() -> Any:
    return typer.main.get_command(app)


def wrong_commands(text: str) -> list[str]:
    """Inline commands whose verb or option does not exist."""
    wrong = []
    for quoted in CODE.findall(spoken(text)):
        if not quoted.startswith("sordino "):
            continue
        command: Any = said_by_the_program()
        for word in quoted.split()[1:]:
            if word.startswith("--"):
                known = {name for p in command.params for name in p.opts} | {
                    "--help",
                    "--install-completion",
                    "--show-completion",
                }
                if word.partition("=")[0] not in known:
                    wrong.append(quoted)
            elif getattr(command, "commands", None):
                if word not in command.commands:
                    wrong.append(quoted)
                    break
                command = command.commands[word]
    return wrong
