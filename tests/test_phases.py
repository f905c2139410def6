"""A run that prepares before it trains: the same bytes however it is stopped and wherever its clients live, books of
every phase under its own name, and messages as long as the schemas say.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from laws import warm
from laws.traces import Killed, Trace, differences, trace

from sordino import config, keys, tree
from sordino.algorithms import ALGORITHMS
from sordino.algorithms.slaug import prepare
from sordino.algorithms.slaug.prepare import Ask, Train
from sordino.algorithms.slaug.traffic import Sizes
from sordino.algorithms.slaug.training import SlaugFL
from sordino.algorithms.slaug.training import Up as TrainingUp
from sordino.config import Experiment
from sordino.engine import checkpoint, processes, wire
from sordino.engine.server import Federation
from sordino.engine.site import Site
from sordino.errors import SordinoError
from sordino.generators import nets
from sordino.ledger.accountants import epsilon_by
from sordino.ledger.currency import UNIT
from sordino.ledger.events import Gaussian, Poisson, Repeat, Together
from sordino.ledger.ledger import State
from sordino.ledger.notes import parsed
from sordino.ledger.pricing import CountedPhase, Renyi, best_order, budget_at, counted_phases
from sordino.privacy.noise.sources import for_client, for_round
from sordino.runs import preparation
from sordino.runs.forecast import Forecast
from sordino.runs.receipt import opened
from sordino.runs.rounds import PlayedPhase
from sordino.runs.run import resume, start
from sordino.runs.setup import Setup
from sordino.runs.simulation import Simulation, simulated
from sordino.runs.verify import verify
from sordino.types import Terms

CLIENTS, ROUNDS, COHORT, CLASSES = 6, 2, 3, 10
TINY: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"source": "digits", "train": 240, "test": 60, "probe": 5},
    "candidates": {"source": "procedural", "per_class": 20},
    "partition": {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 0.5},
    "model": {"name": "cnn_norm"},
    "cohort": {"name": "random", "size": COHORT},
    "algorithm": {
        "name": "slaug_fl",
        "keep": 10,
        "local_epochs": 1,
        "prepare_epochs": 2,
        "batch_size": 32,
        "gan_epochs": 2,
        "least": 2,  # so that some devices decline and others are asked after them
    },
    "privacy": {},
    "engine": {"executor": "loop"},
}


def tiny(**changes: Any) -> Experiment:
    table = {
        name: {**TINY[name], **change} if isinstance(change, dict) and isinstance(TINY.get(name), dict) else change
        for name, change in changes.items()
    }
    return config.validate(TINY | table)


class Whole(NamedTuple):
    """What a run with a preparation leaves, in bytes."""

    training: Trace
    rows: str  # of the preparation
    handed: str
    phases: dict[str, str]  # what each stood at: the server, and what clients kept


def whole(folder: Path) -> Whole:
    rows, handed = (
        hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in ("preparation.jsonl", "handed.safetensors")
    )
    phases = {}
    for mine in simulated(config.load(folder / "experiment.toml")).preparation:
        place = folder / "preparation" / mine.setup.phase
        loaded = checkpoint.load(place / "checkpoints", mine.setup.state)
        assert loaded is not None
        held = [loaded, *(checkpoint.load(worker, mine.setup.state) for worker in sorted(place.glob("clients-*")))]
        states = mine.states(None)
        for one in held:
            assert one is not None
            states.restore(one.trees)
        phases[mine.setup.phase] = checkpoint.digest_trees({"server": loaded.trees["server"], **states.trees()})
    return Whole(trace(folder), rows, handed, phases)


def apart(a: Whole, b: Whole) -> list[str]:
    """Names of what differs: [] is the law."""
    others = [name for name in Whole._fields[1:] if getattr(a, name) != getattr(b, name)]
    return differences(a.training, b.training) + others


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "preparation.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that never stopped."""
    folder = tmp_path_factory.mktemp("phases") / "run"
    start(tiny(), folder)
    return folder


@pytest.fixture(scope="session")
def unstopped(once: Path) -> Whole:
    return whole(once)


# resume ---------------------------------------------------------------------------------------------------------------


