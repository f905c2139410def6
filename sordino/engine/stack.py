"""Several clients in one call: `torch.func.vmap` runs an algorithm's `local` once for clients of equal shape.

Client code is not changed and cannot tell: every tensor it makes has a hidden dimension of clients, random keys
included, so that the order of data and all draws are each client's own. What vmap cannot do (a branch on a value) is
left to the loop.

Clients with different numbers of rows, or with different counters in their states (such as the number of rounds that
sets a step size), may share a stack where a trial on made-up rows agrees with the loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sordino import tree
from sordino.device import on_gpu
from sordino.fast.factored import EVERY, ClientRows, Lazy, Span, dense
from sordino.keys import Key, fold, integers, normal, root, signed, word
from sordino.privacy.readers.padded_shard import PaddedShard, SharedPass
from sordino.tree import Tree
from sordino.types import Examples, Grant, Task

if TYPE_CHECKING:
    from torch import Tensor


CLOSE = 1e-3  # of a tensor's norm: agreement of a stack and the loop in a trial; rounding leaves 1e-6
WINDOW = 256  # consecutive clients that are sorted, and divided into stacks, at a time
WORTH = 8  # clients: with fewer of them one call gains little
POOLED = 2  # `WORTH` for clients that share a pass
AT_HAND = 8  # most groups of clients whose examples are gathered at a time
PARTS = 4  # the next group has one in so many of the clients left
UNITS = 64  # groups of a cohort: four for each of sixteen processes, so that all end at about the same time
UPLOADS = 1 << 22  # numbers in the uploads of one group


class Member(NamedTuple):
    """One client of a stack (clients computed in one call)."""

    client: int
    examples: Examples
    state: Tree
    grant: Grant
    key: int


class Differences(NamedTuple):
    """Ways in which clients of one stack (computed in one call) may differ."""

    sizes: bool = False  # in their numbers of rows
    counts: bool = False  # in single numbers of their states, such as how often they took part


def alike(a: Member, b: Member, counts: bool = False) -> bool:
    """True where both may be in one stack (computed in one call). `counts`: even where scalars of their states, such as
    a count of steps, differ.
    """
    ours, theirs = list(tree.named(a.state)), list(tree.named(b.state))
    return (
        a.examples.x.shape == b.examples.x.shape
        and (a.grant.epochs, a.grant.part) == (b.grant.epochs, b.grant.part)
        and [(name, leaf.shape, leaf.dtype) for name, leaf in ours]
        == [(n, leaf.shape, leaf.dtype) for n, leaf in theirs]
        and (counts or not any(p.dim() == 0 and bool(p != q) for (_, p), (_, q) in zip(ours, theirs, strict=True)))
    )


def near(a: Member, b: Member, counts: bool = False) -> bool:
    """True where both may be in one stack (computed in one call), with at most a third of padding rows for b. `counts`:
    even where scalars of their states differ.
    """
    padded = b._replace(examples=Examples(a.examples.x, a.examples.y))
    return 3 * len(b.examples.y) >= 2 * len(a.examples.y) and alike(a, padded, counts)


def by_size(
    members: Iterable[Member], most: Callable[[int], int], worth: int = WORTH, counts: bool = False
) -> Iterator[list[Member]]:
    """Groups clients into stacks (computed in one call) of equal work and similar numbers of examples, the largest
    first, sorting `WINDOW` clients at a time. `most`: number of clients that fit into one stack, by their number of
    examples; `worth`: fewest clients for which one call pays; `counts`: scalars of their states may differ.
    """

    def place(one: Member) -> tuple[float, float, list[float], int]:
        numbers = [] if counts else [leaf.item() for leaf in tree.leaves(one.state) if leaf.dim() == 0]
        return one.grant.epochs or 0, one.grant.part or 0, numbers, -len(one.examples.y)

    waiting = iter(members)
    while some := sorted(itertools.islice(waiting, WINDOW), key=place):
        yield from stacks(some, most, worth, partial(near, counts=counts))


def stacks(
    members: Iterable[Member],
    most: Callable[[int], int],
    worth: int = WORTH,
    alike: Callable[[Member, Member], bool] = alike,
) -> Iterator[list[Member]]:
    """Stacks of consecutive clients that are alike. `most`: number of clients that fit into one stack, by their number
    of examples; `worth`: fewest clients for which one call pays.
    """
    few: list[Member] = []
    for member in members:
        room = most(few[0].grant.size) if few else 1
        if few and (room == 1 or len(few) >= min(WINDOW, AT_HAND * room) or not alike(few[0], member)):
            yield from shares(few, room, worth)
            few = []
        few.append(member)
    if few:
        yield from shares(few, most(few[0].grant.size), worth)


def pools(members: Iterable[Member], task: Task, numbers: int) -> Iterator[list[Member]]:
    """Groups of consecutive clients whose examples share passes through the network; all other work is done for each
    alone. `numbers`: length of one client's upload.
    """
    held, rows = max(1, UPLOADS // max(1, numbers)), 0
    few: list[Member] = []
    for member in members:
        few.append(member)
        rows += member.grant.size
        if rows >= AT_HAND * task.room or len(few) >= WINDOW:
            yield from shares(few, min(held, max(1, task.room * len(few) // max(1, rows))), POOLED)
            few, rows = [], 0
    yield from shares(few, min(held, max(1, task.room * len(few) // max(1, rows))), POOLED)


def least(cohort: int) -> int:
    """Fewest clients for which one call for all is worth its cost, in a cohort of this size."""
    return max(WORTH, -(-cohort // UNITS))


def shares(few: Sequence[Member], most: int, worth: int = WORTH) -> Iterator[list[Member]]:
    """Splits clients into parts of at most `most`, smaller if several processes divide the work, so that these end
    together; but never below `worth` clients. On a GPU, with one process, parts stay large."""
    start, parts = 0, 1 if on_gpu() else PARTS
    while start < len(few):
        size = min(most, max(worth, -(-(len(few) - start) // parts)))
        yield list(few[start : start + size])
        start += size


def sharing(few: Sequence[Member], task: Task, down: Tree) -> list[Member]:
    """Lets these clients share one pass through the network, which is computed when the first one asks for gradients.
    Exact, because each example is clipped by its own norm, and each sum is over a client's own rows.
    """
    pool = SharedPass(task, {one.client: one.examples for one in few}, down) if task.room else None
    return [one._replace(grant=replace(one.grant, pool=pool)) for one in few]


def together(
    algorithm: Any, task: Task, down: Tree, stack: Sequence[Member], counts: bool = False
) -> list[tuple[Tree, Tree]]:
    """Upload and new state of each client of the stack, in order, from one vmapped call. `counts`: scalars in the
    states, such as a count of steps, may differ between clients."""
    reader, first = algorithm.read, stack[0]
    grant = replace(first.grant, reads=reader.reads(algorithm.work, first.grant.size))
    sizes = [len(member.examples.y) for member in stack]
    unequal, fewest = len(set(sizes)) > 1, min(sizes)
    inner = [leaf.dim() > 0 or counts for leaf in tree.leaves(first.state)]
    seen: list[Any] = []  # how to build an upload and a state from the flat list that comes out

    def local(x: Tensor, y: Tensor, rows: Tensor, key: Key, state: list[Tensor]) -> list[Tensor]:
        shard: Any = PaddedShard(reader, Examples(x, y), grant, task, rows=rows, fewest=fewest) if unequal else None
        shard = shard or reader.open(Examples(x, y), grant, task)
        left = iter(state)
        own = [next(left) if is_inner else leaf for is_inner, leaf in zip(inner, tree.leaves(first.state), strict=True)]
        upload, new = algorithm.local(task, down, tree.like(first.state, own), shard, key)
        flat: list[Tensor] = []
        seen[:] = [_taken_apart(upload, flat), _taken_apart(new, flat)]
        return flat

    states = [tree.leaves(member.state) for member in stack]
    columns = [torch.stack(leaves) for own, leaves in zip(inner, zip(*states, strict=True), strict=True) if own]
    keys = torch.tensor([signed(member.key) for member in stack])
    x, y = _padded([member.examples.x for member in stack]), _padded([member.examples.y for member in stack])
    rows = torch.tensor(sizes)
    # exact because vmap computes each client's slice as if alone; where differing sizes or counts could change that,
    # `differences` has tried it
    flat = torch.vmap(local)(x, y, rows, keys, columns)
    upload, new = seen
    each = zip(*(column.unbind() for column in flat), strict=True)
    return [(upload(tensors), new(tensors)) for tensors in each]


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Rows of all clients as one tensor, padded with zeros to the length of the longest: exact because padding rows
    have weight 0 in a `PaddedShard`.
    """
    most = max(map(len, parts))
    if all(len(part) == most for part in parts):
        return torch.stack(list(parts))
    made = parts[0].new_zeros(len(parts), most, *parts[0].shape[1:])
    for place, part in zip(made, parts, strict=True):
        place[: len(part)] = part
    return made


