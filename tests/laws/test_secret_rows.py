"""What secret rows decide before any noise: the adversary compares what is left, sent and announced of neighbours.

One row more or less, one image of another class or with colours, one value far from the others. Each cure has its twin,
the program as it was, in which the adversary finds the row.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sordino import config
from sordino.config import Experiment
from sordino.data import folders
from sordino.data.schema import TableSchema
from sordino.errors import ConfigError, DataError, UnsoundGuarantee
from sordino.planning import AboutData, PublicNumbers
from sordino.privacy.readers import SIZES
from sordino.runs import public_inputs
from sordino.runs.population import Population
from sordino.sites import agreement_file as agreed
from sordino.sites import own_data
from sordino.sites.agreement_file import Announced, SitesAgreement
from sordino.sites.own_data import OwnData
from sordino.sites.serve import settled
from tests.laws.adversary import Seen, play, tells_apart

Change = dict[str, Any]
SCHEMA = """
[columns]
age = { kind = "number", range = [0, 120] }
pressure = { kind = "number", range = [50, 250] }
clinic = { kind = "group" }
outcome = { kind = "label", classes = ["0", "1"] }
"""
PRIVATE: Change = {
    "rounds": 2,
    "algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5},
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "noise": "system"},
    "engine": {"executor": "loop"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))


def nothing_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_inputs.Disclosures, "void", ())


# tables ---------------------------------------------------------------------------------------------------------------
def visits(folder: Path, rows: int = 60, age: int | None = None) -> Path:
    """A table of two clinics; `age`: that of the first row is another one."""
    rng = np.random.default_rng(7)
    lines = ["age,pressure,clinic,outcome"]
    for i in range(rows):
        held = [int(rng.integers(20, 90)), int(rng.integers(80, 200)), "north" if i % 3 else "south", i % 2]
        lines.append(",".join(map(str, [age, *held[1:]] if age is not None and i == 0 else held)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    return path


def of_table(folder: Path, **data: Any) -> Experiment:
    source = {"source": "tabular", "path": str(folder / "visits.csv"), "label": "outcome", "group": "clinic"}
    declared = {"schema": str(folder / "schema.toml")}
    return config.validate(PRIVATE | {"data": source | declared | data, "partition": {"scheme": "natural"}})


def strangers(one: Seen, other: Seen) -> set[int]:
    """Clients whose first upload differs between two runs: a row may show in that of its own client only."""
    pairs = zip(one.sent, other.sent, strict=True)
    return {k for (t, k, mine), (_, _, theirs) in pairs if t == "/0" and mine != theirs}


@pytest.mark.slow
def test_a_scale_that_rows_decide_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of one row moves the scale, and with it the upload of a client that does not hold it."""

    def seen(name: str, **data: Any) -> tuple[Seen, Seen]:
        made = of_table(tmp_path, **data)
        visits(tmp_path)
        one = play(made, tmp_path / f"{name}-one")
        visits(tmp_path, age=119)
        return one, play(made, tmp_path / f"{name}-other")

    one, other = seen("declared")
    assert tells_apart(one, other) == []
    assert len(strangers(one, other)) <= 1
    assert ("example", "server") in one.finite
    one, other = seen("measured", standardise="channel")
    assert len(strangers(one, other)) == 2
    assert one.finite == other.finite == set()
    nothing_is_void(monkeypatch)
    one, other = seen("twin", standardise="channel")
    assert len(strangers(one, other)) == 2
    assert ("example", "server") in one.finite  # a number was printed all the same


