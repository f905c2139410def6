"""What runs say of their data: how inputs are scaled, what labels decided, what a receipt must tell."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sordino import config
from sordino.data import folders, images, tabular
from sordino.data.dataset import CLASSES, COLOURS, DRAWN, PLACES, STRATIFIED
from sordino.data.sources import RowSource, SourceRows
from sordino.errors import ConfigError
from sordino.runs import declared_data, public_inputs
from sordino.runs.population import Population
from sordino.sites.own_data import OwnData
from tests.data.tables import DECLARED, Row, refused, saved, table
from tests.helpers.command_line import Said
from tests.laws.test_secret_rows import PRIVATE, animals, announced, of_animals

ROOT = Path(__file__).parents[2]


# what a run makes of it -----------------------------------------------------------------------------------------------
def experiment(tmp_path: Path, noise: str = "counter", partition: Row | None = None, **data: Any) -> Population:
    table_ = {"source": "tabular", "path": str(tmp_path / "visits.csv"), "label": "outcome", "group": "clinic", **data}
    made = {"data": table_, "partition": partition or {"scheme": "natural"}, "privacy": {"noise": noise}}
    return Population(config.validate(made))


def test_what_a_receipt_must_say_of_a_table(tmp_path: Path) -> None:
    saved(tmp_path, table())
    text = DECLARED.replace('note = { kind = "ignored" }', 'note = { kind = "key" }')
    (tmp_path / "s.toml").write_text(text)
    (tmp_path / "d.toml").write_text("draft = true\n" + text)
    good, drafted = str(tmp_path / "s.toml"), str(tmp_path / "d.toml")
    learned = (public_inputs.COLUMNS, CLASSES)
    cases: list[tuple[Row, tuple[str, ...], bool]] = [
        ({}, learned, True),
        ({"schema": "learned"}, learned, True),
        ({"schema": "learned", "noise": "system"}, learned, True),
        ({"schema": good}, (), False),
        ({"schema": good, "noise": "system"}, (), False),
        ({"schema": good, "standardise": "channel"}, (), True),
        ({"schema": drafted}, (public_inputs.DRAFTED,), False),
    ]
    for given_, reasons, scaled in cases:
        found = experiment(tmp_path, **given_)
        measured = (public_inputs.SCALING,) if scaled else ()
        assert (found.disclosures.learned_from_rows, found.disclosures.scaled_by_rows) == (
            (*measured, *reasons),
            scaled,
        ), given_
        real = given_.get("noise") == "system"
        told = found.public.void if real else found.public.assumed
        assert {*found.disclosures.learned_from_rows} <= {*told}
        assert (found.public.void == ()) == (not real or found.disclosures.learned_from_rows == ())
        assert found.disclosures.drawn_from_labels == (PLACES,)
        assert experiment(tmp_path, **given_, key="note").disclosures.drawn_from_labels == ()
        x = found.dataset.train.x[:, 0].astype(np.float64)
        by_rows = found.dataset.mean[0] == pytest.approx(x.mean()) and found.dataset.std[0] == pytest.approx(x.std())
        assert by_rows == scaled
    dealt = experiment(tmp_path, partition={"scheme": "dirichlet", "clients": 2, "alpha": 5.0, "min_size": 1}, train=10)
    assert dealt.disclosures.drawn_from_labels == (
        PLACES,
        public_inputs.PARTITION,
        public_inputs.RESERVED,
    )
    evenly = experiment(tmp_path, partition={"scheme": "iid", "clients": 2})
    assert evenly.disclosures.drawn_from_labels == (PLACES, public_inputs.DEALT)


def test_scaling_without_ranges_or_pixels_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, table())
    for how in ("fixed", "pixel"):
        error = refused(lambda h=how: experiment(tmp_path, standardise=h).dataset)  # type: ignore[misc]
        assert isinstance(error, ConfigError)
        assert error.code == "no-such-scaling"


def test_the_fix_of_a_missing_schema_is_a_command_that_runs(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my visits.csv").write_bytes(saved(tmp_path, table()).read_bytes())
    error = refused(lambda: experiment(tmp_path, "system", path="my visits.csv").dataset)
    assert error.code == "table-without-schema"
    command = error.fix.split("`")[1]
    assert command == "sordino data schema 'my visits.csv' --label outcome --group clinic --out 'my visits.schema.toml'"
    assert (
        cli(
            "data",
            "schema",
            "my visits.csv",
            "--label",
            "outcome",
            "--group",
            "clinic",
            "--out",
            "my visits.schema.toml",
        ).code
        == 0
    )
    drafted = experiment(tmp_path, "system", path="my visits.csv", schema="my visits.schema.toml")
    assert refused(lambda: drafted.dataset).code == "schema-is-a-draft"
    text = Path("my visits.schema.toml").read_text(encoding="utf-8")
    Path("my visits.schema.toml").write_text(text.replace("draft = true\n", "", 2), encoding="utf-8")
    confirmed = experiment(tmp_path, "system", path="my visits.csv", schema="my visits.schema.toml")
    assert (confirmed.dataset.classes, confirmed.disclosures.learned_from_rows) == (2, ())


def test_a_phase_and_a_worker_see_the_declared_table(tmp_path: Path) -> None:
    saved(tmp_path, table())
    (tmp_path / "s.toml").write_text(DECLARED)
    found = experiment(tmp_path, schema=str(tmp_path / "s.toml"))
    again = Population(config.validate(tomllib.loads(found.experiment.toml())))  # what a worker process reads
    assert again.dataset.fingerprint() == found.dataset.fingerprint()
    assert again.experiment.digest() == found.experiment.digest()


# images ---------------------------------------------------------------------------------------------------------------
def test_the_default_run_scales_by_public_numbers_and_says_what_labels_decided() -> None:
    default = Population(config.load(None))
    assert (default.dataset.mean, default.dataset.std) == ((0.5,), (0.5,))
    assert not default.disclosures.scaled_by_rows
    assert default.disclosures.learned_from_rows == ()
    assert default.disclosures.drawn_from_labels == (STRATIFIED, public_inputs.PARTITION)
    measured = Population(
        config.load(None, ["data.standardise=channel", "partition={scheme='iid', clients=3}", "data.probe=2"])
    )
    assert measured.disclosures.scaled_by_rows
    assert measured.dataset.mean[0] == pytest.approx(measured.dataset.train.x.mean() / 255, abs=0.01)
    assert measured.disclosures.drawn_from_labels == (STRATIFIED, public_inputs.RESERVED)
    invented = Population(config.load(None, ["data=synthetic", "partition={scheme='natural'}", "data.clients=2"]))
    assert (invented.disclosures.scaled_by_rows, invented.disclosures.drawn_from_labels) == (False, ())


def test_image_folders_and_files_say_what_was_read_off_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    for split, name, n in itertools.product(("train", "test"), ("a", "b"), range(4)):
        (tmp_path / "with" / split / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 10 * n).save(tmp_path / "with" / split / name / f"{name}{n}.png")
    both = folders.load(tmp_path / "with", side=4, at_least=1)
    assert (both.learned, both.taken_as_public) == ((CLASSES, COLOURS), ())
    drawn = folders.load(tmp_path / "with" / "train", side=4, at_least=1, test_fraction=0.5, fraction=0.5)
    assert (drawn.learned, drawn.taken_as_public) == ((CLASSES, COLOURS), (DRAWN, STRATIFIED))
    said = {"classes": ["b", "c", "a"], "colours": True}
    declared = folders.load(tmp_path / "with" / "train", side=4, at_least=1, test_fraction=0.5, **said)
    assert (declared.learned, declared.taken_as_public, declared.names) == ((), (), ("b", "c", "a"))
    assert declared.shape == (4, 4, 3)
    picture = (tmp_path / "with" / "train" / "a" / "a0.png").read_bytes()
    for split in ("train", "test"):
        (tmp_path / "files").mkdir(exist_ok=True)
        pq.write_table(
            pa.table({"image": [picture] * 6, "label": [0, 1, 2] * 2}), tmp_path / "files" / f"{split}.parquet"
        )
    assert images.load(tmp_path / "files").learned == (CLASSES, COLOURS)
    assert images.load(tmp_path / "files", classes=["a", "b", "c", "d"], colours=False).learned == ()


def test_experiments_whose_rows_are_kept_say_how_they_scale() -> None:
    """The default has changed once: rows of a table that rest on it would silently become another experiment's."""
    for path in sorted((ROOT / "experiments").rglob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8")).get("data")
        if data and data["source"] not in declared_data.INVENTED:
            assert data.get("standardise") in ("fixed", "channel", "pixel"), path


# which rows are held back ---------------------------------------------------------------------------------------------
IID: Row = {"scheme": "iid", "clients": 2}


class Drawn(RowSource):
    """Rows that are what the seed of their source draws."""

    classes = 2

    def rows(self, seed: int) -> SourceRows:
        coins = np.random.default_rng(seed).random((200, 1), np.float64)
        return SourceRows(coins, np.arange(200) % 2)


def test_the_seed_of_a_run_holds_rows_back_and_no_number_in_a_row_knows_of_it(tmp_path: Path) -> None:
    """Rows made with a small seed, as many examples are, looked exactly like the draw that held them back. The control
    is that draw itself.
    """
    coins = np.random.default_rng(0).random(400)
    path = saved(tmp_path, [{"coin": f"{coin:.6f}", "outcome": i % 2} for i, coin in enumerate(coins)])
    made = {"data": {"source": "tabular", "path": str(path), "label": "outcome"}, "partition": IID}
    asked = {seed: config.validate({**made, "seed": seed}) for seed in (0, 1)}
    held = {seed: Population(asked[seed]).dataset.test.x[:, 0] for seed in asked}
    assert np.array_equal(held[0], Population(asked[0]).dataset.test.x[:, 0])
    assert {*held[0].tolist()} != {*held[1].tolist()}
    same_draw = tabular.load(path, "outcome", seed=0).test.x[:, 0]
    assert same_draw.max() < 0.2
    assert all(tested.max() > 0.5 for tested in held.values())
    at_a_site = OwnData(asked[1], path, b"key").tested.x[:, 0]
    assert np.array_equal(at_a_site.numpy(), held[1])
    own = Population(config.validate({"data": {"source": f"{__name__}:Drawn"}, "partition": IID})).dataset.test.x
    assert own.max() > 0.5


SERVERS: dict[str, Any] = {
    "candidates": {"source": "folder", "path": "public"},
    "algorithm": {"name": "slaug_fl", "variant": "rigorous_b", "extractor": "public.safetensors"},
}


def test_it_is_said_that_what_a_server_has_of_its_own_and_what_is_declared_are_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that all clients see is made from the server's images; a table of scores, which may be shown, tells of
    its examples. As it was, a receipt between sites said nothing of either, nor of what was declared from rows."""
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    path, both = animals(tmp_path / "animals"), {"classes": ["cat", "dog"], "colours": True}
    alone, made = of_animals(path, **both), of_animals(path, **both, probe=1).model_copy(update=SERVERS)
    for given, servers in ((alone, ()), (made, public_inputs.brought(made))):
        for assumed in (announced(given, path).data.assumed, Population(given).public.assumed):
            assert [said for said in assumed if " are, or were made from" in said] == list(servers)
            assert assumed.count(public_inputs.DECLARED) == 1
    assert [any(word in said for said in servers) for word in ("extractor", "candidates", "ranks")] == [True] * 3
    digits = config.validate(PRIVATE | {"partition": {"scheme": "iid", "clients": 2}})
    assert public_inputs.DECLARED not in Population(digits).public.assumed  # no secret