METHODS = {
    "reserved": (Federation, "reserve", 0),
    "computed": (Federation, "receive", 0),
    "written": (
        PlayedPhase,
        "_save",
        1,
    ),  # counts the rounds that are done; the row of metrics is, the checkpoint is not
    "kept": (PlayedPhase, "_save", 1),
    "stored": (Federation, "store", 0),
    "published": (Federation, "publish", 0),
}


@contextmanager
def killed_in(phase: str, point: str, t: int) -> Iterator[None]:
    """Die as soon as `point` of round t of a phase has passed; "" is the training."""
    owner, name, shift = METHODS[point]
    real = getattr(owner, name)

    def dying(self: Any, now: int, *rest: Any) -> Any:
        here = self.setup.phase if isinstance(self, PlayedPhase) else self.run.partition(".")[2]
        dies = here == phase and now == t + shift
        if dies and point == "written":
            self.metrics.sync()
            raise Killed
        result = real(self, now, *rest)
        if dies:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


@contextmanager
def killed_at_the_handover(written: bool) -> Iterator[None]:
    real = preparation._hand

    def dying(*given: Any) -> None:
        if written:
            real(*given)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_hand", dying)
        with pytest.raises(Killed):
            yield


PLACES = {
    "in the train phase": lambda: killed_in("train", "computed", 0),
    "in an ask round": lambda: killed_in("ask", "computed", 1),
    "between phases": lambda: killed_in("train", "published", 0),
    "before the handover": lambda: killed_at_the_handover(written=False),
    "right after the handover": lambda: killed_at_the_handover(written=True),
    "in training": lambda: killed_in("", "computed", 1),
}


@pytest.mark.slow  # the next test goes through all of them in one run
@pytest.mark.parametrize("place", PLACES)
def test_killed_and_resumed_it_is_the_run_that_never_stopped(place: str, unstopped: Whole, tmp_path: Path) -> None:
    with PLACES[place]():
        start(tiny(), tmp_path / "run")
    resume(tmp_path / "run")
    assert apart(unstopped, whole(tmp_path / "run")) == []


def test_killed_everywhere_in_turn_it_is_the_run_that_never_stopped(unstopped: Whole, tmp_path: Path) -> None:
    """Every kind of moment of every phase, one after the other, each continuation killed again."""
    out = tmp_path / "run"
    with killed_in("train", "reserved", 0):
        start(tiny(), out)
    for phase, point, t in [
        ("train", "computed", 0),
        ("train", "written", 0),
        ("train", "kept", 0),
        ("train", "published", 0),
        ("ask", "reserved", 0),
        ("ask", "kept", 0),
        ("ask", "written", 1),
        ("ask", "stored", 1),
    ]:
        with killed_in(phase, point, t):
            resume(out)
        rows = rows_of(out)
        assert len({(row["phase"], row["round"]) for row in rows}) == len(rows)  # none twice
    for written in (False, True):
        with killed_at_the_handover(written):
            resume(out)
    for point, t in (("reserved", 0), ("published", 0), ("computed", 1), ("stored", 1)):
        with killed_in("", point, t):
            resume(out)
    resume(out)
    assert apart(unstopped, whole(out)) == []
    assert verify(out) == []
    resume(out)  # a finished run resumes to itself
    assert apart(unstopped, whole(out)) == []


def test_a_device_is_asked_for_features_through_the_model_that_it_trained(once: Path) -> None:
    """What clients keep goes from phase to phase: every prototype again, from the checkpoint of the phase before."""
    train, ask = simulated(config.load(once / "experiment.toml")).preparation
    before, after = (
        checkpoint.load(once / "preparation" / mine.setup.phase / "checkpoints", mine.setup.state)
        for mine in (train, ask)
    )
    assert before is not None
    assert after is not None
    server, states = after.trees["server"], train.states(None, before)
    shards, found = ask.site("run").shards, 0
    for slot in torch.nonzero(server.state == 1).flatten().tolist():
        label = int(server.slots[slot])
        k = int(server.order[server.place[slot], label])
        x, y = shards[k]
        order = keys.permutation(keys.fold(keys.root(0), "split"), len(y))
        held = order[round(0.7 * len(y)) :]
        mine = x[held][y[held] == label]
        assert len(mine) == int(server.counts[slot]) >= 2
        z = ask.setup.task.features(states[k].model, mine).mean(0)
        assert torch.allclose(server.prototypes[slot], z, atol=1e-5)
        model = {name: leaf[server.place[slot], label] for name, leaf in server.models.items()}
        assert all(torch.allclose(model[name], states[k].model[name], atol=1e-6) for name in model)  # as it was sent
        found += 1
    assert found > CLASSES // 2