# who holds how much ---------------------------------------------------------------------------------------------------
def of_clients(folder: Path, visits: Sequence[str], **privacy: Any) -> PublicNumbers:
    """What is public of ten clients with four visits each, and of an eleventh with these; whole clients are protected."""
    lines = [f"{20 + i},v{i},p{i // 4},{i % 2}" for i in range(40)] + [f"50,{visit},pz,1" for visit in visits]
    (folder / "visits.csv").write_text("\n".join(["age,visit,who,outcome", *lines]) + "\n")
    schema = SCHEMA.replace('pressure = { kind = "number", range = [50, 250] }', 'visit = { kind = "key" }')
    (folder / "schema.toml").write_text(schema.replace("clinic", "who"))
    noise = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "replace"}]}
    made = of_table(folder, group="who", key="visit").model_dump() | {"algorithm": {"name": "fedavg"}, "uplink": noise}
    return Population(config.validate(made | {"privacy": made["privacy"] | {"delta": 1e-3} | privacy})).public


def test_a_receipt_says_that_sizes_are_public_or_who_holds_anything(tmp_path: Path) -> None:
    """Neighbours that differ in one client are told apart by the agreement: by how many rows it has; where sizes are
    secret, by whether its only visit is held back for tests. As it was, no receipt of whole clients said so."""
    one, two = (of_clients(tmp_path, visits) for visits in (["w1"], ["w1", "w2"]))
    assert (len(one.sizes), sum(one.sizes) + 1) == (len(two.sizes), sum(two.sizes))
    assert SIZES in one.assumed
    secret = {visit: of_clients(tmp_path, [visit], public_sizes=False) for visit in ("w1", "w7")}
    assert [len(public.sizes) for public in secret.values()] == [11, 10]
    assert all(public_inputs.HOLDERS in public.assumed and SIZES not in public.assumed for public in secret.values())
    pairs = (of_clients(tmp_path, ["w1", visit], public_sizes=False) for visit in ("w2", "w7"))
    assert len({(len(public.sizes), *public.sizes) for public in pairs}) == 1  # control: one visit more hides it


def visitors(folder: Path, more: int, how: str) -> Population:
    """Twenty clients of four visits each, of which the first may have `more`, in one table or in a file for each; how
    many visits a client has is to be secret."""
    held = [[f"{20 + k}.{i + 5},v{k}/{i}" for i in range(-more if k == 0 else 0, 4)] for k in range(20)]
    files = {f"p{k:02}": [f"{row},p{k:02},{k % 2}" for row in rows] for k, rows in enumerate(held)}
    if how != "files":
        files = {"visits": [row for rows in files.values() for row in rows]}
    (folder / f"{how}{more}").mkdir()
    for name, rows in files.items():
        (folder / f"{how}{more}" / f"{name}.csv").write_text("\n".join(["age,visit,who,outcome", *rows]) + "\n")
    kinds = {"visit": "key" if how == "key" else "ignored", "who": "ignored" if how == "files" else "group"}
    schema = SCHEMA.replace(
        'pressure = { kind = "number", range = [50, 250] }', f'visit = {{ kind = "{kinds["visit"]}" }}'
    )
    (folder / "schema.toml").write_text(
        schema.replace('clinic = { kind = "group" }', f'who = {{ kind = "{kinds["who"]}" }}')
    )
    named = {"group": None if how == "files" else "who", "key": "visit" if how == "key" else None}
    made = of_table(folder, path=[str(file) for file in sorted((folder / f"{how}{more}").iterdir())], **named)
    return Population(made.model_copy(update={"privacy": made.privacy.model_copy(update={"public_sizes": False})}))


def moved(folder: Path, how: str) -> int:
    """How many other clients train on other rows where the first client has one visit more."""
    one, two = (visitors(folder, more, how) for more in (0, 1))
    held = [[set(p.dataset.train.x[rows, 0].tolist()) for rows in p.shares[0]] for p in (one, two)]
    assert len(one.public.sizes) == len(two.public.sizes) == 20
    return sum(mine != theirs for mine, theirs in list(zip(*held, strict=True))[1:])


