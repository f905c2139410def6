"""Phases of a run, ready to be run: the plan, with the model, the states of clients and the server's side. No row is
needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from sordino import keys, tree, user_code
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import Home, OtherReads, OwnLoss
from sordino.algorithms.phases import Phase
from sordino.config import Engine, filled
from sordino.device import CPU
from sordino.engine.client_states import States, shape_of
from sordino.engine.executor import cores, decide, device_of, processes_of
from sordino.engine.server import FederatedServer
from sordino.engine.wire import Header
from sordino.errors import ConfigError
from sordino.planning.methods import reads_plainly
from sordino.planning.phase import Members, PlannedPhase, PlannedRun
from sordino.planning.prices import check_network
from sordino.tasks.architecture import Architecture
from sordino.tasks.losses import LossFunction, loss_named
from sordino.tree import Tree
from sordino.types import Task


@dataclass(frozen=True)
class RunSetup(PlannedRun):
    """A planned run with its model, all phases together; one phase is a `PhaseSetup`."""

    @cached_property
    def phases(self) -> tuple[PhaseSetup, ...]:
        return tuple(PhaseSetup(self, i) for i in range(len(self.methods.phases)))

    @property
    def hides_cohorts(self) -> bool:
        """True where a phase keeps secret which clients take part in a round."""
        return any(phase.policy.hidden for phase in self.phases)

    @cached_property
    def task(self) -> Task:
        """The model and its losses."""
        return self.built_task()

    def built_task(self) -> Task:
        """A second copy of the task, which shares no memory with the first: for another thread."""
        from sordino.tasks.network import InputSettings
        from sordino.tasks.quadratic import Quadratic

        experiment, public, training = self.experiment, self.public, self.methods.training
        if experiment.data.source == "quadratic":
            return Quadratic(public.shape[0] // 2)
        loss = self._loss
        net = self.architecture.built(keys.word(keys.fold(keys.root(experiment.seed), "model")))
        inputs = InputSettings(
            name=self.architecture.name,
            shape=public.shape,
            mean=public.mean,
            std=public.std,
            image=public.kind == "image",
            precision=torch.bfloat16 if decided(experiment.engine, training).precision == "bf16" else torch.float32,
            augment=experiment.data.augment,
            keeps=self.architecture.is_own and not experiment.model.get("reset", False),
            architecture=self.architecture,
        )
        made = self.methods.problem.built(net, inputs, loss, public.called_classes)
        wants = OtherReads.of(training).wants
        if wants != "rows" and not user_code.is_own(str(experiment.algorithm["name"])):
            made.check_used()  # code of a user's own may have a loss of its own
        return made

    @property
    def _loss(self) -> LossFunction | None:
        """A user's own loss; None for cross-entropy."""
        table, augment = self.experiment.loss, self.experiment.data.augment
        theirs = OtherReads.of(self.methods.training).wants == "rows"  # a function of the user's own trains
        if theirs and augment != "none":
            raise ConfigError(
                f"data.augment = {augment!r} with a training function of your own",
                why="it gets the rows as they are, so this would change nothing",
                fix="leave it out, and augment in the function",
                code="augment-of-the-trainer",
            )
        if table is None:
            return None
        if theirs or any(isinstance(phase, OwnLoss) for phase in self.methods.phases):
            raise ConfigError(
                f"loss = {table.get('name')!r} with algorithm = {self.experiment.algorithm.get('name')!r}",
                why="this algorithm trains with a loss of its own, so yours would change nothing, or only a part",
                fix="leave the loss out, or choose another algorithm",
                code="loss-of-the-algorithm",
            )
        rest = {key: value for key, value in table.items() if key != "name"}
        return loss_named(table, lambda made: filled(made, rest, "[loss]"))

    @cached_property
    def architecture(self) -> Architecture:
        """The model's architecture: its name, options and shapes."""
        table, public, training = self.experiment.model, self.public, self.methods.training
        own, name, reset = table.get("options", {}), str(table.get("name")), table.get("reset")
        if not isinstance(own, dict):
            raise ConfigError(
                f"model.options = {own!r}",
                why="it must be a table with the arguments of your class",
                fix="set for example model.options = {width = 64}",
                code="wrong-type",
            )
        if reset is not None and not (isinstance(reset, bool) and user_code.is_own(name)):
            raise ConfigError(
                f"model.reset = {reset!r} with model.name = {name!r}",
                why="it says, true or false, whether the initial values of a class of your own are drawn anew; those "
                "of a built-in network always are",
                fix="leave it out, or set model.reset = true with a class of your own",
                code="no-reset",
            )
        shape, image = public.shape, public.kind == "image"
        return Architecture(
            name=name,
            options={key: value for key, value in table.items() if key not in ("name", "options", "reset")} | own,
            inputs=(shape[-1], *shape[:-1]) if image else shape,
            outputs=self.methods.problem.outputs(public.named) * OwnLoss.of(training).heads,
            projection=OwnLoss.of(training).projection,
        )


