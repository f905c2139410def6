"""Notes of ledger entries: public text about a release, with its experiment, its noise, its clients and its claims.

Statements are computed from these texts alone. They are part of the hash chain, so editing the experiment or its source
of noise later changes nothing about a finished round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sordino.accounting.claims import Claim
from sordino.accounting.events import Json
from sordino.accounting.facts import read_json
from sordino.accounting.policy import is_real

if TYPE_CHECKING:
    from sordino.accounting.histories import Histories

Release: TypeAlias = tuple[Claim, ...]  # what one operation guarantees about one client
Said: TypeAlias = Iterable[tuple[Sequence[int] | str, Sequence[Claim]]]  # who ('*' is every client), and which claims


class Note(NamedTuple):
    """One release as a ledger entry describes it. `config` is the digest of the experiment, `noise` the name of the
    noise source.
    """

    releases: list[Json]
    noise: str
    config: str


def note(claims: Said, noise: str = "", config: str = "") -> str:
    groups = [{"clients": clients, "claims": [claim.to_json() for claim in made]} for clients, made in claims]
    told = {"releases": groups, "noise": noise, "config": config}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def parsed(text: str) -> Note:
    return Note(**read_json(text))


def under(text: str, config: str) -> str:
    """The note of a release for another experiment that reuses it: with that experiment's digest."""
    return json.dumps({**json.loads(text), "config": config}, sort_keys=True, separators=(",", ":"))


def of_a_run(text: str, run: str) -> str:
    """The note of a release for a statement over several runs: names of what is drawn once in a run get the run's
    name.
    """

    def renamed(part: object) -> Any:
        if isinstance(part, dict):
            made = {name: renamed(value) for name, value in part.items()}
            return {**made, "name": f"{made['name']} of {run}"} if part.get("kind") == "once" else made
        return [renamed(each) for each in part] if isinstance(part, list) else part

    return json.dumps(renamed(json.loads(text)), sort_keys=True, separators=(",", ":"))


def named(text: str) -> list[int]:
    """The clients that a note names one by one; none where it is about everyone."""
    return [k for group in parsed(text).releases if group["clients"] != "*" for k in group["clients"]]


def simulated(texts: Iterable[str]) -> bool:
    """True where some release has noise that a seed can repeat, or names no source of noise."""
    return any(not is_real(parsed(text).noise) for text in texts)


def noised(texts: Iterable[str]) -> bool:
    """True where some release has noise: one of its claims has another status than "none"."""
    groups = (group for text in texts for group in parsed(text).releases)
    return any(claim["status"] != "none" for group in groups for claim in group["claims"])


def histories(texts: Iterable[str], population: int) -> Histories[Release]:
    """The releases about each client, in order, with equal histories kept once."""
    from sordino.accounting.histories import Histories  # numpy: who only reads notes does without

    found: Histories[Release] = Histories(population)
    known: dict[str, Release] = {}
    for text in texts:
        for group in parsed(text).releases:
            words = json.dumps(group["claims"], sort_keys=True)
            if words not in known:
                known[words] = tuple(map(Claim.from_json, group["claims"]))
            clients = range(population) if group["clients"] == "*" else group["clients"]
            if known[words] and clients:
                found.add(clients, known[words], words)
    return found


def read_notes(texts: Iterable[str], population: int) -> dict[int, list[Release]]:
    """The releases about each client. Of clients with equal histories only the first is in the result."""
    return histories(texts, population).distinct()
