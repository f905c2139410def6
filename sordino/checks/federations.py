"""Properties (laws) that `sordino check` tests on whole runs: order of clients, processes, resume, ledger, receipt,
learning, and training with noised gradients.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch

from sordino import config, tree, user_code
from sordino.accounting.events import Json
from sordino.accounting.words import in_short
from sordino.checks.trial import QUADRATIC, ROUNDS, STOP, Broken, SealedShard, Trial, differences, require, trace
from sordino.engine import checkpoint
from sordino.engine.executor import Answers, Clients
from sordino.engine.site import Site
from sordino.errors import SordinoError
from sordino.ledger.ledger import State
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from sordino.round import one_round
from sordino.runs.play import Progress
from sordino.runs.population import Population
from sordino.runs.run import resume
from sordino.runs.simulation import simulated
from sordino.tree import Tree
from sordino.types import LocalWork, Shard, Terms

SHARING = {"pooled": "clients that share their passes", "stack": "clients that are trained in one call"}
CLOSE = 1e-5  # other orders of addition round otherwise


def ends(trial: Trial) -> None:
    _ = trial.trace


def order(trial: Trial) -> None:
    straight, mixed = (_played(trial, mix) for mix in (0, 1))
    fix = "clients may share nothing: keep what lasts in the client's own state, and add up in the uplink"
    require(straight == mixed, "the result depends on the order in which clients are served", fix)


def _played(trial: Trial, mix: int) -> tuple[str, str, str]:
    trial.fresh()
    simulation = simulated(trial.experiment())
    federation, site = simulation.federation(":memory:", "check"), simulation.site("check")
    server = simulation.setup.state("server")
    for t in range(3):
        server = one_round(federation, server, t, SequentialExecutor(site, mix)).server
    states = {f"{k}": state for k, state in site.states.items()}
    return checkpoint.digest_trees({"": server}), checkpoint.digest_trees(states), federation.ledger.head()


class SequentialExecutor(Clients):
    """Executor that runs clients one after another, in ascending order, or with `mix` in another order."""

    def __init__(self, site: Site, mix: int) -> None:
        self._site, self._mix = site, mix

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        served = sorted(terms, key=lambda k: (k * 7 + t) % 5, reverse=True) if self._mix else sorted(terms)
        answers = {k: answer for one in served for k, answer in self._site.each(t, down, {one: terms[one]})}
        return Answers(sorted(answers.items()))


def processes(trial: Trial) -> None:
    fix = "read nothing but the arguments: no globals that clients share, no clock, no process id"
    for executor, what in SHARING.items():
        away = _apart(trial.base, trial.run(executor, f'engine={{executor="{executor}", checkpoint_every=2}}'))
        require(
            away < CLOSE, f"{what} give another model (by {away:.2g} of its size) than one client after another", fix
        )
    found = differences(
        trial.trace, trace(trial.run("processes", 'engine={executor="processes", workers=2, checkpoint_every=2}'))
    )
    require(not found, f"two client processes give another {', '.join(found)} than one client after another", fix)


def _apart(a: Path, b: Path) -> float:
    """Distance between two runs' models, relative to the size of the first."""
    one, other = (checkpoint.tensors(folder / "model.safetensors") for folder in (a, b))
    away, size = (torch.linalg.vector_norm(tree.flat(x).double()) for x in (tree.sub(one, other), one))
    return float(away / size) if size else float(away)


class Stopped(BaseException):
    """Simulated kill of the process. It is a BaseException so that no code of a run catches it."""


def resumes(trial: Trial) -> None:
    def stop(step: Progress) -> None:
        if step.round == STOP:
            raise Stopped

    fix = (
        "keep nothing on the instance, the class or the module: what lasts belongs in the server's or the "
        "client's state"
    )
    with contextlib.suppress(Stopped):
        trial.run("resumed", watch=stop)
    trial.fresh()
    try:
        resume(trial.place / "resumed")
    except SordinoError as error:
        raise Broken(f"a stopped run does not go on: {error.what}", fix) from error
    found = differences(trial.trace, trace(trial.place / "resumed"))
    require(not found, f"a run that was stopped and resumed has another {', '.join(found)}", fix)