@dataclass(frozen=True)
class PhaseSetup(PlannedPhase):
    """A planned phase with its model: all that is needed to run it, except rows."""

    whole: RunSetup

    @property
    def preparation(self) -> tuple[PhaseSetup, ...]:
        return self.whole.phases[:-1]

    @property
    def task(self) -> Task:
        return self.whole.task

    @cached_property
    def parameters(self) -> int:
        return tree.size(self.task.init(0))

    def over(self, server: Tree) -> bool:
        """True for a phase of the preparation that has reached its result."""
        return isinstance(self.algorithm, Phase) and self.algorithm.over(server)

    def result(self, server: Tree) -> Tree:
        """State that the next phase, or the training, begins from."""
        return self.algorithm.result(server) if isinstance(self.algorithm, Phase) else server

    def header(self, run: str) -> Callable[[int, int], Header]:
        """Function from round and sender (-1: the server) to the header of a message of this phase."""
        phase, config = self.run_of(run), self.experiment.digest()
        return lambda t, sender: Header(phase, config, t, sender, "down" if sender < 0 else "up")

    @property
    def engine(self) -> Engine:
        """Settings of [engine], with a choice in place of every `auto`."""
        return decided(self.experiment.engine, self.chosen)

    @property
    def sharing(self) -> str:
        """Way of computing the clients of one process: stacked in one call, with their examples pooled, or one by one
        in a loop. A loop where the cohort or the clients' sizes are secret: in one call the other clients, and how many
        rows they have, influence how an upload is rounded.
        """
        if self.policy.secret_cohort or (self.policy.real and not self.experiment.privacy.public_sizes):
            return "loop"
        executor, plainly = self.engine.executor, reads_plainly(self.chosen)
        if executor == "ranks":
            return "stack" if plainly else "pooled"
        return executor if executor == "pooled" or (executor == "stack" and plainly) else "loop"

    def _coordinates(self, algorithm: AnyAlgorithm) -> int:
        if self.whole.agreed is not None:
            return super()._coordinates(algorithm)
        sent = tree.size(algorithm.zero(self.task, algorithm.broadcast(algorithm.init(self.task, 0))))
        # noise on a gradient is drawn for each parameter, however few of them a method sends
        gradients = algorithm.read.offer() is not None and "sums" not in algorithm.read.gives
        return max(sent, self.parameters) if gradients else sent

    def check_model(self) -> None:
        if self.whole.agreed is None:
            self.algorithm.read.check(self.algorithm.work, self.task)
            check_network(self.method, self.task, bool(self.offers or self.priced.promises))

    def states(self, folder: Path | None = None, trees: Mapping[str, Tree] | None = None) -> States:
        """States of the clients, restored from a checkpoint's `trees`; they lie in the folder where memory should not
        hold them.
        """
        return States(self.algorithm.init_client(self.task), folder).restore(trees or {})

    def state(self, name: str) -> Tree:
        """A tree of the shape that a checkpoint stores under this name."""
        if name.partition("/")[0] == "server":
            return self.algorithm.init(self.task, self.key)
        return shape_of(name, self.algorithm.init_client(self.task))

    def federation(
        self, home: Home, dataset: str, ledger: Path | str, run: str, only: Members = None, reading: bool = False
    ) -> FederatedServer:
        """The server of this phase: its data (`home`) and its privacy accounts on the ledger. `only`: accounts of these
        clients alone; `reading`: the ledger is opened for reading only.
        """
        return self.accounts(partial(FederatedServer, home=home), dataset, ledger, run, only, reading)


def decided(given: Engine, algorithm: AnyAlgorithm) -> Engine:
    """Settings of [engine], with a choice in place of every `auto`."""
    device = device_of("auto") if given.device == "auto" else given.device
    executor, precision = decide(given.executor, given.precision, not reads_plainly(algorithm), device)
    several = cores() if device == CPU else 1
    if given.client_processes:
        several = processes_of(device)
    workers = given.workers if given.workers != "auto" else several
    found = {"device": device, "executor": executor, "precision": precision, "workers": workers}
    return given.model_copy(update=found)