@pytest.mark.slow
def test_the_law_catches_a_preparation_that_forgets_what_clients_keep(
    unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in("ask", "reserved", 0):
        start(tiny(), tmp_path / "run")
    monkeypatch.setattr(Simulation, "states", lambda self, place, loaded=None: _fresh(self))
    resume(tmp_path / "run")
    assert "handed" in apart(unstopped, whole(tmp_path / "run"))


def _fresh(parts: Simulation) -> Any:
    from sordino.engine.client_states import States

    return States(parts.setup.algorithm.init_client(parts.setup.task), None)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_kill_9(executor: str, unstopped: Whole, tmp_path: Path) -> None:
    """Real processes and a real signal, at moments of every phase that nobody chose."""
    file, out = tmp_path / "e.toml", tmp_path / "run"
    file.write_text(tiny(engine={"executor": executor, "workers": 2}).toml())
    for number in range(5):
        begun = (out / "environment.json").is_file()
        words = ["resume", str(out)] if begun else ["run", str(file), "--out", str(out)]
        process = warm.Process([sys.executable, "-m", "sordino", *words, "-q"])
        deadline = time.monotonic() + 60
        while _written(out) < number + 1 and time.monotonic() < deadline and os.path.exists(f"/proc/{process.pid}"):
            time.sleep(0.002)
        time.sleep(0.02 * number)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    resume(out)
    assert apart(unstopped, whole(out)) == []


def _written(out: Path) -> int:
    return sum(
        len(f.read_text().splitlines()) for name in ("preparation", "metrics") if (f := out / f"{name}.jsonl").exists()
    )


@pytest.mark.parametrize(
    ("phase", "times", "played"),
    [
        pytest.param("train", 1, ["train"], marks=pytest.mark.slow),
        ("ask", 1, ["train", "ask"]),
        pytest.param("ask", 2, ["train"], marks=pytest.mark.slow),
    ],
)
def test_after_ctrl_c_the_preparation_goes_on_where_it_stopped(
    phase: str, times: int, played: list[str], unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed once it ends after the round, pressed twice at once."""
    out, real = tmp_path / "run", Federation.reserve

    def pressed(self: Federation, t: int, *rest: Any) -> Any:
        granted = real(self, t, *rest)
        for _ in range(times if self.run.endswith(phase) else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return granted

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "reserve", pressed)
        ended = start(tiny(), out)
    assert ended.interrupted
    assert ended.metrics == []
    assert [(row["phase"], row["round"]) for row in rows_of(out)] == [(name, 1) for name in played]
    assert not (out / "model.safetensors").exists()
    assert verify(out) == []  # a receipt of what was spent so far
    again = resume(out)
    assert not again.interrupted
    assert apart(unstopped, whole(out)) == []


# executors ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_clients_in_other_processes_say_the_same_bytes(
    unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "subprocess", warm.stand_in())
    out, apart_ = tmp_path / "run", {"executor": "processes", "workers": 2}
    with killed_in("ask", "stored", 0):
        start(tiny(engine=apart_), out)
    resume(out)
    assert apart(unstopped, whole(out)) == []
    assert len(list(out.glob("preparation/*/clients-*"))) == 4  # two workers in each of two phases


def test_ranks_do_not_prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    handing = {"name": "vhl", "per_class": 1, "width": 4}
    for name, algorithm in {"preparation": TINY["algorithm"], "handing out": handing}.items():
        with pytest.raises(SordinoError) as refusal:
            start(config.validate(TINY | {"algorithm": algorithm, "engine": {"executor": "ranks"}}), tmp_path / name)
        assert refusal.value.code == "ranks-cannot-prepare"


# books ----------------------------------------------------------------------------------------------------------------


def test_every_phase_is_in_the_books_under_its_own_name(once: Path) -> None:
    setup, federation = opened(once)
    with federation.ledger as ledger:
        entries = list(ledger.entries())
        mine = list(federation.entries())
    run, rows = federation.run, rows_of(once)
    asked = sum(row["phase"] == "ask" for row in rows)
    assert asked > 1  # somebody declined, or two classes wanted the same device
    wanted = [f"{run}.train/0", *(f"{run}.ask/{t}" for t in range(asked)), *(f"{run}/{t}" for t in range(ROUNDS))]
    assert [entry.op for entry in entries] == wanted
    assert mine == entries  # the receipt speaks of all of them
    assert {entry.state for entry in entries} == {State.PUBLISHED}
    assert len({entry.digest for entry in entries}) == len(entries)
    who = [sorted(k for group in parsed(entry.note).releases for k in group["clients"]) for entry in entries]
    assert who[0] == list(range(CLIENTS))
    assert [len(each) for each in who[1 : 1 + asked]] == [row["active"] for row in rows if row["phase"] == "ask"]
    receipt = json.loads((once / "privacy.json").read_text())
    assert receipt["rounds"] == len(entries)
    assert {row["epsilon"] for row in receipt["guarantees"]} == {"inf"}
    assert verify(once) == []
    assert setup.plan is not None


def test_a_receipt_without_the_preparation_is_caught(once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Setup.federation

    def forgetful(self: Setup, *given: Any) -> Federation:
        made = real(self, *given)
        made.before = ()
        return made

    monkeypatch.setattr(Setup, "federation", forgetful)
    assert any(line.startswith("rounds") for line in verify(once))


def test_one_row_per_round(once: Path) -> None:
    rows = rows_of(once)
    asked = sum(row["phase"] == "ask" for row in rows)
    wanted = [("train", 1), *(("ask", t) for t in range(1, asked + 1)), ("handed", 0)]
    assert [(row["phase"], row["round"]) for row in rows] == wanted


def test_no_two_phases_draw_the_same() -> None:
    """Nothing that a round draws from, noise of the server, noise of a client, order of data, is drawn from in another
    phase.
    """
    parts = simulated(tiny())
    drawn = []
    for each in (*parts.preparation, parts):
        for t in range(3):
            key = each.setup.phase_key
            found = [for_round("counter", key, t), *(for_client("counter", key, t, k) for k in range(3))]
            drawn += [tuple(source.gaussian(torch.zeros(4), 1.0).tolist()) for source in found]
            drawn.append((keys.word(keys.fold(key, "round", t)),))
    assert len(set(drawn)) == len(drawn) == 3 * 3 * 5
    assert parts.setup.phase_key == parts.setup.key  # the training draws what it would draw without a preparation


def test_the_keys_of_the_phases_are_those_that_clients_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    real = Site.__call__

    def noting(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
        seen.append((self.header(t, 0).run.partition(".")[2], keys.word(keys.fold(self.key, "round", t))))
        return real(self, t, down, terms)

    monkeypatch.setattr(Site, "__call__", noting)
    start(tiny(rounds=1), tmp_path / "run")
    assert {phase for phase, _ in seen} == {"train", "ask", ""}
    assert len({key for _, key in seen}) == len(seen)


# what it costs --------------------------------------------------------------------------------------------------------


def test_device_flops_are_the_closed_form(once: Path) -> None:
    """Three times a forward pass for an example that is learned from, one for an example that is looked at."""
    parts, served = simulated(config.load(once / "experiment.toml")), {}
    _, federation = opened(once)
    with federation.ledger as ledger:
        for entry in ledger.entries():
            served[entry.op.partition(".")[2] or entry.op] = [
                k for group in parsed(entry.note).releases for k in group["clients"]
            ]
    forward = parts.setup.task.flops / 3
    # the small network: three convolutions of stride 2 on 8x8, then a linear layer; two operations for a product
    convolutions = [(16, 1 * 9, 16), (32, 16 * 9, 4), (64, 32 * 9, 1)]
    assert forward == sum(2 * out * read * pixels for out, read, pixels in convolutions) + 2 * 64 * CLASSES
    by_round = list(served.values())
    rows = rows_of(once)[:-1] + [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(by_round)
    epochs = {"train": 2}
    for row, who in zip(rows, by_round, strict=True):
        n = sum(parts.setup.public.sizes[k] for k in who)
        looks = {
            "train": epochs["train"] * n * (3 * 0.7 + 0.3),  # learns from 70 %, looks at the others after every epoch
            "ask": n * 0.3,  # what was held back, for a prototype
            None: 3 * 2 * n + n,  # both sets once, and drawn images for their prototypes
        }[row.get("phase")]
        assert row["device_flops"] == pytest.approx(forward * looks, rel=1e-12)


class Counted(NamedTuple):
    """Numbers in what went over the wire, by direction, and messages with their envelopes."""

    down: int
    up: int


def test_bytes_are_the_sizes_of_the_messages(once: Path) -> None:
    """Every message of the run again, encoded; none of the byte meter's own sums is used."""
    setup, federation = opened(once)
    run, digest = federation.run, setup.experiment.digest()
    with federation.ledger as ledger:
        who = {e.op: [k for group in parsed(e.note).releases for k in group["clients"]] for e in ledger.entries()}

    def message(phase: str, t: int, sender: int, tree_: Any) -> int:
        name = f"{run}.{phase}" if phase else run
        return len(wire.encode(wire.Header(name, digest, t, sender, 0, "down" if sender < 0 else "up"), tree_))

    model, width = setup.task.init(0), setup.task.width
    one = torch.zeros(1, dtype=torch.int64)
    prototype = (one, torch.zeros(width), torch.zeros(1))
    state = setup.algorithm.init(setup.task, 0)
    told = {"train": prepare.Start(model, one[0]), "ask": prepare.Wish(one), "": state}
    sent = {
        "train": prepare.Up(model, one[0]),
        "ask": prepare.Prototype(*prototype),
        "": TrainingUp(model, torch.zeros(CLASSES, width), torch.zeros(CLASSES)),
    }
    rows = rows_of(once)
    measured = rows[:-1] + [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    for row, (op, clients) in zip(measured, who.items(), strict=True):
        name, _, t = op.rpartition("/")
        phase = name.partition(".")[2]
        assert row["bytes_down"] == sum(message(phase, int(t), -1, told[phase]) for _ in clients)
        assert row["bytes_up"] == sum(message(phase, int(t), k, sent[phase]) for k in clients)
        assert row["payload"] == sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(sent[phase]))
    handed = safetensors.torch.load_file(once / "handed.safetensors")
    envelope = len(wire.encode(wire.Header("handed", digest, 0, -1, 0, "down"), handed))
    assert rows[-1]["bytes_down"] == CLIENTS * envelope


def test_the_totals_are_formula_18_and_what_it_leaves_out(once: Path) -> None:
    """Beyond the formula: the first broadcast, running statistics of the generator, counts and flags beside prototypes,
    requests and refusals, and envelopes.
    """
    parts = simulated(config.load(once / "experiment.toml"))
    rows, training = rows_of(once), [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    d_m, d_p = tree.size(parts.setup.task.init(0)), parts.setup.task.width
    d_g = nets.parameters(parts.setup.algorithm._shape)
    sizes = Sizes(CLIENTS, COHORT, ROUNDS, CLASSES, d_m, d_g, d_p)
    formula = 4 * (sizes.parameters + sizes.rounds * sizes.round)
    measured = sum(row["bytes_down"] + row["bytes_up"] for row in (*rows, *training))

    asked = [row for row in rows if row["phase"] == "ask"]
    answers = sum(row["active"] for row in asked)
    with opened(once)[1].ledger as ledger:
        messages = sum(2 * row["active"] for row in (*rows[:-1], *training)) + CLIENTS
        assert len(list(ledger.entries())) == len(rows) - 1 + len(training)
    handed = safetensors.torch.load_file(once / "handed.safetensors")
    known = handed.pop("classes")  # the classes that it draws
    statistics = sum(v.numel() for v in handed.values()) - d_g
    beyond = (
        4 * CLIENTS * d_m  # the model that devices start from alone
        + CLIENTS * (4 * statistics + 8 * len(known))
        + 4 * (answers - CLASSES) * d_p  # prototypes of nothing: a refusal is as long as an answer
        + 2 * CLIENTS * 8  # its own number, which a device that trains alone is told and says
        + answers * (8 + 8 + 4)  # which class is asked for, and is told, of how many images
        + ROUNDS * COHORT * (4 * CLASSES + CLASSES + 8)  # counts up; flags and the number of the round down
    )
    assert sum(row["payload"] for row in asked) == len(asked) * (8 + 4 * d_p + 4)
    envelopes = measured - formula - beyond
    assert envelopes == _envelopes(once)
    assert 200 * messages < envelopes < 1000 * messages


def _envelopes(folder: Path) -> int:
    """Of every message: its length less that of its numbers, found from an empty one of the same header and schema."""
    setup, federation = opened(folder)
    digest = setup.experiment.digest()
    total = 0

    def envelope(name: str, t: int, sender: int, fields: Any) -> int:
        header = wire.Header(name, digest, t, sender, 0, "down" if sender < 0 else "up")
        return wire.size(header, fields) - wire.payload_bytes(fields)

    with federation.ledger as ledger:
        for entry in ledger.entries():
            name, _, t = entry.op.rpartition("/")
            mine = next((p for p in setup.preparation if p.phase == name.partition(".")[2]), setup)
            algorithm = mine.algorithm
            down = algorithm.broadcast(mine.state("server"))
            for k in (k for group in parsed(entry.note).releases for k in group["clients"]):
                told = algorithm.told(down, k)
                if name.endswith("ask"):
                    told = type(told)(torch.zeros(1, dtype=torch.int64))
                total += envelope(name, int(t), -1, wire.schema(told))
                total += envelope(name, int(t), k, wire.schema(algorithm.zero(mine.task, down)))
    handed = safetensors.torch.load_file(folder / "handed.safetensors")
    return total + CLIENTS * envelope("handed", 0, -1, wire.schema(handed))


def test_the_phases_are_what_the_names_say() -> None:
    parts = simulated(tiny())
    assert [each.setup.phase for each in parts.preparation] == ["train", "ask"]
    assert [type(each.setup.algorithm) for each in parts.preparation] == [Train, Ask]
    assert isinstance(parts.setup.algorithm, SlaugFL)
    assert not parts.setup.prepares
    assert "slaug_fl" in ALGORITHMS


# one budget -----------------------------------------------------------------------------------------------------------

PRIVATE = {"privacy": {"epsilon": 8.0, "delta": 1e-4}}


@pytest.mark.parametrize(
    "variant", [*(pytest.param(v, marks=pytest.mark.slow) for v in ("rigorous_a", "rigorous_b")), "dp_proto_only"]
)
@pytest.mark.slow
def test_a_plan_of_phases_is_what_the_receipt_says(variant: str, tmp_path: Path) -> None:
    experiment = tiny(
        algorithm={**TINY["algorithm"], "variant": variant}, cohort={"name": "round_robin", "size": CLIENTS}, **PRIVATE
    )
    ended = start(experiment, tmp_path / "run")
    said = {(g.unit, g.adversary): g.epsilon for g in ended.receipt.guarantees}
    planned = {(g["unit"], g["adversary"]): g["epsilon"] for g in Forecast(simulated(experiment)).guarantees}
    assert said.keys() == planned.keys()
    for subject, epsilon in said.items():
        if epsilon == "inf":
            assert planned[subject] == "inf"
        else:  # not everybody is asked for a prototype twice
            assert epsilon <= planned[subject] * (1 + 1e-9) <= 8.0 * (1 + 1e-6)
            assert variant == "rigorous_a" or planned[subject] == pytest.approx(epsilon, rel=1e-9)
    assert said["example", "server"] == "inf" if variant == "dp_proto_only" else said["example", "server"] < 8
    assert verify(tmp_path / "run") == []


def test_a_phase_spends_its_share_and_no_more(tmp_path: Path) -> None:
    """On a ledger for several runs, the charges of both phases are under one cap, in one currency; with another share
    the noises trade places.
    """
    noises = []
    for share in (0.2, 0.8):
        table = {**TINY["algorithm"], "variant": "rigorous_b", "share": share}
        privacy = {**PRIVATE["privacy"], "ledger": str(tmp_path / "shared.sqlite")}
        experiment = tiny(algorithm=table, cohort={"name": "round_robin", "size": CLIENTS}, privacy=privacy)
        parts = simulated(experiment)
        before, after = parts.preparation[0].setup.plan, parts.setup.plan
        first, later = before.price(0, 0, before.currency.zero()), after.price(0, 0, after.currency.zero())
        assert first is not None
        assert later is not None
        assert before.currency == after.currency
        assert before.cap == after.cap
        assert before.cap is not None
        assert first.charge[0] == pytest.approx(share * before.cap[0], rel=1e-6)
        whole = first.charge[0] + sum(
            after.price(0, t, after.currency.zero()).charge[0] for t in range(experiment.rounds)
        )  # type: ignore[union-attr]
        assert whole <= before.cap[0]
        noises.append((first.multiplier, later.multiplier))
    assert noises[0][0] > noises[1][0]
    assert noises[0][1] < noises[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", [pytest.param("rigorous_a", marks=pytest.mark.slow), "rigorous_b"])
def test_phases_on_a_ledger_of_their_own_fill_the_budget_together(variant: str) -> None:
    """Composed by privacy loss, without the slack of a single Renyi order; a phase has its own count, and leaves
    nothing over for another.
    """
    table = {**TINY["algorithm"], "variant": variant}
    parts = simulated(tiny(algorithm=table, rounds=20, **PRIVATE))
    plans = [mine.setup.plan for mine in (*parts.preparation, parts)]
    assert all(isinstance(plan.pricing, CountedPhase) for plan in plans)
    assert len({plan.currency for plan in plans}) == 1
    assert len({plan.cap for plan in plans}) == 1
    most = [max(p.exposures) * max(p.reads) for p in plans]
    rates = [p.offer.rate for p in plans]  # type: ignore[union-attr]

    def spent(times: list[int], louder: float = 1.0) -> float:
        noises = [p.pricing.planned * louder for p in plans]  # type: ignore[union-attr]
        events = (Repeat(Poisson(q, Gaussian(z)), n) for q, z, n in zip(rates, noises, times, strict=True))
        return epsilon_by("pld", Together(tuple(events)), 1e-4, "add_remove")

    assert 0.99 * 8.0 < spent(most) <= 8.0
    assert spent([2 * most[0], *most[1:]]) > 8.0  # what the count of releases is there to stop
    assert spent(most, louder=0.97) > 8.0
    for place, plan in enumerate(plans):
        assert plan.cap is not None
        charge = plan.price(0, 0, plan.currency.zero()).charge  # type: ignore[union-attr]
        assert [part > 0 for part in charge] == [i == place for i in range(len(plans))]
        others = tuple(0 if i == place else limit for i, limit in enumerate(plan.cap))
        assert plan.currency.fits(others, plan.cap)
        one_more = tuple(limit + UNIT if i == place else 0 for i, limit in enumerate(plan.cap))
        assert not plan.currency.fits(one_more, plan.cap)  # however little the others have spent


@pytest.mark.slow
def test_without_counting_phases_would_need_more_noise() -> None:
    """Beside the Renyi filter of a ledger for several runs."""
    phases = ((1.0, 1, 0.2), (0.1, 200, 0.8))
    found = counted_phases(phases, 4.0, 1e-5)
    order = best_order(0.1, 4.0, 1e-5, 200).order
    filtered = [Renyi(q, order).multiplier((part * budget_at(order, 4.0, 1e-5) / n,)) for q, n, part in phases]
    assert all(0.8 * z < mine.planned < 0.97 * z for mine, z in zip(found, filtered, strict=True))


@pytest.mark.slow
def test_a_promise_about_clients_after_a_preparation_is_priced_by_itself() -> None:
    """One phase asks for the whole budget: as if it were alone, though its cohort is hidden and nobody reads single
    examples.
    """
    table = {
        "cohort": {"name": "poisson", "rate": 0.5},
        "uplink": {
            "client": [{"name": "clip", "radius": 1.0}],
            "server": [{"name": "noise", "neighbours": "add_remove"}],
        },
        **PRIVATE,
    }
    after = simulated(config.validate(TINY | table)).setup.plan
    alone = simulated(config.validate(TINY | table | {"algorithm": {"name": "fedavg"}})).setup.plan
    assert after.price(0, 0, after.currency.zero()) == alone.price(0, 0, alone.currency.zero())
