"""Notes of ledger entries: public text about a release, with its experiment, its noise, its clients and its claims; and
histories of releases, one for all clients that share it.

Statements are computed from these texts alone. They are part of the hash chain, so editing the experiment or its source
of noise later changes nothing about a finished round.

Histories form a tree: each node is a sequence of releases, and one more release leads to a child. Clients with the same
history share one pointer to their node, so a release about everyone only has to move the pointers.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from sordino.accounting.claims import Claim, is_real
from sordino.accounting.events import Json
from sordino.accounting.facts import read_json

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
    """Rewrites a ledger note for another experiment that reuses its release: `config` becomes the digest of that
    experiment.
    """
    return json.dumps({**json.loads(text), "config": config}, sort_keys=True, separators=(",", ":"))


def of_a_run(text: str, run: str) -> str:
    """Rewrites a ledger note for a statement over several runs: noise that is drawn once in a run is renamed after the
    run, so that two runs do not count as one draw.
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
    """True where these ledger notes record noise that a seed can repeat, or noise of an unnamed source."""
    return any(not is_real(parsed(text).noise) for text in texts)


def noised(texts: Iterable[str]) -> bool:
    """True where these ledger notes record a release with noise: a claim about it has a status other than "none",
    proved or not."""
    groups = (group for text in texts for group in parsed(text).releases)
    return any(claim["status"] != "none" for group in groups for claim in group["claims"])


def histories(texts: Iterable[str], population: int) -> Histories[Release]:
    """Sequences of releases about each client, in order; equal sequences are stored once."""

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


R = TypeVar("R")  # what is known of one release

NEVER = 2**63 - 1
INSIDE, OUTSIDE = 0, 1  # first cells: of the clients that "everyone" means, and of other clients that are named


class Histories(Generic[R]):
    """Sequence of releases about each client; clients with the same sequence share one copy."""

    def __init__(self, population: int) -> None:
        self._tree: list[tuple[int, R | None]] = [(0, None)]  # of each node: its parent, and the release since
        self._children: dict[tuple[int, Hashable], int] = {}
        self._node = [0, 0]  # of each cell
        self._inside = [True, False]  # of each cell
        self._cells = {(0, True): INSIDE, (0, False): OUTSIDE}
        self._cell = np.full(population, INSIDE, np.int32)  # of each client
        self._since = np.full(population, NEVER)  # when each client was first spoken of
        self._spoken, self._all_spoken = 0, False

    def add(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        """Appends a release to the histories of these clients; a `range` means all of them. `words`: a key that is the
        same for equal releases.
        """
        (self._everyone if isinstance(clients, range) else self._some)(clients, release, words)

    def _everyone(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        if not self._all_spoken:
            new = np.arange(self._spoken, self._spoken + len(clients))
            self._since[: len(clients)] = np.minimum(self._since[: len(clients)], new)
            self._all_spoken = True
        self._spoken += len(clients)
        for cell, inside in enumerate(self._inside):
            if inside:
                self._node[cell] = self._child(self._node[cell], release, words)
        self._cells = {(node, inside): i for i, (node, inside) in enumerate(zip(self._node, self._inside, strict=True))}

    def _some(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        """Appends a release to the histories of the clients listed, as often as each of them is listed."""
        who, first, times = np.unique(np.asarray(clients, np.int64), return_index=True, return_counts=True)
        self._reach(int(who[-1]) + 1)
        self._since[who] = np.minimum(self._since[who], self._spoken + first)
        self._spoken += len(clients)
        while len(who):
            cells, place = np.unique(self._cell[who], return_inverse=True)
            moved = [self._next_cell(cell, release, words) for cell in cells.tolist()]
            self._cell[who] = np.asarray(moved, np.int32)[place]
            who, times = who[times > 1], times[times > 1] - 1

    def distinct(self, among: Sequence[int] | None = None) -> dict[int, list[R]]:
        """The distinct histories (of these clients), each keyed by the first client that has it, in order of first
        appearance.
        """
        node, since = np.asarray(self._node)[self._cell], self._since
        if among is not None:
            since = np.full_like(self._since, NEVER)
            since[among] = self._since[among]
        first = np.full(len(self._tree), NEVER)
        np.minimum.at(first, node, since)
        clients = np.flatnonzero((since == first[node]) & (since < NEVER))
        return {k: self._path(int(node[k])) for k in clients[np.argsort(self._since[clients])].tolist()}

    def _child(self, node: int, release: R, words: Hashable) -> int:
        if (node, words) not in self._children:
            self._children[node, words] = len(self._tree)
            self._tree.append((node, release))
        return self._children[node, words]

    def _next_cell(self, cell: int, release: R, words: Hashable) -> int:
        at = self._child(self._node[cell], release, words), self._inside[cell]
        if at not in self._cells:
            self._cells[at] = len(self._node)
            self._node.append(at[0])
            self._inside.append(at[1])
        return self._cells[at]

    def _reach(self, clients: int) -> None:
        more = clients - len(self._cell)
        if more > 0:
            self._cell = np.pad(self._cell, (0, more), constant_values=OUTSIDE)
            self._since = np.pad(self._since, (0, more), constant_values=NEVER)

    def _path(self, node: int) -> list[R]:
        path = []
        while node:
            node, release = self._tree[node]
            assert release is not None
            path.append(release)
        return path[::-1]