def _taken_apart(value: Tree, into: list[Tensor]) -> Callable[[Sequence[Tensor]], Tree]:
    """Puts the tensors of a tree into a list, and returns the function that rebuilds the tree from such a list."""
    if isinstance(value, dict):
        parts = {name: _taken_apart(part, into) for name, part in value.items()}
        return lambda found: {name: build(found) for name, build in parts.items()}
    if isinstance(value, tuple):
        builds = [_taken_apart(part, into) for part in value]
        made = type(value) if hasattr(value, "_fields") else lambda *found: tuple(found)
        return lambda found: made(*(build(found) for build in builds))
    if isinstance(value, Span) and value.index is EVERY:
        c, x = _place(value.c, into), _place(value.rows.x, into)
        return lambda found: Span(ClientRows(found[x]), found[c])
    at = _place(value.dense() if isinstance(value, Lazy) else value, into)
    return lambda found: found[at]


def _place(value: Tensor, into: list[Tensor]) -> int:
    into.append(value)
    return len(into) - 1


# differences that a stack bears ---------------------------------------------------------------------------------------


def differences(algorithm: Any, task: Task, like: Member) -> Differences:
    """Differences that clients of one stack may have without changing what `local` gives for each alone. The result
    depends on the shapes of `like` only, so that a run resumed after a crash finds the same.
    """
    if task.stacks(1) == 1:  # calls are not shared, and an order by size does no harm
        return Differences(task.pads, True)
    if task.pads and _agree(algorithm, task, like, Differences(True, True)):
        return Differences(True, True)
    sizes = task.pads and _agree(algorithm, task, like, Differences(sizes=True))
    return Differences(sizes, _agree(algorithm, task, like, Differences(counts=True)))