def test_a_visit_more_moves_no_visit_of_another_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins that hold rows back follow places: a row more at one client gives those behind it other ones, and the sum
    moves by a clip for each client. 4 was "proved" for one."""
    assert moved(tmp_path, "key") == moved(tmp_path, "files") == 0
    with pytest.raises(UnsoundGuarantee) as refused:
        _ = visitors(tmp_path, 2, "places").public
    assert refused.value.code == "sizes-move-rows"
    monkeypatch.setattr(Population, "_check_places", lambda self: None)
    assert moved(tmp_path, "places") > 10


# images ---------------------------------------------------------------------------------------------------------------
def animals(folder: Path, last: str = "cat", mode: str = "L") -> Path:
    """24 images of two classes; the last one may be of another class, or have colours."""
    shutil.rmtree(folder, ignore_errors=True)
    for n in range(24):
        place = folder / (last if n == 23 else ("cat", "dog")[n % 2])
        place.mkdir(parents=True, exist_ok=True)
        Image.new(mode if n == 23 else "L", (4, 4), 10 * n).save(place / f"{n:02}.png")
    return folder


def of_animals(folder: Path, **data: Any) -> Experiment:
    source = {"source": "folder", "path": str(folder), "side": 4, "at_least": 1, **data}
    return config.validate(PRIVATE | {"data": source, "partition": {"scheme": "iid", "clients": 2}})


OWL: Change = {"last": "owl"}
COLOUR: Change = {"mode": "RGB"}
DECLARED: Change = {"classes": ["cat", "dog", "owl"], "colours": True}


def two_of(folder: Path, change: Change, data: Change, runs: Path) -> tuple[Seen, Seen]:
    made = of_animals(folder, **data)
    animals(folder)
    one = play(made, runs / "one")
    animals(folder, **change)
    return one, play(made, runs / "other")


@pytest.mark.one_fast
@pytest.mark.parametrize("change", [OWL, COLOUR], ids=["class", "colour"])
def test_one_image_changes_no_model_of_declared_classes(change: Change, tmp_path: Path) -> None:
    one, other = two_of(tmp_path / "animals", change, DECLARED, tmp_path)
    assert tells_apart(one, other) == []
    assert ("example", "server") in one.finite
    assert len(strangers(one, other)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("change", [OWL, COLOUR], ids=["class", "colour"])
def test_classes_that_images_bring_along_claim_nothing(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = {} if change == OWL else {"classes": DECLARED["classes"]}
    one, other = two_of(tmp_path / "animals", change, less, tmp_path)
    assert {"agreement.json", "size of model.safetensors"} <= {*tells_apart(one, other)}
    assert one.finite == other.finite == set()
    nothing_is_void(monkeypatch)
    one, other = two_of(tmp_path / "animals", change, less, tmp_path / "twin")
    assert {"agreement.json", "size of model.safetensors"} <= {*tells_apart(one, other)}
    assert ("example", "server") in one.finite


def test_a_choice_by_secret_labels_claims_nothing(tmp_path: Path) -> None:
    """A part of every class, a probe for the server: another label would choose other images. The digits are no secret,
    whatever is chosen of them."""
    animals(tmp_path / "animals")
    for more in ({"fraction": 0.5}, {"probe": 1}, {"train": 8}):
        made = of_animals(tmp_path / "animals", **DECLARED | {"classes": ["cat", "dog"]} | more)
        assert len(Population(made).public.void) == 1, more
    assert Population(of_animals(tmp_path / "animals", **DECLARED | {"classes": ["cat", "dog"]})).public.void == ()
    dealt = {"scheme": "dirichlet", "clients": 2, "alpha": 1.0, "min_size": 1}
    digits = config.validate(PRIVATE | {"data": {"train": 100, "probe": 2}, "partition": dealt})
    assert Population(digits).public.void == ()
    with pytest.raises(UnsoundGuarantee) as refused:
        _ = Population(made.model_copy(update={"partition": dealt})).shares
    assert refused.value.code == "partition-from-labels"


def test_an_image_of_a_class_that_nobody_declared_is_refused_where_it_lies(tmp_path: Path) -> None:
    animals(tmp_path / "animals", last="owl")
    made = of_animals(tmp_path / "animals", classes=["cat", "dog"], colours=False)
    with pytest.raises(DataError) as refused:
        play(made, tmp_path / "run")
    assert (refused.value.code, "owl" in refused.value.what) == ("undeclared-class", True)
    assert not (tmp_path / "run").exists()


def test_a_declared_class_without_images_moves_nobody(tmp_path: Path) -> None:
    """The only owl is taken away: the others keep their places, their numbers and their coins."""
    folder = animals(tmp_path / "animals", last="owl")
    held: list[dict[str, tuple[int, bool]]] = []
    for _ in range(2):
        data = folders.load(folder, side=4, at_least=1, test_fraction=0.4, classes=DECLARED["classes"], colours=False)
        parts = ((data.train, False), (data.test, True))
        held.append({str(x[0, 0, 0]): (int(y), test) for part, test in parts for x, y in zip(part.x, part.y)})  # noqa: B905
        assert data.classes == 3
        for owl in folder.glob("owl/*"):
            owl.unlink()
    assert held[0] | held[1] == held[0]
    assert len(held[0]) == len(held[1]) + 1


def test_a_changed_label_moves_no_image_of_the_same_name(tmp_path: Path) -> None:
    """As it was, of two images called 04.png that of the first class came first: another label moved the other one."""
    folder = animals(tmp_path / "animals")
    shutil.copy(folder / "cat" / "04.png", folder / "dog" / "04.png")
    with pytest.raises(DataError) as refused:
        folders.load(folder, side=4, at_least=1, classes=DECLARED["classes"], colours=False)
    assert (refused.value.code, "04.png" in refused.value.what) == ("image-name-twice", True)


# what is announced ----------------------------------------------------------------------------------------------------
class Telling(Announced):
    """An announcement as it was: with what inputs are scaled by."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def telling(public: PublicNumbers) -> dict[str, Any]:
    return {name: getattr(public, name) for name in (*AboutData.model_fields, "mean", "std")}


