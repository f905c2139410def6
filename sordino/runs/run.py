"""A simulated run, begun or resumed. Everything it leaves lies in one folder.

experiment.toml   resolved      environment.json  where it ran          metrics.jsonl     one object per round
ledger.sqlite     what was spent   checkpoints/   to resume from   privacy.json   the receipt
model.safetensors the whole network   model.json   how it is used
agreement.json    public numbers   private/       not to be shared (see `receipts.private`)
candidates.json   how the server's own images were made, where an algorithm asks for such

Runs that share a ledger identify their data by digests under one key, a file beside the ledger. While a ledger is being
created its key is a draft, locked by the creating process, and renamed once the ledger exists. So a key without a
ledger says that the ledger is lost.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote

from sordino import user_code
from sordino.accounting.composition import cost, read_notes
from sordino.algorithms.optional import ChecksServer
from sordino.config import Experiment
from sordino.device import on
from sordino.engine.executor import device_of
from sordino.errors import ConfigError, LedgerError, RunError
from sordino.ledger import storage
from sordino.ledger.files import sync
from sordino.ledger.ledger import Ledger, of_run
from sordino.planning import Agreement
from sordino.planning.methods import Methods
from sordino.planning.phase import PlannedRun
from sordino.planning.planner import Planner
from sordino.receipts import private
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import places_of
from sordino.runs.new_folder import choices, create_folder, environment_of
from sordino.runs.play import Ended, Progress, play
from sordino.runs.population import Population
from sordino.runs.preparation import check_source
from sordino.runs.setup import decided
from sordino.runs.simulation import Simulation, settle, simulated

DEEPEST = 100  # folders of a path
_log = logging.getLogger(__name__)


@user_code.blamed()
def start(
    experiment: Experiment,
    folder: Path,
    watch: Callable[[Progress], None] | None = None,
    crash: int | None = None,
    prepared: Path | None = None,
) -> Ended:
    """Run an experiment in a new folder. `crash`: the round in which the process kills itself on purpose, once budget
    is reserved. `prepared` is a run whose preparation is taken over.
    """
    with on(device_of(experiment.engine.device)):
        simulation = checked(experiment, folder, prepared)
        environment, key = environment_of(simulation.setup.experiment, prepared), simulation.population.data_key
        create_folder(folder, simulation.setup, simulation.agreement(), environment, key, simulation.home.story)
        _log.info("the run lies in %s", folder)
        return play(simulation, folder, watch, crash=crash)


def checked(experiment: Experiment, folder: Path, prepared: Path | None = None, dry: bool = False) -> Simulation:
    """Creates the simulation of a new run in this folder, after all checks: every refusal happens here, before any file
    exists. A new shared ledger is created last of all, and with `dry` not at all."""
    if len(folder.parts) > DEEPEST:
        raise RunError(
            f"--out has {len(folder.parts)} folders inside each other",
            why=f"at most {DEEPEST} are allowed",
            fix="choose another --out",
            code="out-too-deep",
        )
    device_of(experiment.engine.device)
    given = settle(experiment)
    methods = Methods(given)
    engine = decided(given.engine, methods.training)
    experiment = given.model_copy(update={"engine": engine})
    _check_lent(experiment)
    for line in choices(given.engine, engine, experiment):
        _log.info("%s", line)
    simulation = simulated(experiment, private.new_key())
    setup = simulation.setup
    simulation.population.check()
    _ = setup.plan, simulation.evaluation(), setup.algorithm.init_client(setup.task)
    for phase in setup.preparation:
        _ = phase.plan
    Planner(setup).check_noise()
    methods.needs()
    if folder.exists():
        known, typed = RunFolder(folder).exists, quote(str(folder))
        raise RunError(
            f"{folder} already exists",
            why="a run folder belongs to one run",
            fix=(f'`sordino resume {typed}` continues it, in Python sordino.resume("{folder}"); ' if known else "")
            + f'for a new run choose another folder, for example --out {typed}-2, in Python out="{folder}-2"',
            code="run-exists",
        )
    if prepared is not None:
        check_source(setup, prepared)
    for phase in (*(setup.preparation if prepared is None else ()), setup):
        # last, because it may draw candidates, which can take hours
        ChecksServer.of(phase.algorithm).check(simulation.home)
    shared = experiment.privacy.ledger
    return joined(simulation, Path(os.path.abspath(shared)), dry) if shared else simulation


def _check_lent(experiment: Experiment) -> None:
    """Refuse objects of this Python session where clients run in other processes, which do not have them."""
    names = sorted({name for name in user_code.named(experiment.model_dump()) if user_code.is_lent(name)})
    if names and not experiment.engine.one_process:
        raise ConfigError(
            f"{', '.join(names)} with engine.executor = {experiment.engine.executor!r}",
            why="an object of this Python session is not there in another process",
            fix="put it into a module, or a file, and name that; or leave engine.executor out",
            code="session-object-in-processes",
        )


def fresh_folder(name: str) -> Path:
    """Path of a new run folder: runs/DATE-NAME, numbered where that is taken."""
    stem = f"{datetime.date.today().isoformat()}-{name}"
    folder, again = Path("runs") / stem, 2
    while folder.exists():
        folder, again = Path("runs") / f"{stem}-{again}", again + 1
    return folder


@user_code.blamed()
def resume(
    folder: Path, watch: Callable[[Progress], None] | None = None, fallback: bool = False, moved: bool = False
) -> Ended:
    """Continue a run where its last checkpoint stands: the same bytes as if it had never stopped.

    `fallback` sets a damaged newest checkpoint aside and takes the one before; seeded rounds are then computed again,
    to the same releases. `moved` says that this folder has taken the place of the one where the run began, and that
    nothing goes on there.
    """
    RunFolder(folder).check()
    if site := RunFolder(folder).environment.site:
        raise RunError(
            f"{folder} is the folder of {site} in a run between sites",
            why="it continues together with the others",
            fix="give the same command again: `sordino serve` at the server, `sordino join` at a site",
            code="between-sites",
        )
    experiment = RunFolder(folder).experiment
    _check_unedited(experiment, folder)
    if experiment.privacy.real:
        private.check_place(folder, moved)
    for line in choices(experiment.engine, experiment.engine, experiment):
        _log.info("%s", line)
    with on(device_of(experiment.engine.device)):
        simulation = simulated(experiment, private.key_of_data(folder))
        _check_agreement(simulation, folder)
        return play(simulation, folder, watch, fallback, moved=moved)


def _check_agreement(simulation: Simulation, folder: Path) -> None:
    """Refuse an agreement.json other than the one that follows from this run's data and experiment: the receipt holds
    its hash. The data themselves are checked against the ledger.
    """
    if not Agreement.read(folder).says(simulation.agreement()):
        raise RunError(
            f"agreement.json of {folder} does not follow from this run's data and experiment",
            why="the receipt is verified against the public numbers in it",
            fix="put the old file back, or the data that the run began with",
            code="edited-run",
        )


def _check_unedited(experiment: Experiment, folder: Path) -> None:
    """Refuse an edited experiment: a run's guarantee is that of one experiment, of which only [engine] may change."""
    files = RunFolder(folder)
    now: tuple[str, str] = (experiment.digest(), experiment.privacy.noise)
    pairs: list[tuple[str, str]] = [(files.environment.config, now[1])]
    left = places_of(files)[not experiment.privacy.ledger]  # its notes, where it began on the other kind of ledger
    if os.path.exists(left):  # which alone knows what it has spent
        pairs.append(("", ""))
    if experiment.privacy.ledger or files.ledger.exists():  # one that is shared stood before the run began
        with Ledger.as_founded(files.ledger) as ledger:
            notes = [entry.parsed for entry in of_run(ledger, files.environment.run)]
        pairs += [(note.config, note.noise) for note in notes]
    if any(each != now for each in pairs):
        raise RunError(
            f"experiment.toml of {folder} is not the experiment that this run began with",
            why="all releases until now were planned and paid for under that one",
            fix="put the old file back; [engine] alone may be changed, and the path of a shared ledger. Another "
            "experiment is another run",
            code="edited-run",
        )