def _agree(algorithm: Any, task: Task, like: Member, allowed: Differences) -> bool:
    """True if one call for three made-up clients with these differences gives what one call for each gives."""
    few = _made_up(like, algorithm.work.batch_size or 4, allowed)
    try:
        first = algorithm.broadcast(algorithm.init(task, 0))
        for down in (first, tree.map(lambda leaf: leaf if leaf.dim() or leaf.is_floating_point() else leaf + 1, first)):
            for one, found in zip(few, together(algorithm, task, down, few, allowed.counts), strict=True):
                shard = algorithm.read.open(one.examples, one.grant, task)
                alone = algorithm.local(task, down, one.state, shard, one.key)
                if not all(_near(a, b) for a, b in zip(tree.leaves(alone), tree.leaves(found), strict=True)):
                    return False
    except Exception:  # whatever it is: the loop is the reference, and raises it again where it matters
        return False
    return True


def _made_up(like: Member, batch: int, allowed: Differences) -> list[Member]:
    """Three clients with random rows, for a trial: one with a batch, one with a row more and one with a row less; if
    sizes may not differ, each has a batch and a row.
    """
    made = []
    for k, size in enumerate((batch, batch + 1, max(1, batch - 1)) if allowed.sizes else (batch + 1,) * 3):
        key, count = fold(root(k), "a stack on trial"), k if allowed.counts else 1
        examples = Examples(*(_random(rows, size, fold(key, i)) for i, rows in enumerate(like.examples)))
        state = tree.map(partial(_moved, count=count, key=fold(key, "state")), like.state)
        grant = replace(like.grant, client=k, size=size, largest=batch + 1, epochs=None, part=None)
        made.append(Member(k, examples, state, grant, word(key)))
    return made


def _random(like: Tensor, rows: int, key: Key) -> Tensor:
    shape = rows, *like.shape[1:]
    if like.is_floating_point():
        return normal(key, math.prod(shape)).reshape(shape).to(like.dtype)
    return integers(key, math.prod(shape), 256 if like.dtype == torch.uint8 else 2).reshape(shape).to(like.dtype)


def _moved(leaf: Tensor, count: int, key: Key) -> Tensor:
    if leaf.dim() == 0:
        return torch.full_like(leaf, count)
    return 0.1 * normal(key, leaf.numel()).reshape(leaf.shape).to(leaf.dtype)


def _near(alone: Tensor, found: Tensor) -> bool:
    a, b = dense((alone, found))
    if not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and bool((a - b).norm() <= CLOSE * a.norm())
