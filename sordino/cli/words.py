"""What the words after a verb mean: one experiment, and what to change in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from sordino.errors import ConfigError


def experiment_and_changes(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """A word with a = is a change, another one is the experiment."""
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
    from sordino.config import Experiment

    return word.partition(".")[0] in Experiment.model_fields


class Verb(TyperCommand):
    """A verb whose experiment is changed by key=value: who writes a key as an option is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {option for parameter in self.params for option in parameter.opts}
        for i, word in enumerate(args):
            if word == "--":
                break
            option, _, value = word.partition("=")
            if option.startswith("--") and option not in known and _is_key(option[2:]):
                value = value or next((after for after in args[i + 1 : i + 2] if not after.startswith("-")), "VALUE")
                raise ConfigError(
                    f"{option} is not an option",
                    why="settings of an experiment are written without dashes",
                    fix=f"write {option[2:]}={value}",
                    code="option-is-a-key",
                )
        return super().parse_args(ctx, args)
