"""Budgets of clients: one epsilon for all, or one for each.

    epsilon = 1.0
    epsilon = {groups = {"1" = 0.54, "2" = 0.37, "4" = 0.09}}     shares of the clients, dealt by the seed
    epsilon = {linspace = [1.0, 4.0], levels = 20}                equal groups between two budgets, dealt by the seed
    epsilon = {clients = {"North" = 1.0, "South" = 2.0}}          one by one: by name, or by number if they have none
    epsilon = {file = "budgets.csv"}                              two columns: client, epsilon

Budgets are public (Jorgensen, Yu and Cormode 2015): what a client's choice of budget reveals about its data is not
covered.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.errors import InvalidBudget, is_number

Floats = NDArray[np.float64]


class _Clients(NamedTuple):
    many: int
    names: tuple[str, ...]

    def number(self, word: str) -> int | None:
        """Index of the client with this name; only if clients have no names, the word is read as the index itself. None
        for an unknown client.
        """
        if self.names:
            return self.names.index(word) if word in self.names else None
        return int(word) if word.isdecimal() and int(word) < self.many else None

    def __str__(self) -> str:
        return ", ".join(self.names) if self.names else f"0 to {self.many - 1}"


def personal(given: Mapping[str, object], clients: int, key: keys.Key, names: Sequence[str] = ()) -> Floats:
    """Budget (epsilon) of each client. `names`: the clients' names, if they have any."""
    named = [name for name in RULES if name in given]
    extra = sorted(given.keys() - {*named, *(["levels"] if named == ["linspace"] else [])})
    if len(named) != 1 or extra:
        raise InvalidBudget(
            f"privacy.epsilon = {dict(given)!r}",
            why=f"{', '.join(extra)} is unknown here" if extra else "it must hold exactly one rule",
            fix=f"use one of {', '.join(RULES)}; linspace also takes levels",
            code="budget-rule",
        )
    rule = named[0]
    budgets = RULES[rule](given[rule], _Clients(clients, tuple(names)), keys.fold(key, "budgets"), given)
    for k in np.flatnonzero(~((budgets > 0) & np.isfinite(budgets))).tolist()[:1]:
        raise InvalidBudget(
            f"the budget of client {names[k] if names else k} is {budgets[k]}",
            why="a budget is a finite number above 0; a client without a budget cannot take part",
            fix="give a number above 0, or leave the client's data out",
            code="epsilon-not-positive",
        )
    return budgets


def _groups(table: object, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    if not isinstance(table, Mapping) or not all(is_number(share) and 0 <= share <= 1 for share in table.values()):
        raise _malformed(f"groups = {table!r}", 'a table {"epsilon" = share of the clients, ...}')
    levels = np.array([_number(level) for level in table])
    shares = np.array(list(table.values()), dtype=np.float64)
    if abs(math.fsum(shares) - 1) > 1e-9:
        raise _malformed(f"groups with shares that add up to {math.fsum(shares):g}", "shares that add up to 1")
    ends = np.rint(np.cumsum(shares) * clients.many).astype(np.int64)
    return _dealt(np.repeat(levels, np.diff(ends, prepend=0)), key)


def _linspace(ends: Any, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    levels = given.get("levels", 20)
    pair = isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    if not pair or isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise _malformed(
            f"linspace = {ends!r}, levels = {levels!r}", "linspace = [lo, hi] and a whole number of levels"
        )
    steps = np.linspace(ends[0], ends[1], levels)
    return _dealt(steps[np.arange(clients.many) * levels // clients.many], key)


def _clients(table: object, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    if not isinstance(table, Mapping):
        raise _malformed(f"clients = {table!r}", 'a table {"client" = epsilon, ...}')
    return _listed([(str(client), epsilon) for client, epsilon in table.items()], clients, "privacy.epsilon.clients")


def _file(path: Any, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    try:
        with open(Path(path), newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidBudget(
            f"cannot read the budgets in {path}",
            why=str(error),
            fix="give a readable CSV file with the columns client and epsilon",
            code="budget-file",
        ) from None
    if not rows or not {"client", "epsilon"} <= rows[0].keys():
        raise _malformed(f"{path} without the columns client and epsilon", "a first line `client,epsilon`")
    return _listed([(str(row["client"]), row["epsilon"]) for row in rows], clients, str(path))


def _listed(pairs: list[tuple[str, object]], clients: _Clients, where: str) -> Floats:
    budgets: dict[int, float] = {}
    for name, epsilon in pairs:
        client = clients.number(name.strip())
        if client is None or client in budgets:
            raise InvalidBudget(
                f"{where} lists client {name.strip()!r}" + (", which does not exist" if client is None else " twice"),
                why=f"the clients of this federation are {clients}, each with one budget",
                fix="list every client exactly once",
                code="budget-unknown-client",
            )
        budgets[client] = _number(epsilon)
    missing = [k for k in range(clients.many) if k not in budgets]
    if missing:
        raise InvalidBudget(
            f"{where} gives no budget for {len(missing)} of {clients.many} clients, the first is "
            f"{clients.names[missing[0]] if clients.names else missing[0]}",
            why="a client without a budget cannot take part",
            fix="add a line for every client, or leave its data out",
            code="budget-missing",
        )
    return np.array([budgets[k] for k in range(clients.many)])


def _dealt(budgets: Floats, key: keys.Key) -> Floats:
    dealt: Floats = budgets[keys.order(keys.word(key), len(budgets))]
    return dealt


def _number(text: Any) -> float:
    try:
        if isinstance(text, bool):
            raise ValueError
        return float(text)
    except (TypeError, ValueError):
        raise _malformed(f"a budget of {text!r}", "a number") from None


def _malformed(what: str, wanted: str) -> InvalidBudget:
    return InvalidBudget(
        what,
        why="sordino does not guess a budget: a promise needs an exact one",
        fix=f"give {wanted}",
        code="budget-malformed",
    )


RULES: dict[str, Callable[[Any, _Clients, keys.Key, Mapping[str, object]], Floats]] = {
    "groups": _groups,
    "linspace": _linspace,
    "clients": _clients,
    "file": _file,
}
