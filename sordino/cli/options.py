"""Options and arguments that commands share, and parsers that answer a mistyped one with the right form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand

from sordino.errors import ConfigError


class Kind(StrEnum):
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


class Verbs(typer.Typer):
    """Group of commands, each parsed by `AnyVerb` or `Verb`."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[F], F]:
        return super().command(name, cls=cls or AnyVerb, **options)
