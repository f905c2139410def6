"""Simulation of a run in one place: its plan, and the rows of all clients. The server's side sees the public numbers
and its own data, the clients' side its own rows; only what would pass between machines passes between the two."""

from __future__ import annotations

import hmac
import math
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sordino import user_code
from sordino.algorithms.optional import PerClientMessages
from sordino.config import Experiment, Network, Privacy
from sordino.data.schema import Column
from sordino.device import CPU
from sordino.engine import wire
from sordino.engine.client_states import PreparedShards, Shards, States
from sordino.engine.executor import Executor, cores
from sordino.engine.forks import Forks
from sordino.engine.site import Site
from sordino.errors import DataError, RunError
from sordino.fast.parallel import Threads
from sordino.metrics.evaluation import Evaluation, Evaluator
from sordino.metrics.scores import metrics_named
from sordino.planning.methods import Methods
from sordino.privacy.noise.sources import for_run
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import CLIENTS, KEY, WHOSE, kept
from sordino.runs.backend import Backend, ServerData, StartingPoint, examples_of
from sordino.runs.population import Population
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.transport.message import Pipes, Signer
from sordino.transport.sites import Patience, Sites
from sordino.types import Examples, NoiseSource, Params, Task

ROOM = 1 << 26  # bytes of uploads in one message: what a process holds before it answers
MANY = 1000  # clients in one message


def simulated(experiment: Experiment, data_key: bytes = b"") -> Simulation:
    """Simulation of an experiment's training; unknown names in the settings are refused before any data are read."""
    whole = Methods(experiment).phases
    population = Population(experiment, data_key)
    return Simulation.of(population, len(whole) - 1)


def settle(experiment: Experiment) -> Experiment:
    """The experiment without the default privacy budget, where no part of it adds noise: `sordino run algorithm=fedavg`
    then needs no setting that drops the budget.
    """
    if "privacy" in experiment.model_fields_set:
        return experiment
    gates = Methods(experiment).phases
    private = any(gate.read.offer() is not None or gate.uplink.noise() is not None for gate in gates)
    return experiment if private else experiment.model_copy(update={"privacy": Privacy()})


@dataclass(frozen=True)
class Simulation(Backend):
    """Simulation of one phase of a run (the training, or one before it) in one place, with the rows of all clients."""

    population: Population

    @classmethod
    def of(cls, population: Population, stage: int = -1) -> Simulation:
        whole = RunSetup(population.experiment, population.public)
        return cls(whole.phases[stage], ServerData(whole, population.kept), population)

    @property
    def dataset(self) -> str:
        return self.population.fingerprint

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.population.dataset.columns

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.population.remarks

    def site(
        self,
        run: str,
        which: range | None = None,
        states: States | None = None,
        secret: bytes | None = None,
        public_tensors: Params | None = None,
        state_folder: Path | None = None,
    ) -> Site:
        """The clients' side: all clients, or `which` of them, for one process. `public_tensors`: what every client
        received before the first round; `secret`: where noise is real, the source of what a client randomises once in a
        run; `state_folder`: where clients keep their states.
        """
        (rows, tested), named = self.population.shares, self.population.named
        which = range(len(rows)) if which is None else which
        trained, tests = Shards(named.train, rows, which), Shards(named.test, tested, which)
        kept = self.setup.states() if states is None else states
        return clients_of(self.setup, run, trained, tests, kept, secret, public_tensors, state_folder)

    def executor(
        self,
        folder: Path,
        place: Path,
        run: str,
        begun: StartingPoint | None,
        public_tensors: Params | None,
        stack: ExitStack,
    ) -> Executor:
        """The clients as [engine] places them: in this process, in others, or on the ranks of torch.distributed."""
        setup, engine = self.setup, self.setup.experiment.engine
        if engine.one_process:
            states = setup.states(place, begun.loaded.trees if begun is not None else {})
            site = self.site(run, states=states, secret=secret_of(folder), public_tensors=public_tensors)
            site.adds = adds(setup)
            if (forks := forks_of(setup)) is not None:
                site.forks = forks
                stack.callback(forks.close)
            return site
        if engine.client_processes:
            clients: Executor = in_processes(setup, folder, place, run)
        else:
            from sordino.runs.ranks import Ranks

            clients = Ranks(self, run, folder, place, public_tensors)
        clients = stack.enter_context(clients)
        if begun is not None:
            clients.restore(begun.loaded.step, RunFolder(begun.place).checkpoints)
        return clients

    def evaluation(self) -> Evaluation:
        """Evaluation on the test examples of all clients."""
        setup, examples, given = self.setup, examples_of(self.population.named.test), self.check_evaluation()
        own, parts = metrics_named(given.metrics), self.population.shares[1]
        evaluator = Evaluator(setup.task, examples, parts, tuple(given.scores), own, threads_of(setup))
        return Evaluation(setup.algorithm, evaluator, tuple(given.models), tuple(given.personal))


def secret_of(folder: Path) -> bytes | None:
    """Secret from which clients draw the randomness that they use all through the run; None in a simulation. Another
    one than the run began with is refused.
    """
    run = RunFolder(folder)
    if not (place := run.private / CLIENTS).exists():
        return None
    secret, of_run = kept(place, KEY), run.environment.run.encode()
    if not hmac.compare_digest(hmac.digest(secret, of_run, "sha256"), kept(run.private / WHOSE, KEY)):
        raise RunError(
            f"{place} is not the clients' secret of this run",
            why="a client draws its random response once in a run: from another secret it would draw a second one, "
            "which nobody has paid for",
            fix="put the run's own file back from your copy, or start a new run",
            code="another-secret",
        )
    return secret


