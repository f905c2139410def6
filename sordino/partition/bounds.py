"""Refusals: a partition that cannot be made is refused by the bound that fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from sordino.errors import PartitionError

T = TypeVar("T")

FIXES = {
    "clients": "use at least 1 client and at most one per example",
    "concentration": "0.1 is very uneven, 1 uneven, 100 nearly even",
    "min-size": "use fewer clients or a smaller min_size",
    "shards-per-client": "2 is usual",
    "too-many-shards": "use fewer clients or fewer shards per client",
    "classes-per-client": "k counts the classes of one client: at least 1, at most all",
    "unheld-class": "use more clients or a larger k",
    "thin-class": "use fewer clients or a smaller k",
    "unfillable-lists": 'use circulant lists, a larger k, or the scheme "classes", where sizes may differ',
    "rho": "rho is the smallest class over the largest: at most 1, and enough for one example",
    "missing-class": "renumber the labels without gaps",
    "clients-per-class": "use a multiple of the number of classes, for instance 1000",
    "least": "5 is usual",
    "sigma": "2 is very uneven, 0.5 uneven",
    "too-few-examples": "use fewer clients or a smaller least",
    "unknown-choice": "use one of those listed",
}


def require(met: bool | np.bool_, bound: str, code: str) -> None:
    if not met:
        raise PartitionError("this partition cannot be made", why=bound, fix=FIXES[code], code=code)


def check_clients(clients: int, examples: int) -> None:
    require(clients >= 1, f"clients = {clients} < 1", "clients")
    require(clients <= examples, f"clients = {clients} > {examples} examples", "clients")


def choice(field: str, value: str, choices: Mapping[str, T]) -> T:
    require(value in choices, f"{field} = {value!r} is not one of {', '.join(choices)}", "unknown-choice")
    return choices[value]