FIX = (
    "put the file back from a copy: every run on the ledger keeps the key as data.key in its folder. Where there is "
    "none, begin a ledger under another name; what was spent on this one counts beside it"
)


def joined(simulation: Simulation, place: Path, dry: bool) -> Simulation:
    """Binds a simulation to a ledger that several runs share: returns it with the ledger's own key for the digest of
    its data. Creates a new ledger; refuses one of other data or other clients. `dry`: writes nothing.
    """
    if dry and not place.exists():
        storage.check_never_there(place)
        return simulation
    with key_of(place) as key:
        known = simulation.population
        joint = replace(simulation, population=Population.like(known, known.experiment, key))
        with joint.setup.federation(joint.home, joint.dataset, place, "before", reading=dry).ledger as ledger:
            _check_room(joint.setup.whole, [entry.released for entry in ledger.entries()])
    return joint


def _check_room(whole: PlannedRun, notes: Sequence[str]) -> None:
    """Refuses a run on a shared ledger if its real noise, with that of the runs before it, would lack more of the ideal
    law than they set aside of delta. `notes`: of all ledger entries.
    """
    offer, budget = whole.phases[-1].promising.offer, whole.budget
    if offer is not None and budget is not None:
        known = read_notes(notes, len(whole.public.sizes)).values()
        before = max((cost(releases, offer.subject).drift for releases in known), default=0.0)
        replace(budget, lacking=whole.lacks(budget.epsilon, before))  # refuses itself


@contextmanager
def key_of(ledger: Path) -> Iterator[bytes]:
    """Context with the key of the data on a shared ledger. Where there is no ledger yet, the key is locked, so that one
    process alone creates the ledger.
    """
    key, draft = Path(f"{ledger}.key"), Path(f"{ledger}.key-new")
    if ledger.exists() and key.exists():
        yield private.kept(key, private.KEY, FIX)
        return
    storage.check_directory(ledger)
    with storage.refusals(), _locked_draft(draft) as file:
        try:
            if not ledger.exists():
                storage.check_never_there(ledger)
                os.truncate(file, 0)
                os.write(file, private.new_key())
                os.fsync(file)
            elif not key.exists() and not os.fstat(file).st_size:
                why = "the ledger names its data under this key: no run could show that its data are the same"
                raise LedgerError(f"there is no {key}", why=why, fix=FIX, code="ledger-without-key")
            yield private.kept(key if key.exists() else draft, private.KEY, FIX)
            if not key.exists():
                os.rename(draft, key)
                sync(key.parent)
        finally:
            if key.exists() or not (ledger.exists() and os.fstat(file).st_size):  # else it will get its name later
                draft.unlink(missing_ok=True)


@contextmanager
def _locked_draft(draft: Path) -> Iterator[int]:
    """File of a new ledger's key while the ledger is being created, locked for this process; opened again where another
    process has renamed or removed it meanwhile."""
    while True:
        file = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            storage.wait_for(file)
            if storage.identity(draft) == (os.fstat(file).st_dev, os.fstat(file).st_ino):
                yield file
                return
        finally:
            os.close(file)
