"""Command line: the commands and their output.

Importing it loads neither torch nor scipy, and no command.

It holds the options that commands share, whose parsers answer a mistyped one with the right form, and the output:
tables for people, plain lines for other programs, one JSON object where --json was given.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from sordino.errors import ConfigError, RunError


class Kind(StrEnum):
    """File formats of figures."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


class _VerboseHandler(logging.StreamHandler[TextIO]):
    """Log handler that the option --verbose has added."""


def _listen(asked: bool) -> None:
    """Prints the library's log messages if `asked`, otherwise stops printing them."""
    log = logging.getLogger("sordino")
    for old in [handler for handler in log.handlers if isinstance(handler, _VerboseHandler)]:
        log.removeHandler(old)
    if asked:
        shown = _VerboseHandler()
        shown.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(shown)
        log.setLevel(logging.INFO)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also log to tensorboard, mlflow, wandb or trackio; repeatable."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=_listen,
        expose_value=False,
        help="Explain on standard error how the run is computed.",
    ),
]
Encoding = Annotated[str | None, typer.Option(help="Text encoding: utf-8, cp1252, latin-1, ...")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
What = Annotated[
    list[str] | None,
    typer.Argument(metavar="[EXPERIMENT.toml] [key=value ...]", help="An experiment file, and settings to change."),
]
SignedBy = Annotated[
    Path | None, typer.Option("--key", help="Public key of the site that must have signed the receipt.")
]
PlanCode = Annotated[bool, typer.Option("--with-code", help="Import a user-defined algorithm to make its plan again.")]
Figures = Annotated[
    Kind | None, typer.Option("--figures", help="Also write figures for a paper (needs the plots extra).")
]


F = TypeVar("F", bound=Callable[..., Any])


def experiment_and_changes(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split words into the experiment and its changes, which contain a =."""
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) > 1:
        key = next((i for i, word in enumerate(words[:-1]) if _is_key(word) and "=" not in words[i + 1]), None)
        raise ConfigError(
            f"only one experiment can be given, not {', '.join(names)}",
            why="a setting is one word: key=value, without spaces" if key is not None else "",
            fix=f"write {words[key]}={words[key + 1]}" if key is not None else "`sordino compare` runs several",
            code="two-experiments",
        )
    return names[0] if names else None, changes


def _is_key(word: str) -> bool:
    from sordino.config import Experiment, places

    return word.partition(".")[0] in Experiment.model_fields or bool(places(word))


class AnyVerb(TyperCommand):
    """Parser of a command. It refuses an empty word, which as a path would mean the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for before, word in zip(["", *args], args, strict=False):
            if word == "" or (word.startswith("--") and word.endswith("=")):
                option = word.rstrip("=") or (before if before.startswith("-") else "a word")
                raise ConfigError(
                    f"{option} is empty",
                    why="it needs a value; perhaps a variable of the shell is not set",
                    fix="give a value, or leave the option out",
                    code="empty-word",
                )
        for option, value in self._unknown(args):
            self.refuse(option, value)
        return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 45) -> str:
        """First sentence of the help, whole on narrow screens too."""
        return super().get_short_help_str(max(limit, 1000))

    def _unknown(self, args: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Options that this command does not have, each with the value that was probably meant."""
        known = {option for parameter in self.params for option in parameter.opts}
        for i, word in enumerate(args):
            if word == "--":
                return
            option, _, value = word.partition("=")
            if option.startswith("--") and option not in known:
                yield option, value or next((after for after in args[i + 1 : i + 2] if after[:1] != "-"), "VALUE")

    def refuse(self, option: str, value: str) -> None:
        """Raises a helpful error if an unknown option is really a setting of experiments; otherwise does nothing."""
        if _is_key(option[2:]):
            raise ConfigError(
                f"{option} is not an option of this command",
                why="it is a setting of an experiment, and this command takes none",
                fix=f"write {option[2:]} = {value} into the experiment's file",
                code="option-is-a-key",
            )


class Verb(AnyVerb):
    """Parser of a command that takes an experiment's settings as key=value; a setting written as an option is refused
    with the right form.
    """

    def refuse(self, option: str, value: str) -> None:
        from sordino.config import places

        if not _is_key(option[2:]):
            return
        raise ConfigError(
            f"{option} is not an option",
            why="settings of an experiment are written without dashes",
            fix=" or ".join(f"write {place}={value}" for place in places(option[2:]) or [option[2:]]),
            code="option-is-a-key",
        )


class CommandGroup(typer.Typer):
    """Group of commands, each parsed by `AnyVerb` or `Verb`."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[F], F]:
        return super().command(name, cls=cls or AnyVerb, **options)


MANY = 200  # rows of a table with lines: drawing more takes long
MARKS = re.compile(r"[\[\\:]")  # styles, escapes and emoji
LONG = 100_000  # columns of a pipe: no line is folded, no name is cut


class _Visible:
    """Renderable without characters that move the cursor or hide text."""

    def __init__(self, made: RenderableType) -> None:
        self.made = made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for one in console.render(self.made, options):
            yield one if one.control else Segment(visible(one.text), one.style)


class _OnlyVisible(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(made) for made in renderables]


class Screen(Console):
    """Console that draws tables with lines on a terminal, and as plain text in a pipe or file: one line for each row,
    of any length. Words of a folder or another party cannot move its cursor, but for those in a live display.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.push_render_hook(_OnlyVisible())
        if not self.is_terminal:
            self.width = LONG

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], Table) and objects[0].row_count > MANY:
            self.file.write("".join(f"{visible(line)}\n" for line in lines(objects[0])))
            return
        super().print(*(objects if self.is_terminal else [_plain(each) for each in objects]), **options)


def lines(table: Table) -> Iterator[str]:
    """Render a table as plain lines, every column as wide as its widest cell."""
    if table.title:
        yield str(table.title)
    cells = [[str(column.header), *_words(list(map(str, column.cells)))] for column in table.columns]
    sides = (">" if column.justify == "right" else "<" for column in table.columns)
    row = "  ".join(f"{{:{side}{max(map(len, column))}}}" for side, column in zip(sides, cells, strict=True))
    yield from (line.rstrip() for line in map(row.format, *cells))


def _words(cells: list[str]) -> list[str]:
    """Cells without their markup. Parsing markup takes most of the time, so a column without markup signs is left as it
    is.
    """
    return [Text.from_markup(cell).plain for cell in cells] if MARKS.search("\n".join(cells)) else cells


def _plain(shown: Any) -> Any:
    if isinstance(shown, Table):
        shown.box, shown.show_lines, shown.title_justify = None, False, "left"
        for column in shown.columns:
            column.max_width = None
    if isinstance(shown, Padding):
        return _plain(shown.renderable)
    if isinstance(shown, Group):
        made: list[RenderableType] = [_plain(each) for each in shown.renderables]
        return Group(*made)
    return shown


def titled(title: str, *columns: str, left: int = 1) -> Table:
    """Table with a title; the columns after the first `left` ones hold numbers and are aligned right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    return table


def note(console: Console, remarks: Iterable[str]) -> None:
    """Print remarks, each as a note."""
    for remark in remarks:
        console.print(f"[yellow]note[/yellow] {foreign(remark)}")


def visible(text: str) -> str:
    """Text without characters that move the cursor or hide text, with which an invitation could print another plan than
    the one that it asks for, or a receipt another verdict.
    """
    return "".join(one if one.isprintable() or one == "\n" else " " if one.isspace() else "?" for one in text)


def foreign(text: str) -> str:
    """Text of another party, to be printed in one line: visible, and without styles."""
    return escape(visible(text.replace("\n", " ")))


def say(facts: object) -> None:
    """Print an object as JSON, with unrounded numbers."""
    typer.echo(json.dumps(facts))


def write(path: Path, text: str, new: bool = False) -> None:
    """Write a text file; a `new` one never takes the place of another."""
    if new:
        check_absent(path)
    with unwritable(path), path.open("x" if new else "w", encoding="utf-8") as file:
        file.write(text)


def check_absent(path: Path) -> None:
    """Refuse to write to a path where a file exists."""
    if path.exists():
        raise RunError(
            f"{path} already exists",
            why="sordino does not overwrite a file that may be yours",
            fix="choose another place, or move the file away",
            code="file-exists",
        )


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Context manager that turns the system's refusal to write into an error with a fix."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}",
            why=error.strerror or str(error),
            fix="choose a folder that you may write to",
            code="not-writable",
        ) from None


def json_asked() -> bool:
    """True where --json is given: errors are printed as JSON, too."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def main() -> None:
    """The entry point of the program."""
    gc.set_threshold(50_000)  # modules and parsed files stay: collecting among them takes a tenth of a short command
    from sordino.cli.program import main as play

    try:
        play()
    finally:
        gc.freeze()  # else the interpreter, at its end, looks at all that was loaded: a quarter of what torch costs
