"""What is said of a run that prepared: whom it asked, what it kept and draws, what that cost. Checked against the data,
the messages and the formula.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save

import sordino
from sordino import keys
from sordino.engine import checkpoint
from sordino.metrics import RoundLine, measures
from sordino.metrics.measures import (
    PlainRound,
    Target,
    at_bytes,
    before,
    bytes_to,
    charged,
    curve,
    flops_until,
    in_front,
    messages,
    rounds_to,
    targets,
    traffic,
)
from sordino.receipts.folder import RunFolder
from sordino.report.run_facts import gather
from sordino.results.markup import FRAME, strip
from sordino.results.preparation_facts import Preparation
from sordino.results.preparation_facts import gather as prepared
from sordino.runs.simulation import Simulation, simulated
from sordino.synthesis.public_images.store import PROXY
from sordino.synthesis.slaug.messages import Sizes
from tests.helpers.command_line import Said
from tests.report.prepared import LEAST, run


@pytest.fixture(scope="module")
def found(folder: Path) -> Preparation:
    facts = prepared(folder)
    assert facts is not None
    return facts


def state(folder: Path, parts: Simulation, phase: str) -> Any:
    mine = next(mine for mine in parts.preparation if mine.setup.phase == phase)
    loaded = checkpoint.load(folder / "preparation" / phase / "checkpoints", mine.setup.state)
    assert loaded is not None
    return loaded.trees["server"]


def pixels(uri: str) -> Any:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


# whom it asked --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_who_declined_had_too_few_images_and_who_answered_had_enough(found: Preparation, parts: Simulation) -> None:
    labels, rows = np.asarray(parts.population.dataset.train.y), parts.population.shares[0]
    said = []
    for label, row in enumerate(found.classes):
        for asked in row.asked:
            mine = labels[np.asarray(rows[asked.device])]
            order = keys.permutation(keys.fold(keys.root(0), "split"), len(mine)).numpy()
            held = mine[order[round(0.7 * len(mine)) :]]
            assert asked.answered == bool((held == label).sum() >= LEAST)
            said.append(asked.answered)
        assert [asked.answered for asked in row.asked[:-1]] == [False] * (len(row.asked) - 1)
    assert True in said
    assert False in said  # or this test could not fail


@pytest.mark.slow
def test_devices_are_asked_best_first(found: Preparation, folder: Path, parts: Simulation) -> None:
    f1 = state(folder, parts, "train").f1
    for label, row in enumerate(found.classes):
        scores = [asked.f1 for asked in row.asked]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == pytest.approx(float(f1[:, label].max()))  # of all devices
        assert all(0 <= asked.recall <= 1 for asked in row.asked)
    assert found.rank == "f1"


@pytest.mark.slow
def test_valid_shares_count_what_the_source_put_in_wrong(found: Preparation, folder: Path, parts: Simulation) -> None:
    drawn, kept = parts.home.drawn, state(folder, parts, "ask").kept
    assert drawn is not None
    wrong = set(drawn.manifest["wrong"])
    for label, row in enumerate(found.classes):
        every = np.flatnonzero(drawn.y == label).tolist()
        assert (row.candidates, row.kept) == (len(every), 8)
        assert row.valid * len(every) == pytest.approx(len(set(every) - wrong))
        assert row.valid_kept * 8 == pytest.approx(len(set(kept[label].tolist()) - wrong))
    assert len({row.valid_kept for row in found.classes}) > 1


@pytest.mark.slow
def test_outside_a_simulation_nobody_looks_at_what_is_wrong(folder: Path, parts: Simulation) -> None:
    real = parts.setup.experiment.privacy.model_copy(update={"noise": "system"})
    protected = simulated(parts.setup.experiment.model_copy(update={"privacy": real}))
    facts = prepared(folder, protected.setup, protected.home)
    assert facts is not None
    assert facts.unknown == "only a simulation may look that up"
    assert all(row.valid is None and row.valid_kept is None for row in facts.classes)
    assert all(row.kept == 8 and row.asked for row in facts.classes)
    assert not any(framed(row.to_json()[kind]) for row in facts.gallery.rows for kind in ("kept", "rejected"))


# pictures -------------------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_a_strip_holds_every_pixel_and_frames_what_it_is_told(n: int, channels: int, side: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, side, side + 1, channels), dtype=np.uint8)
    frames = rng.integers(0, 2, n).astype(bool).tolist()
    sheet = pixels(strip(images, frames))
    gap = (sheet.shape[0] - side) // 2
    cells = np.split(sheet, n, axis=1)
    for cell_, image, framed_ in zip(cells, images, frames, strict=True):
        inner = cell_[gap:-gap, gap:-gap]
        assert (inner[..., :3] == image).all()  # one channel is the same in all three
        assert (inner[..., 3] == 255).all()
        assert (cell_[0] == (FRAME if framed_ else (0, 0, 0, 0))).all()


def framed(uri: str) -> bool:
    return bool((pixels(uri)[0] == FRAME).all(axis=-1).any())


@pytest.mark.slow
def test_the_pictures_are_the_candidates_and_what_the_generator_draws(
    found: Preparation, folder: Path, parts: Simulation
) -> None:
    drawn, kept, gallery = parts.home.drawn, state(folder, parts, "ask").kept, found.gallery
    assert drawn is not None
    assert [row.name for row in gallery.rows] == list(parts.population.dataset.class_names)
    side, wrong = gallery.side, set(drawn.manifest["wrong"])
    for label, row in enumerate(gallery.rows):
        sheets = {
            kind: np.split(pixels(row.to_json()[kind]), gallery.each, axis=1) for kind in ("kept", "rejected", "drawn")
        }
        ids = {"kept": set(kept[label].tolist())}
        ids["rejected"] = set(np.flatnonzero(drawn.y == label).tolist()) - ids["kept"]
        for kind, members in ids.items():
            for sheet in sheets[kind]:
                inner = sheet[1 : 1 + side, 1 : 1 + side, 0]
                same = {i for i in members if (drawn.x[i, ..., 0] == inner).all()}
                assert same
                assert framed_cell(sheet) == bool(same & wrong)
        assert len({sheet.tobytes() for sheet in sheets["drawn"]}) > 1
        assert not any(framed_cell(sheet) for sheet in sheets["drawn"])


def framed_cell(sheet: Any) -> bool:
    return bool((sheet[0] == FRAME).all())


def test_what_was_handed_out_is_what_is_drawn(found: Preparation, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(folder, other)
    tensors = load_file(folder / "public.safetensors")
    (other / "public.safetensors").write_bytes(
        save({k: 0 * v if v.is_floating_point() else v for k, v in tensors.items()})
    )
    again = prepared(other)
    assert again is not None
    for row, blank in zip(found.gallery.rows, again.gallery.rows, strict=True):
        assert row.kept == blank.kept
        assert row.drawn != blank.drawn
        assert len(np.unique(pixels(blank.drawn)[..., 0])) <= 2  # one grey, and nothing between the images


# what it cost ---------------------------------------------------------------------------------------------------------
counts = st.integers(1, 30)


@given(counts, counts, counts, counts, counts, counts, counts)
def test_the_messages_add_up_to_the_formula(m: int, k: int, t: int, c: int, d_m: int, d_g: int, d_p: int) -> None:
    sizes = Sizes(m, k, t, c, d_m, d_g, d_p)
    assert sum(sizes.messages.values()) == sizes.parameters


def test_every_byte_before_the_first_round_is_in_the_table(found: Preparation, folder: Path) -> None:
    rows, first = found.messages, [row for row in found.messages if row.phase != "training"]
    sent = sum(row.bytes for row in RunFolder(folder).prepared())
    assert sum(row.bytes for row in first) == sent == found.cost.bytes
    assert sum(row.parameters or 0 for row in rows) == found.cost.formula_parameters
    assert all(row.formula_bytes <= row.bytes for row in rows if row.formula_bytes is not None)
    uncounted = {(row.phase, row.way) for row in rows if row.parameters is None}
    assert uncounted == {("train", "down"), ("ask", "down")}  # what the formula does not know


def test_a_plain_message_is_what_was_sent_first(found: Preparation, folder: Path) -> None:
    train = RunFolder(folder).prepared()[0]
    each = train.bytes_down / train.active
    assert 0 <= each - found.cost.plain_round / 6 < 64  # headers name the phase too
    assert found.cost.rounds == found.cost.bytes / found.cost.plain_round
    model, tensors = (load_file(folder / f"{name}.safetensors") for name in ("model", "public"))
    trained = {name: v for name, v in tensors.items() if v.is_floating_point() and ".running_" not in name}
    d_m, d_g = (sum(value.numel() for value in held.values()) for held in (model, trained))
    sizes = Sizes(devices=6, chosen=3, rounds=3, classes=10, model=d_m, generator=d_g, width=64)
    assert found.cost.formula_rounds == sizes.upfront
    assert found.cost.formula_parameters == sizes.parameters


ROWS = [
    RoundLine(phase="train", round=1, bytes_down=100, bytes_up=90, payload=5, device_flops=7.0),
    RoundLine(phase="public_tensors", round=0, bytes_down=1000, bytes_up=0, payload=0),
]


def test_round_zero_is_in_front_of_every_sum() -> None:
    rows = run(None, 0.4, 0.6)
    whole = [*in_front(ROWS), *rows]
    assert (before(whole), before(rows), in_front([])) == (1190, 0, [])
    assert bytes_to(0.5)(whole) == bytes_to(0.5)(rows) + 1190 == 1190 + 3 * 17
    assert rounds_to(0.5)(whole) == rounds_to(0.5)(rows) == 3
    assert traffic(whole) == 1190 + 3 * 17
    assert at_bytes(1190)(whole) is None  # all of it went into the preparation
    assert [(p.round, p.bytes) for p in curve([whole], "accuracy")] == [(2, 1190 + 34), (3, 1190 + 51)]
    assert flops_until([whole]) == {0: 7.0, 1: 9.0, 2: 11.0, 3: 13.0}
    silent = [ROWS[0].beside(device_flops=None), ROWS[1]]
    assert in_front(silent)[0].device_flops is None
    assert flops_until([[*in_front(silent), *rows]]) == {}  # unknown, not nothing


def test_a_target_with_the_preparation_and_one_that_is_not_reached() -> None:
    rows = run(0.35, 0.62, 0.4)
    assert targets(rows) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7][-measures.SHOWN - 1 :]
    assert targets(run(None)) == []
    said = {row.target: row for row in charged(ROWS, rows, PlainRound(5, 2), None).targets}
    assert said[0.3].to_json() == {
        "target": 0.3,
        "rounds": 1,
        "bytes": 17,
        "bytes_with": 1207,
        "charged": 1207 / 20,
        "formula_charged": None,
    }
    assert said[0.6].rounds == 2
    assert said[0.7] == Target(target=0.7, rounds=None)
    beyond = {row.way: row.bytes for row in messages(ROWS, rows, PlainRound(5, 2), None, {}) if row.phase == "training"}
    assert beyond == {"down": 3 * (10 - 5), "up": 3 * (7 - 5)}


# where it is said -----------------------------------------------------------------------------------------------------
def test_a_folder_is_read_without_ledger_or_lock_and_left_alone(
    found: Preparation, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "run"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("ledger*", ".lock", "privacy.json", "checkpoints.*"))
    files = sorted(other.rglob("*"))
    assert prepared(other) == found
    assert sorted(other.rglob("*")) == files


def test_a_run_that_stopped_on_the_way_is_shown_as_far_as_it_came(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(
        folder, other, ignore=shutil.ignore_patterns("ask", "public.safetensors", "metrics.jsonl", "model*")
    )
    shutil.rmtree(other / "checkpoints")  # nor was any round of the training kept
    (other / "preparation.jsonl").write_text(json.dumps(RunFolder(folder).prepared()[0].to_json()) + "\n")
    facts = prepared(other)
    assert facts is not None
    assert all(row.asked == () and row.kept == 0 for row in facts.classes)
    assert facts.gallery is None
    assert facts.cost.targets == ()
    assert {row.phase for row in facts.messages} == {"train", "training"}


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read_takes_nothing_else_away(
    folder: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    other = tmp_path / "run"
    shutil.copytree(folder, other)
    for path in (other / "preparation" / "ask" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    facts, whole = gather(other).prepared, gather(folder).prepared
    assert "is damaged" in facts.unread
    assert (facts.cost, facts.messages) == (whole.cost, whole.messages)
    assert all(row.asked == () and row.kept == 0 for row in facts.classes)
    assert "cannot say whom it asked" in cli("show", other).out


def test_nothing_is_said_of_a_run_that_did_not_prepare(tmp_path: Path, cli: Callable[..., Said]) -> None:
    result = sordino.run(None, "rounds=1", "partition.clients=4", "algorithm=fedavg", out=tmp_path / "run")
    assert prepared(result.folder) is None
    assert result.preparation == []
    assert result.candidates == ""
    facts = gather(result.folder)
    assert (facts.before, facts.prepared) == (None, None)
    assert "Candidates" not in facts.lead
    assert "Before round 1" not in cli("show", result.folder).out
    assert json.loads(cli("show", result.folder, "--json").out)["preparation"] == []


@pytest.mark.slow
def test_the_label_stands_beside_results(folder: Path, cli: Callable[..., Said]) -> None:
    result = sordino.open_run(folder)
    facts = gather(folder)
    shown = cli("show", folder)
    for said in (shown.out, repr(result), result._repr_html_(), facts.lead, facts.prepared.label):
        assert PROXY in said
    assert "Before round 1" in shown.out
    assert "not reached" in shown.out or max(row.accuracy or 0 for row in result.metrics) >= 0.9
    assert result.preparation == RunFolder(folder).prepared()
    assert json.loads(cli("show", folder, "--json").out)["preparation"] == [row.to_json() for row in result.preparation]
    assert PROXY in cli("data", "list", folder / "experiment.toml", "--json").out


def test_show_does_without_data_that_are_gone(folder: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    other = tmp_path / "run"
    shutil.copytree(folder, other)
    toml = other / "experiment.toml"
    toml.write_text(re.sub(r'source = "digits"', f'source = "images"\npath = "{tmp_path}/none"', toml.read_text()))
    said = cli("show", other)
    assert said.code == 0
    assert "cannot be told" in said.out
    assert "bytes down" in said.out