def ledger(trial: Trial) -> None:
    _, federation = opened(trial.base)
    with federation.ledger as book:
        entries = list(book.entries())
    published = [entry.op for entry in entries if entry.state is State.PUBLISHED]
    wanted = [federation.op(t) for t in range(ROUNDS)]
    fix = "leave the ledger, the engine and BudgetExhausted to the library"
    require(
        published == wanted, f"{ROUNDS} rounds were asked for, {len(published)} of {len(entries)} are published", fix
    )


def receipt(trial: Trial) -> None:
    wrong = verify(trial.base)
    fix = "promise in claims() only what your gate's noise proves; take the library's gates where you can"
    require(not wrong, f"the receipt does not verify: {'; '.join(wrong)}", fix)
    setup, _ = opened(trial.base)
    finite = _finite(trial.base)
    gates = setup.algorithm.read, setup.algorithm.uplink
    if setup.plan.offer is not None:
        require(bool(finite), "a gate is private, but the receipt promises nothing", fix)
    elif any(user_code.parts(*gates)) or not setup.priced.promises:  # some noise of the library is in no budget
        require(not finite, f"no gate is private, but the receipt promises {', '.join(finite)}", fix)


def _finite(folder: Path) -> list[str]:
    receipt = RunFolder(folder).receipt()
    return [in_short(row, receipt.simulated) for row in receipt.guarantees if row.finite]


def learns(trial: Trial) -> None:
    algorithm = simulated(trial.experiment()).setup.algorithm
    opened_gates = ['read={name="open"}'] if algorithm.read.offer() is not None else []
    opened_gates += ["uplink={client=[]}"] if algorithm.uplink.noise() is not None else []
    folder = trial.run("quadratic", *QUADRATIC, *opened_gates)
    dataset = Population(config.load(folder / "experiment.toml")).dataset
    a, b = np.hsplit(dataset.train.x.astype(np.float64), 2)
    best = float((0.5 * a * ((a * b).sum(0) / a.sum(0) - b) ** 2).sum(1).mean())
    first = float((0.5 * a * b**2).sum(1).mean())  # at zero, where quadratics begin
    last = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["loss"]
    fix = "check the sign and the size of the step: lower algorithm.lr with --set algorithm.lr=0.01"
    reached = (
        f"on quadratics of loss {first:.3g}, of which {first - best:.3g} can be learned, 20 rounds end at {last:.3g}"
    )
    require(last - best < 0.99 * (first - best), reached, fix)


def noisy(trial: Trial) -> None:
    """Tests an algorithm with clipped and noised gradients: it must take exactly as many as it pays for, and the
    receipt must verify.
    """
    fix = "go over shard.batches(self.work, key) once and to its end, and call grad once per batch"
    algorithm = trial.scenes[0].algorithm
    read = algorithm.read if algorithm.read.offer() is not None else NoisyGradient(1.0, **_sampling(algorithm.work))
    for scene in trial.scenes:
        a, size = scene.algorithm.behind(read=read), len(scene.examples[0].y)
        down, grads = a.broadcast(a.init(scene.task, scene.key)), list[int]()
        shard = read.open(scene.examples[0], scene.grant(reads=read.reads(a.work, size)), scene.task)
        a.local(scene.task, down, a.init_client(scene.task), cast(Shard, SealedShard(shard, grads)), scene.key)
        want = a.work.count(size)
        require(len(grads) == want, f"{want} gradients were paid for, {len(grads)} were taken", fix)
    more: list[str] = []
    if simulated(trial.experiment()).setup.plan.offer is None:
        table = {"name": "noisy_gradient", "clip": 1.0, "multiplier": 4.0, **_sampling(algorithm.work)}
        more = [f"read={{{', '.join(f'{k} = {json.dumps(v)}' for k, v in table.items())}}}", "privacy={delta=1e-5}"]
    folder = trial.run("noisy", *more)
    require(bool(_finite(folder)), "no epsilon is finite under a private gate", "leave the gates to the library")
    wrong = verify(folder)
    require(not wrong, f"the receipt does not verify: {'; '.join(wrong)}", "leave the gates to the library")


def _sampling(work: LocalWork) -> Json:
    """Settings of the reader `noisy_gradient` that fit an algorithm's amount of local work: all rows, fixed batches, or
    a Poisson sample.
    """
    if work.batch_size is None:
        return {"sampling": "full"}
    if work.epochs is not None:
        return {"sampling": "fixed_batches"}
    return {"sampling": "poisson", "rate": 0.5, "neighbours": "zero_out"}
