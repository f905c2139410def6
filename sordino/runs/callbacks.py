"""Callbacks: your own code, called after each round with what the guarantees cover, and nothing else.

No examples, uploads or models are passed; with real noise not even test results, which lie in the private folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino import user_code
from sordino.accounting.events import Json
from sordino.accounting.policy import Policy
from sordino.config import filled
from sordino.errors import ConfigError
from sordino.metrics.rows import RoundRow
from sordino.runs.metric_files import shown


class Callback:
    """Base of a callback: write a subclass with `on_round`, `on_end` or both. An exception in it ends the run; what was
    released stays.
    """

    def on_round(self, row: Json) -> None:
        """Called after each round with its row of metrics.jsonl, without lists that hold one value for each client."""

    def on_end(self, receipt: Json) -> None:
        """Called at the end of the run with the receipt, as it stands in privacy.json."""


def named(tables: Sequence[str | Mapping[str, Any]]) -> list[Callback]:
    """The callbacks that an experiment names, each `module:Class` or a table with a name and its arguments."""
    found: list[Callback] = []
    for given in tables:
        table = {"name": given} if isinstance(given, str) else dict(given)
        name = str(table.pop("name", ""))
        if not user_code.is_own(name):
            raise ConfigError(
                f"callbacks names {name!r}", why="a callback is a class of your own", fix="give module:Class",
                code="unknown-callback",
            )  # fmt: skip
        made = user_code.load(name, "callbacks")
        if isinstance(made, Callback):
            found.append(made)
        else:
            found.append(filled(user_code.of_kind(name, "callbacks", Callback), table, f"[callbacks] {name}"))
    return found


def visible(row: RoundRow, policy: Policy) -> Json:
    """The row that a callback gets: never a list with one value for each client."""
    return shown(row, policy.hidden) if policy.real else _summed(row.to_json())


def _summed(told: Json) -> Json:
    if isinstance(spread := told.get("clients"), Mapping):
        told = {**told, "clients": {name: value for name, value in spread.items() if name != "each"}}
    return told
