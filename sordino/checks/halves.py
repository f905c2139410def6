"""Properties (laws) that `sordino check` tests on an algorithm's class and on its methods, each called directly:
arguments, results, and inputs that stay unchanged.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from typing import cast

import torch

from sordino import keys, tree
from sordino.algorithms.algorithm import Algorithm, unwritten
from sordino.algorithms.optional import Estimates
from sordino.checks.trial import Broken, FixedGradients, Moment, Scene, SealedShard, Trial, require
from sordino.engine import checkpoint, wire
from sordino.privacy.readers import taken
from sordino.tree import Tree
from sordino.types import Shard


def changed(a: Tree, b: Tree) -> str:
    """Name of the first tensor that differs in any bit; empty if none does."""
    if difference := tree.unlike(a, b):
        return difference
    return next((name for (name, x), (_, y) in zip(tree.named(a), tree.named(b), strict=True) if _bits(x, y)), "")


def _bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return checkpoint.digest_trees({"": x}) != checkpoint.digest_trees({"": y})


def tensors(trial: Trial) -> None:
    header = wire.Header("check", "00" * 32, 0, -1, "down")
    for number, scene in enumerate(trial.scenes):
        a, task = scene.algorithm, scene.task
        server, client = a.init(task, scene.key), a.init_client(task)
        down = a.broadcast(server)
        upload, after = a.local(task, down, client, scene.shard(), scene.key)
        sent = {"what broadcast gives": down, "the upload of local": upload, "what zero gives": a.zero(task, down)}
        kept = {"what init gives": server, "what init_client gives": client, "the state of local": after}
        for what, value in (sent | kept).items():
            try:
                tree.leaves(value)
            except TypeError as error:
                fix = "use tensors, and dicts, tuples and NamedTuples of them; a count is torch.tensor(0)"
                raise Broken(f"{what} is {error}", fix) from None
        for what, value in sent.items():
            lost = changed(value, wire.decode(wire.encode(header, value), header, value)[1])
            require(not lost, f"{what} comes out of a message with another {lost}", "use plain tensors on the CPU")
        place = trial.place / f"states-{number}"
        checkpoint.save(place, 0, kept, {})
        loaded = checkpoint.load(place, kept.__getitem__)
        assert loaded is not None
        for what, value in kept.items():
            lost = changed(value, loaded.trees[what])
            require(not lost, f"{what} comes back from a checkpoint with another {lost}", "use plain tensors")


def shapes(trial: Trial) -> None:
    for scene in trial.scenes:
        a, task = scene.algorithm, scene.task
        server, client = a.init(task, scene.key), a.init_client(task)
        down = a.broadcast(server)
        upload, after = a.local(task, down, client, scene.shard(), scene.key)
        pairs = {
            ("local uploads", "zero"): (upload, a.zero(task, down)),
            ("local keeps", "init_client"): (after, client),
        } | {
            (f"the model {name!r} has", "the task's parameters"): (model, task.init(scene.key))
            for name, model in a.models(server).items()
        }
        for (what, pattern), (found, wanted) in pairs.items():
            difference = tree.unlike(found, wanted)
            require(not difference, f"{what} {difference}", f"make it the same tree as {pattern}")
        difference = tree.unlike(a.update(server, scene.received([upload], down), scene.home), server)
        require(not difference, f"update gives {difference}", "make it the same tree as init")


def pure(trial: Trial) -> None:
    for scene in trial.scenes:
        for moment in scene.moments():
            for half, (call, inputs) in _calls(scene, moment).items():
                before = _copy(inputs)
                first = _copy(call())
                touched = changed(inputs, before)
                fix = "make new tensors (a + b, tree.axpy); no name that ends in an underscore, no assignment in place"
                require(not touched, f"{half} changes the tensor {touched.partition('/')[2]} that it was given", fix)
                other = changed(first, call())
                fix = "compute from the arguments alone; what must last belongs in the server's or the client's state"
                require(not other, f"{half}, called twice with the same arguments, gives another {other}", fix)


def _calls(scene: Scene, now: Moment) -> dict[str, tuple[Callable[[], Tree], Tree]]:
    a, task, key = scene.algorithm, scene.task, scene.key
    return {
        "init": (lambda: a.init(task, key), ()),
        "init_client": (lambda: a.init_client(task), ()),
        "broadcast": (lambda: a.broadcast(now.server), (now.server,)),
        "local": (lambda: a.local(task, now.down, now.client, scene.shard(), key), (now.down, now.client)),
        "update": (lambda: a.update(now.server, now.received, scene.home), (now.server, now.received.mean)),
        "models": (lambda: dict(a.models(now.server)), (now.server,)),
    }


def _copy(a: Tree) -> Tree:
    return tree.map(torch.clone, a)


def sealed(trial: Trial) -> None:
    for scene in trial.scenes:
        a, task = scene.algorithm, scene.task
        down = a.broadcast(a.init(task, scene.key))
        try:
            a.local(task, down, a.init_client(task), cast(Shard, SealedShard(scene.shard())), scene.key)
        except AttributeError as error:
            fix = "ask a batch for its gradient: batch.grad(task.losses, parameters); rows belong to the reader"
            raise Broken(f"local looks behind the gate: it asks a shard or a batch for {error.name}", fix) from None


def blind(trial: Trial) -> None:
    fix = "let the losses that a batch is given keep nothing of their rows: an upload is computed from gradients"
    one, other = (_two_rounds(trial, whose) for whose in (0, 1))
    difference = changed(one, other)
    name = difference.partition("/")[2]
    require(not difference, f"other rows behind the same gradients give another {name}", fix)


def _two_rounds(trial: Trial, whose: int) -> Tree:
    """Uploads and client states of two rounds, with gradients that ignore the rows (`FixedGradients`), on rows of
    client `whose`. An algorithm that reads data through its gradients only gives the same for both clients.
    """
    trial.fresh()
    found: list[Tree] = []
    for scene in trial.staged():
        a, task = scene.algorithm, scene.task
        n = min(len(examples.y) for examples in scene.examples)
        rows = taken(scene.examples[whose], torch.arange(n))
        server, client = a.init(task, scene.key), a.init_client(task)
        for t in range(2):
            down = a.broadcast(server)
            canned = cast(Shard, FixedGradients(rows, keys.word(keys.fold(scene.key, t))))
            upload, client = a.local(task, down, client, canned, scene.key)
            found.append({"upload": upload, "state": client})
            server = a.update(server, scene.received([upload, upload], down), scene.home)
    return tuple(found)


def absence(trial: Trial) -> None:
    for scene in trial.scenes:
        a = scene.algorithm
        server = a.init(scene.task, scene.key)
        fix = "r.participation may be 0 and the mean all zeros: divide by neither"
        try:
            after = a.update(server, scene.received([], a.broadcast(server)), scene.home)
        except ArithmeticError as error:
            raise Broken(f"update fails where nobody answered: {error}", fix) from None
        require(tree.finite(after), "the model is not finite after a round in which nobody answered", fix)


def linear(trial: Trial) -> None:
    fix = "in your stage, encode zeros to zeros, let decode be linear, and let `weight` say what encode multiplies by"
    for scene in trial.scenes:
        a = scene.algorithm
        if a.uplink.robust:
            continue  # a median is not linear, on purpose
        down = a.broadcast(a.init(scene.task, scene.key))
        one, other, nothing = scene.upload(down), scene.upload(down, 1), tree.zeros_like(a.zero(scene.task, down))
        both, first, second, none = (
            scene.received(pair, down).mean
            for pair in ((one, other), (one, nothing), (nothing, other), (nothing, nothing))
        )
        require(_near(none, nothing, both), "a client that answers zeros moves the mean", fix)
        require(_near(both, tree.add(first, second), both), "a client's share depends on what the others answer", fix)
        same = scene.received((one, one), down).mean
        alone = scene.received((one,), down).mean
        if a.uplink.denominator == "received":
            require(_near(same, alone, same), "the mean of equal uploads is not that upload", fix)


def mean(trial: Trial) -> None:
    for scene in trial.scenes:
        a, task = scene.algorithm, scene.task
        if not a.takes_mean:
            return
        server, fix = a.init(task, scene.key), "leave `takes_mean` out"
        nothing, model = a.zero(task, a.broadcast(server)), task.init(scene.key)
        for name, part in zip(getattr(nothing, "_fields", ()), nothing, strict=True):
            difference = tree.unlike(part, model)
            require(not difference, f"an upload's {name} has {difference}, so it is not a change of the model", fix)
        after = a.update(server, scene.received([nothing, nothing], a.broadcast(server)), scene.home)
        moved = changed(dict(a.models(after)), dict(a.models(server)))
        require(not moved, f"uploads of zeros change the model {moved}, so they are no changes of it", fix)


def statistics(trial: Trial) -> None:
    if not trial.scenes[0].algorithm.carries_statistics or not trial.scenes[0].algorithm.read.plain:
        return
    fix = "give self.walk statistics=task.statistics and add the mean to the model, or leave `carries_statistics` out"
    for scene in trial.staged(('model={name="resnet18", norm="batch", width=4}',)):
        a, task = scene.algorithm, scene.task
        server = a.init(task, scene.key)
        down, before = a.broadcast(server), next(iter(a.models(server).values()))
        given = _copy(down)
        upload = scene.upload(down)
        touched = changed(down, given)
        require(not touched, f"a pass of local moves {touched.partition('/')[2]} that everybody was given", fix)
        change = Estimates.of(a).change(upload)
        for name in task.statistics:
            require(
                change is not None and bool(change[name].any()), f"local does not send what passes did to {name}", fix
            )
        received = scene.received([upload, scene.upload(down, 1)], down)
        after = next(iter(a.models(a.update(server, received, scene.home)).values()))
        mean = Estimates.of(a).change(received.mean)
        for name in task.statistics:
            is_mean = mean is not None and bool(torch.allclose(after[name], before[name] + mean[name]))
            require(is_mean, f"the server's {name} is not the mean of the clients'", fix)


def _near(a: Tree, b: Tree, size: Tree) -> bool:
    return float(tree.norm(tree.sub(a, b))) <= 1e-5 * float(tree.norm(size))


DRAWS = {
    "rand", "randn", "randint", "randperm", "normal", "normal_", "uniform", "uniform_", "laplace", "bernoulli",
    "bernoulli_", "multinomial", "exponential_", "Laplace", "Normal", "default_rng", "noisy", "coins", "bits",
    "permutation", "integers", "coin", "manual_seed", "urandom", "rand_like", "randn_like", "randint_like",
    "random_", "cauchy_", "geometric_", "log_normal_", "random", "randrange", "gauss", "shuffle", "choice",
    "choices", "token_bytes", "getrandbits",
}  # fmt: skip


def calls(source: str) -> set[str]:
    """Names of all functions and methods that a module calls: f(...) and x.f(...)."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func
            found.add(name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", ""))
    return found


def complete(trial: Trial) -> None:
    fix = "subclass FedAvg, as FedProx does, or write all halves"
    require(issubclass(trial.made, Algorithm), "it does not inherit from Algorithm", fix)
    missing = unwritten(trial.made)
    require(not missing, f"it has no {', '.join(missing)}", fix)
    fields = {field.name for field in dataclasses.fields(trial.made)}
    gates = [name for name in ("read", "uplink") if name not in fields]
    fix = "write `read: Reader = Open()` and `uplink: Uplink = Uplink()` as fields"
    require(not gates, f"{' and '.join(gates)} cannot be exchanged: no field of the dataclass", fix)


def frozen(trial: Trial) -> None:
    fix = "put @dataclass(frozen=True) above the class"
    fields = {field.name for field in dataclasses.fields(trial.made)}
    written = inspect.get_annotations(trial.made)
    lost = [name for name, kind in written.items() if name not in fields and "ClassVar" not in str(kind)]
    require(not lost, f"{', '.join(lost)} cannot be set from an experiment: no field of the dataclass", fix)


def draws_nothing(trial: Trial) -> None:
    found = sorted(calls(trial.file.read_text(encoding="utf-8")) & DRAWS)
    fix = "let the gates draw: mini-batches and samples come from the reader, noise from the reader or the uplink"
    require(not found, f"it calls {', '.join(found)}", fix)
