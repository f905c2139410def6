"""The clients of one place as a site of the engine, made from the rules of a phase and the clients' own rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from sordino import user_code
from sordino.device import CPU
from sordino.engine.choose_executor import cores
from sordino.engine.client_states import States
from sordino.engine.forks import Forks
from sordino.engine.shards import PreparedShards
from sordino.engine.site import Site
from sordino.privacy.noise.sources import for_run
from sordino.runs.setup import Setup
from sordino.tasks.threads import Threads
from sordino.types import Examples, NoiseSource, Params

PER_CORE = 4  # more of them only wait for each other


def clients_of(
    setup: Setup,
    run: str,
    trained: Mapping[int, Examples],
    tested: Mapping[int, Examples],
    states: States,
    secret: bytes | None = None,
    handed: Params | None = None,
    shelf: Path | None = None,
) -> Site:
    """The site of these clients. `secret`: where noise is real, the source of what a client randomises once in a run;
    `handed`: tensors that every client was given before the first round; `shelf`: the folder in which they keep their
    states.
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
        handed,
        setup.public.sizes if setup.experiment.privacy.public_sizes else None,
        setup.phase_key,
        noise,
        setup.sharing,
        shelf,
        threads_of(setup),
    )


def threads_of(setup: Setup) -> Threads:
    """Threads of this process that train clients, each with a task of its own."""
    return Threads(setup.task, threads(setup), setup.whole.built_task)


def forks_of(setup: Setup) -> Forks | None:
    """Forked helpers, or None: not with real noise, because the work of a helper that dies is done again and real noise
    must not be drawn twice; not with a user's own code, which may keep state that a fork loses; and not where they do
    not pay.
    """
    people, real = len(setup.public.sizes), setup.policy.real
    of_a_round = people if setup.policy.hidden else math.ceil(setup.cohort.expected(people))
    many = min(threads(setup), of_a_round)  # who has no client has nothing to do
    return Forks(many) if many > 1 and not real and not owned(setup) else None


def threads(setup: Setup) -> int:
    """Number of threads that train clients in one process. A user's own code may keep state beside its arguments, so
    one thread alone calls it, unless more are asked for.
    """
    if not setup.engine.one_process or setup.engine.device != CPU:
        return 1
    alone = setup.experiment.engine.workers == "auto" and owned(setup)
    return 1 if alone else min(int(setup.engine.workers), PER_CORE * cores())


def owned(setup: Setup) -> bool:
    """True where the experiment names a user's own code."""
    return any(user_code.named(setup.experiment.model_dump()))
