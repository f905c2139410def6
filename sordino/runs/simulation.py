"""A federation in one place: the rules of a run beside everybody's rows. The server's half sees the public numbers and
its own data, the clients' half its own rows; nothing else passes between the two than between machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from sordino.config import Experiment, Privacy
from sordino.engine.checkpoint import Loaded
from sordino.engine.client_states import States
from sordino.engine.server import Federation
from sordino.engine.shards import PreparedShards, Shards
from sordino.engine.site import Site
from sordino.engine.wire import Header
from sordino.evaluate.accuracy import Evaluator
from sordino.evaluate.evaluation import Evaluation, check, check_models
from sordino.privacy.noise.sources import for_run
from sordino.runs.agreement import Agreement
from sordino.runs.home import ServersHome
from sordino.runs.phases import Methods
from sordino.runs.population import Population
from sordino.runs.setup import Setup, Whole
from sordino.types import Examples, NoiseSource, Params


def simulated(experiment: Experiment, data_key: bytes = b"") -> Simulation:
    """The training of an experiment; unknown words are refused before any data are read."""
    whole = Methods(experiment).phases
    population = Population(experiment, data_key)
    return Simulation.of(population, len(whole) - 1)


def settle(experiment: Experiment) -> Experiment:
    """The default budget belongs to private algorithms: `sordino run algorithm=fedavg` is not asked to drop it."""
    if "privacy" in experiment.model_fields_set:
        return experiment
    gates = Methods(experiment).phases
    private = any(gate.read.offer() is not None or gate.uplink.noise() is not None for gate in gates)
    return experiment if private else experiment.model_copy(update={"privacy": Privacy()})


@dataclass(frozen=True)
class Simulation:
    """One phase of a run, with everybody's rows."""

    population: Population
    setup: Setup
    home: ServersHome

    @classmethod
    def of(cls, population: Population, stage: int = -1) -> Simulation:
        whole = Whole(population.experiment, population.public)
        return cls(population, whole.phases[stage], ServersHome(whole, population.kept))

    def at(self, stage: int) -> Simulation:
        """Another phase of the same run."""
        return replace(self, setup=self.setup.whole.phases[stage])

    @cached_property
    def preparation(self) -> tuple[Simulation, ...]:
        """The phases before the training."""
        return tuple(self.at(i) for i in range(len(self.setup.preparation)))

    def agreement(self) -> Agreement:
        """What is public of all this."""
        return self.setup.agreement(self.population.fingerprint)

    def federation(self, ledger: Path | str, run: str) -> Federation:
        """The server's side."""
        return self.setup.federation(self.home, self.population.fingerprint, ledger, run)

    def states(self, folder: Path | None, loaded: Loaded | None = None) -> States:
        """What clients keep; beyond what memory should hold it lies in the folder."""
        states = States(self.setup.algorithm.init_client(self.setup.task), folder)
        return states.restore(loaded.trees if loaded else {})

    def site(
        self,
        run: str,
        which: range | None = None,
        states: States | None = None,
        secret: bytes | None = None,
        handed: Params | None = None,
        shelf: Path | None = None,
    ) -> Site:
        """The clients' side: all of them, or those of one process."""
        setup, population = self.setup, self.population
        config, named, key, noise = (
            setup.experiment.digest(),
            population.named,
            setup.key,
            setup.experiment.privacy.noise,
        )
        phase = setup.run_of(run)

        def header(t: int, sender: int) -> Header:
            return Header(phase, config, t, sender, 0, "down" if sender < 0 else "up")

        def once(client: int) -> NoiseSource:
            return for_run(noise, key, secret, client)

        rows, tested = population.shares
        which = range(len(rows)) if which is None else which
        shards: Shards | PreparedShards = Shards(named.train, rows, which)
        tests = Shards(named.test, tested, which)
        if setup.algorithm.read.redraw is not None:
            shards = PreparedShards(shards, setup.algorithm.read, once)
        return Site(
            setup.algorithm,
            setup.task,
            shards,
            header,
            self.states(None) if states is None else states,
            tests,
            handed,
            setup.phase_key,
            noise,
            setup.sharing,
            shelf,
        )

    def evaluation(self) -> Evaluation:
        """The evaluator, who has everybody's test examples."""
        setup, test, given = self.setup, self.population.named.test, self.setup.experiment.evaluation
        examples = Examples(torch.from_numpy(np.asarray(test.x)), torch.from_numpy(np.asarray(test.y)))
        evaluator = Evaluator(setup.task, examples, self.population.shares[1])
        check(given.personal)
        if given.models:
            check_models(given.models, setup.algorithm.models(setup.state("server")))
        return Evaluation(setup.algorithm, evaluator, tuple(given.models), tuple(given.personal))