def announced(made: Experiment, path: Path) -> SitesAgreement:
    return OwnData(made, path, b"a key of the site").announced("hospital-a")


def the_row_between(one: SitesAgreement, other: SitesAgreement) -> Sequence[float]:
    """What a row was, by two announcements with and without it; nothing where they hold no numbers but counts."""
    means = [np.array(list(map(float, re.findall(r"\d+\.\d+", str(part.data.to_json()))))) for part in (one, other)]
    many = [part.clients[0].examples for part in (one, other)]
    return [] if not len(means[0]) else list(many[0] * means[0][:2] - many[1] * means[1][:2])


def test_two_announcements_give_no_row_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact means of two files anybody has the row that is in one of them; the control is such a file."""
    long, short = (visits(tmp_path / name, rows) for name, rows in (("long", 61), ("short", 60)))
    made = of_table(tmp_path / "long", group=None, standardise="channel")
    made = made.model_copy(update={"partition": {"scheme": "iid", "clients": 1}})
    schema = SCHEMA.replace('"group"', '"ignored"')
    (tmp_path / "long" / "schema.toml").write_text(schema)
    with pytest.raises(UnsoundGuarantee) as refused:
        announced(made, long)
    assert refused.value.code == "announces-rows"
    declared = of_table(tmp_path / "long", group=None)
    files = [announced(declared, path) for path in (long, short)]
    assert the_row_between(*files) == []
    assert files[0].data == files[1].data
    monkeypatch.setattr(own_data, "check_announced", lambda *_: None)
    monkeypatch.setattr(own_data, "Announced", Telling)
    monkeypatch.setattr(PublicNumbers, "about", property(telling))
    last = [float(cell) for cell in long.read_text().splitlines()[-1].split(",")[:2]]
    assert the_row_between(announced(made, long), announced(made, short)) == pytest.approx(last, abs=1e-6)


LEARNS: dict[str, Change] = {
    "scale of a table": {"source": "tabular", "label": "outcome", "schema": "s.toml", "standardise": "channel"},
    "columns of a table": {"source": "tabular", "label": "outcome", "schema": "learned"},
    "classes of images": {"source": "folder", "colours": True},
    "colours of images": {"source": "images", "classes": ["cat", "dog"]},
    "scale of images": {"source": "folder", **DECLARED, "standardise": "channel"},
    "scale of pixels": {"source": "images", **DECLARED, "standardise": "pixel"},
}


@pytest.mark.parametrize("name", LEARNS)
def test_no_server_and_no_site_plays_what_rows_decide(name: str) -> None:
    """`settled` is what `serve` and `join` begin with, before a row is read or a file is written."""
    made = config.validate({"data": {"path": "data", **LEARNS[name]}, "partition": {"scheme": "iid", "clients": 1}})
    with pytest.raises(UnsoundGuarantee) as refused:
        settled(made, rehearsal=True)
    assert refused.value.code == "announces-rows"


def test_an_agreement_has_no_place_for_statistics() -> None:
    assert not {"mean", "std", "note"} & Announced.model_fields.keys()
    floats = [name for name, field in Announced.model_fields.items() if "float" in str(field.annotation)]
    assert floats == ["reach"]  # which the class of a source declares


def test_an_announcement_of_old_is_no_agreement(tmp_path: Path) -> None:
    """One that holds a mean, as they were written before, is refused by whoever is to agree on it; and one without the
    digest by which a site knows its own rows again, from which a server could have struck it out.
    """
    path = animals(tmp_path / "animals")
    text = announced(of_animals(path, **DECLARED), path).toml()
    assert agreed.read_toml(text).clients[0].name == "hospital-a"
    (digest,) = (line for line in text.splitlines(keepends=True) if line.startswith("commitment"))
    for old, new in (("[data]", "[data]\nmean = [0.13]\nstd = [0.3]"), (digest, ""), (digest, 'commitment = ""\n')):
        with pytest.raises(ConfigError) as refused:
            agreed.read_toml(text.replace(old, new))
        assert refused.value.code == "bad-agreement"


def test_sites_agree_where_one_has_no_image_of_a_class(tmp_path: Path) -> None:
    """The folder of the only owl is taken away at one of two sites: what both announce of the model stays the same."""
    parts = []
    for name, last in (("one", "owl"), ("other", "cat")):
        path = animals(tmp_path / name, last)
        parts.append(OwnData(of_animals(path, **DECLARED), path, b"a key").announced(name))
    assert agreed.merged(parts).data == parts[0].data == parts[1].data
    assert (parts[0].data.classes, parts[0].data.names, parts[0].data.void) == (3, ("cat", "dog", "owl"), ())


@pytest.mark.parametrize("loaded", ["tabular", "folder", "own"])
def test_what_is_declared_scales_as_the_loader_does(loaded: str, tmp_path: Path) -> None:
    from tests.runs.test_data import Drawn

    schema: TableSchema | None = None
    reach: tuple[float, float] | None = None
    make: dict[str, Callable[[], Experiment]] = {
        "tabular": lambda: of_table(visits(tmp_path).parent),
        "folder": lambda: of_animals(animals(tmp_path), **DECLARED),
        "own": lambda: config.validate({"data": {"source": "tests.runs.test_data:Drawn", "standardise": "none"}}),
    }
    made = make[loaded]()
    found = Population(made)
    if loaded == "tabular":
        schema = found.source.schema
    if loaded == "own":
        reach = Drawn.reach
    data = found.dataset
    assert public_inputs.declared_scale(made.data, data.kind, data.shape, schema, reach) == (data.mean, data.std)