def check_rows(whole: Simulation, dataset: str) -> None:
    """Refuses the rows of another process, or of another machine's copy of the files, that are not those of the run:
    what is paid is counted for the rows whose digest is in the ledger. `dataset`: that digest.
    """
    if whole.dataset != dataset:
        raise DataError(
            "a process of this run found other rows than the run began with",
            why="whose they are nobody knows: a row could be at two clients, and would lose twice what is printed",
            fix="give every machine the same files, and let a source or a partition of your own give the same rows in "
            "every process",
            code="other-data",
        )


def adds(setup: PhaseSetup) -> bool:
    """True where clients are computed together in one process and the server needs only the sum of their uploads."""
    engine = setup.experiment.engine
    return engine.executor != "loop" and engine.one_process and not reads_single_uploads(setup)


def reads_single_uploads(setup: PhaseSetup) -> bool:
    """True where the server needs each upload by itself, not a running sum: to leave late ones out, to compare them, or
    to mask or encrypt them.
    """
    algorithm, uplink = setup.algorithm, setup.algorithm.uplink
    return setup.stragglers.leaves_out or algorithm.reads_each or uplink.reads_each or setup.policy.secure


def in_processes(setup: PhaseSetup, folder: Path, place: Path, run: str) -> Sites:
    """Clients of a phase in processes of this machine, client k in process k mod workers; `place` is where it keeps
    their states. With a timeout, the clients of a silent process miss the round, and others are asked in their place
    until the process has answered.
    """
    engine, header = setup.engine, setup.header(run)
    network, algorithm = engine.network, setup.algorithm
    workers = min(int(engine.workers), len(setup.public.sizes))  # who has no client has nothing to do
    command = [sys.executable, "-m", "sordino.runs.site_process", str(folder), str(place), run, str(setup.stage)]
    upload = wire.payload_bytes(wire.schema(algorithm.zero(setup.task, algorithm.broadcast(setup.state("server")))))
    return Sites(
        Pipes([[*command, str(i), str(workers)] for i in range(workers)]),
        Signer("", run),
        setup.stage,
        {str(i): range(i, len(setup.public.sizes), workers) for i in range(workers)},
        lambda t: header(t, -1),
        algorithm.per_client_message if isinstance(algorithm, PerClientMessages) else None,
        Patience(network.timeout_s or math.inf, 0, engine.deadline_s or math.inf),
        # with a simulated slow network each message carries one client, since each client has a network of its own
        1 if network != Network() else max(1, min(MANY, ROOM // max(1, upload))),
    )


PER_CORE = 4  # more of them only wait for each other


def clients_of(
    setup: PhaseSetup,
    run: str,
    trained: Mapping[int, Examples],
    tested: Mapping[int, Examples],
    states: States,
    secret: bytes | None = None,
    public_tensors: Params | None = None,
    state_folder: Path | None = None,
) -> Site:
    """The site that computes for these clients, with their examples and states. `secret`: where noise is real, the
    source of what a client randomises once in a run; `public_tensors`: those that every client received before the
    first round; `state_folder`: where clients keep their states.
    """
    noise = setup.experiment.privacy.noise

    def once(client: int) -> NoiseSource:
        return for_run(noise, setup.key, secret, client)

    if setup.algorithm.read.redraw is not None:
        trained = PreparedShards(trained, setup.algorithm.read, once)
    return Site(
        setup.algorithm,
        setup.task,
        trained,
        setup.header(run),
        states,
        tested,
        public_tensors,
        setup.public.sizes if setup.experiment.privacy.public_sizes else None,
        setup.phase_key,
        noise,
        setup.sharing,
        state_folder,
        threads_of(setup),
    )


def threads_of(setup: PhaseSetup) -> Threads[Task]:
    """Threads of this process that train clients, each with a task of its own."""
    return Threads(setup.task, threads(setup) if setup.task.threads else 1, setup.whole.built_task)


def forks_of(setup: PhaseSetup) -> Forks | None:
    """Forked helpers, or None: not with real noise, because the work of a helper that dies is done again and real noise
    must not be drawn twice; not with a user's own code, which may keep state that a fork loses; and not where they do
    not pay.
    """
    people, real = len(setup.public.sizes), setup.policy.real
    of_a_round = people if setup.policy.hidden else math.ceil(setup.cohort.expected(people))
    many = min(threads(setup), of_a_round)  # who has no client has nothing to do
    return Forks(many) if many > 1 and not real and not owned(setup) else None


def threads(setup: PhaseSetup) -> int:
    """Number of threads that train clients in one process. A user's own code may keep state beside its arguments, so
    one thread alone calls it, unless more are asked for.
    """
    if not setup.engine.one_process or setup.engine.device != CPU:
        return 1
    alone = setup.experiment.engine.workers == "auto" and owned(setup)
    return 1 if alone else min(int(setup.engine.workers), PER_CORE * cores())


def owned(setup: PhaseSetup) -> bool:
    """True where the experiment names a user's own code."""
    return any(user_code.named(setup.experiment.model_dump()))
