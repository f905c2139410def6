"""Sources that need no model: what they draw, what they say about it, and that they keep to this machine."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.svm import SVC

from sordino import config
from sordino.data import sources
from sordino.data.dataset import Array, Candidates, CandidateSource, ImageNeeds, Split
from sordino.errors import BackendUnavailable, ConfigError, DataError
from sordino.synthesis.public_images import SOURCES
from sordino.synthesis.public_images.existing import digit
from sordino.synthesis.public_images.procedural import DIGITS, FIGURES, GROUND, look, of_class
from sordino.synthesis.public_images.store import PROXY, fit, shifted, to_bytes, to_float

NUMBERS = tuple("0123456789")
FIRST = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def source(name: str, **settings: Any) -> CandidateSource:
    return config.build({"source": name, **settings}, SOURCES, "candidates", "source")


def pool(classes: int, each: int, shape: tuple[int, int, int] = (16, 16, 3)) -> Split:
    """Images whose level is ten times their class, and their number besides."""
    y = np.tile(np.arange(classes), each)
    x = np.zeros((len(y), *shape), np.uint8) + (10 * y)[:, None, None, None].astype(np.uint8)
    x[:, 0, 0, 0] = np.arange(len(y))
    return Split(x, y.astype(np.int64))


def asked(wanted: Callable[..., ImageNeeds], name: str, **changed: Any) -> ImageNeeds:
    return wanted(**{"classes": NUMBERS, "per_class": 20, "pool": pool(10, 25)} | changed)


EMBEDDED = ["public_split", "sklearn_digits", "procedural"]


@pytest.mark.parametrize("name", EMBEDDED)
@pytest.mark.parametrize("shape", [(16, 16, 3), (12, 20, 1)])
@pytest.mark.slow
def test_an_embedded_source_draws_what_is_wanted(
    name: str, shape: tuple[int, int, int], wanted: Callable[..., ImageNeeds]
) -> None:
    want = asked(wanted, name, shape=shape)
    made = source(name).build(want)
    assert made.x.shape == (200, *shape)
    assert made.x.dtype == np.uint8
    assert made.y.dtype == np.int64
    assert np.bincount(made.y).tolist() == [20] * 10
    assert made.manifest["source"] == name
    assert made.manifest["label"] == source(name).label
    assert made.manifest["label"].startswith(PROXY)
    assert ("uses labelled public data" in made.manifest["label"]) == (name == "public_split")
    assert made.manifest["counts"] == dict.fromkeys(NUMBERS, 20)
    json.dumps(made.manifest)
    wrong = made.manifest["wrong"]
    assert np.bincount(made.y[wrong], minlength=10).tolist() == [3] * 10  # 15% of 20, of each class
    assert len(np.unique(made.x.reshape(200, -1), axis=0)) == 200 - made.manifest["duplicates"] >= 190
    again, other = source(name).build(want), source(name).build(asked(wanted, name, shape=shape, key=9))
    np.testing.assert_array_equal(made.x, again.x)
    assert made.manifest == again.manifest
    assert (made.x != other.x).any()
    assert other.manifest["wrong"] != wrong
    assert source(name, bad_fraction=0.0).build(want).manifest["wrong"] == []


def test_only_public_split_takes_of_the_training_set() -> None:
    shares = {name: SOURCES[name].pool for name in SOURCES}  # type: ignore[attr-defined]
    assert shares == dict.fromkeys(SOURCES, 0.0) | {"public_split": 0.1}


def test_the_manifest_says_the_truth_about_wrong_images(wanted: Callable[..., ImageNeeds]) -> None:
    made = source("public_split", shift=0.0).build(asked(wanted, "public_split"))
    shown = made.x[:, 8, 8, 0] // 10
    assert np.flatnonzero(shown != made.y).tolist() == made.manifest["wrong"] != []
    own = made.x[shown == made.y]
    assert len(np.unique(own[:, 0, 0, 0])) == len(own)  # nobody's image is taken twice for its own class


def test_a_smaller_pool_gives_what_it_has(wanted: Callable[..., ImageNeeds]) -> None:
    made = source("public_split").build(asked(wanted, "public_split", pool=pool(10, 7)))
    assert made.manifest["counts"] == dict.fromkeys(NUMBERS, 7)
    assert made.manifest["wanted"] == 20


def test_one_class_alone_cannot_be_mistaken(wanted: Callable[..., ImageNeeds]) -> None:
    made = source("procedural").build(wanted(classes=("cat",)))
    assert made.manifest["wrong"] == []


def test_the_shift_is_one_camera_for_all_and_nothing_at_strength_0() -> None:
    image = to_float(np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8))
    twice = shifted(image.repeat(2, 1, 1, 1), 1.0, 5)
    assert (twice[0] - twice[1]).abs().mean() < 0.06  # noise alone
    assert (twice[0] - image[0]).abs().mean() > 0.1  # and it is another picture
    assert (to_bytes(shifted(image, 0.0, 5)) == to_bytes(image)).all()
    grey = to_float(np.full((1, 16, 16, 3), 128, np.uint8))
    turned = shifted(grey, 1.0, 5).mean((0, 2, 3))
    assert (turned - turned.mean()).abs().max() < 0.01  # a turned hue leaves grey grey


@pytest.mark.parametrize(
    ("name", "changed", "code"),
    [
        ("public_split", {"pool": None}, "no-public-images"),
        ("public_split", {"classes": (*NUMBERS, "ten")}, "class-without-candidates"),
        ("sklearn_digits", {"classes": ("1", "cat")}, "class-without-candidates"),
        ("procedural", {"classes": tuple(map(str, range(FIGURES + 1)))}, "out-of-range"),
    ],
)
def test_what_a_source_cannot_draw_is_refused(
    name: str, changed: dict[str, Any], code: str, wanted: Callable[..., ImageNeeds]
) -> None:
    with pytest.raises((ConfigError, DataError)) as refused:
        source(name).build(asked(wanted, name, **changed))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ({"source": "dall-e"}, "unknown-choice"),
        ({"source": "procedural", "bad_fraction": 1.0}, "out-of-range"),
        ({"source": "public_split", "bad_fraction": -0.1}, "out-of-range"),
        ({"source": "public_split", "shift": -1.0}, "out-of-range"),
        ({"source": "sklearn_digits", "bad_fraction": 1.5}, "out-of-range"),
        ({"source": "procedural", "prompts": {"name": "poet"}}, "unknown-choice"),
        ({"source": "procedural", "prompts": {"name": "file"}}, "wrong-type"),
        ({"source": "diffusers"}, "wrong-type"),
        ({"source": "diffusers", "model": "m", "size": 4}, "out-of-range"),
        ({"source": "diffusers", "model": "m", "steps": 0}, "out-of-range"),
        ({"source": "diffusers", "model": "m", "batch": 0}, "out-of-range"),
        ({"source": "diffusers", "model": "m", "device": "tpu"}, "wrong-type"),
        (
            {
                "source": "diffusers",
                "model": "m",
                "prompts": {"name": "transformers", "model": "m", "temperature": 0.0},
            },
            "out-of-range",
        ),
        ({"source": "biggan", "path": "m", "truncation": 0.0}, "out-of-range"),
        ({"source": "biggan", "path": "m", "batch": 0}, "out-of-range"),
        ({"source": "folder", "path": "m", "_hidden": 1}, "unknown-key"),
    ],
)
def test_a_wrong_table_is_refused_at_once(table: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.build(table, SOURCES, "candidates", "source")
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("7", 7),
        ("seven", 7),
        ("digit 7", 7),
        ("digit_Seven", 7),
        ("cat", None),
        ("17", None),
        ("", None),
        ("\u0667", None),
    ],
)
def test_digits_are_known_by_their_names(name: str, number: int | None) -> None:
    assert digit(name) == number


def nearest(train: Candidates, x: Array) -> Array:
    """The class of the image that is the most like each of `x` (correlation)."""

    def flat(images: Array) -> Array:
        rows = images.reshape(len(images), -1).astype(float)
        rows -= rows.mean(1, keepdims=True)
        scaled: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return scaled

    found: Array = train.y[(flat(x) @ flat(train.x).T).argmax(1)]
    return found


@pytest.mark.slow
def test_drawn_digits_look_like_digits(wanted: Callable[..., ImageNeeds]) -> None:
    """Who has seen drawn digits only knows handwritten ones. By chance 0.1; of 1,797 tries more than 0.15 are a matter
    of 1e-10.
    """
    made = source("procedural", bad_fraction=0.0).build(wanted(classes=NUMBERS, per_class=60, shape=(16, 16, 1)))
    plain = sources.digits()
    real = np.concatenate([plain.train.x, plain.test.x]), np.concatenate([plain.train.y, plain.test.y])
    framed = fit(np.pad(real[0], ((0, 0), (1, 1), (1, 1), (0, 0))), (16, 16, 1))

    def score(labels: Array) -> float:
        learned = SVC(C=5).fit(made.x.reshape(600, -1) / 255, labels)
        return float(learned.score(framed.reshape(len(framed), -1) / 255, real[1]))

    assert score(made.y) > 0.5
    assert score(np.random.default_rng(0).permutation(made.y)) < 0.2  # the control


def test_the_bundled_digits_are_the_digits(wanted: Callable[..., ImageNeeds]) -> None:
    want = wanted(classes=NUMBERS[::-1], per_class=50, shape=(16, 16, 1))
    made = source("sklearn_digits").build(want)
    plain = sources.digits()
    framed = np.pad(plain.test.x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    like = nearest(made, fit(framed, (16, 16, 1)))
    assert np.mean(9 - like == plain.test.y) > 0.6  # names say the class, not its number
    clean = np.delete(np.arange(len(made.y)), made.manifest["wrong"])
    others = source("sklearn_digits", bad_fraction=0.0).build(
        wanted(classes=NUMBERS[::-1], per_class=170, shape=(16, 16, 1), key=8)
    )
    right = nearest(others, made.x) == made.y
    assert right[clean].mean() > 0.7
    assert right[made.manifest["wrong"]].mean() < 0.3


def test_every_class_has_a_figure_of_its_own() -> None:
    figures = [of_class(index) for index in range(FIGURES)]
    assert len({figure.tobytes() for figure in figures}) == FIGURES
    inside = np.concatenate([figure.reshape(-1, 2) for figure in figures])
    assert 0 <= inside.min() < inside.max() <= 1
    assert len(DIGITS) == 10


def test_the_words_of_a_prompt_shape_the_picture(tmp_path: Path, wanted: Callable[..., ImageNeeds]) -> None:
    def drawn(text: str, name: str = "cat") -> Array:
        (tmp_path / f"{name}.txt").write_text(text)
        made = source("procedural", prompts={"name": "file", "path": str(tmp_path)})
        image: Array = made.build(wanted(classes=(name,), per_class=1, shape=(32, 32, 3))).x[0].astype(float)
        return image

    red, blue = drawn("a red cat"), drawn("a blue cat")
    assert (red[..., 0] - red[..., 2]).mean() > 10
    assert (blue[..., 0] - blue[..., 2]).mean() < -10
    assert drawn("a cat at night").mean() < drawn("a cat in daylight").mean()
    assert drawn("a bold 3", "3").mean() > drawn("a 3", "3").mean() > drawn("a sketch of a 3", "3").mean()
    assert drawn("a cat on a cluttered background").std() > drawn("a cat").std()
    assert look("a cat tilted to the left").angle < 0 < look("a cat tilted to the right").angle
    assert look("a cat seen from far away").size < look("a cat").size < look("a close-up photo of a cat").size
    assert look("a blurred scolded cat") == look("a cat")  # red and old are no words of it
    assert 0 < GROUND < 1


def write(path: Path, level: int, size: tuple[int, int] = (20, 14), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.full((size[1], size[0], 3), level, np.uint8)
    Image.fromarray(levels).convert(mode).save(path)


def test_a_folder_is_read_by_name_or_number(tmp_path: Path, wanted: Callable[..., ImageNeeds]) -> None:
    for at in range(9):
        write(tmp_path / "cat" / f"{at}.png", 10 * at)
    write(tmp_path / "1" / "a.JPG", 200)
    write(tmp_path / "1" / "b.png", 100, mode="L")
    (tmp_path / "1" / "notes.txt").write_text("no image")
    made = source("folder", path=str(tmp_path)).build(wanted())
    assert made.manifest["counts"] == {"cat": 6, "dog": 2}
    assert made.manifest["model"] == tmp_path.name
    assert made.x.shape == (8, 16, 16, 3)
    assert sorted(made.x[made.y == 1].mean((1, 2, 3)).round()) == [100, 200]
    levels = made.x[made.y == 0].mean((1, 2, 3))
    assert len(set(levels)) == 6
    other = source("folder", path=str(tmp_path)).build(wanted(key=8))
    assert set(other.x[other.y == 0].mean((1, 2, 3))) != set(levels)
    assert source("folder", path=str(tmp_path)).build(wanted(shape=(5, 7, 1))).x.shape == (8, 5, 7, 1)


def test_a_folder_with_something_wrong_is_named(tmp_path: Path, wanted: Callable[..., ImageNeeds]) -> None:
    def refusal(says: str) -> str:
        with pytest.raises(DataError, match=says) as refused:
            source("folder", path=str(tmp_path)).build(wanted(cache=tmp_path / "cache"))
        return refused.value.code

    write(tmp_path / "cat" / "1.png", 3)
    assert refusal("no folder for 'dog'") == "class-without-candidates"
    (tmp_path / "dog").mkdir()
    assert refusal("dog holds no image") == "class-without-candidates"
    whole = (tmp_path / "cat" / "1.png").read_bytes()
    for broken in (b"", b"GIF89a", b"hello", whole[:60]):
        (tmp_path / "dog" / "2.png").write_bytes(broken)
        assert refusal("dog/2.png: the image cannot be decoded") == "corrupt-image"
    assert not (tmp_path / "cache").exists()


def test_grey_and_colour_turn_into_each_other() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    assert (fit(fit(grey, (8, 8, 3)), (8, 8, 1)) == grey).all()
    assert (to_bytes(to_float(grey)) == grey).all()
    flat = np.full((2, 30, 50, 3), 77, np.uint8)
    assert (fit(flat, (7, 9, 1)) == 77).all()


@pytest.mark.one_fast
@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("prompts", [{"name": "template"}, {"name": "label_only"}, {"name": "file", "path": "prompts"}])
def test_no_socket_is_opened(
    prompts: dict[str, Any], wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NUMBERS:
        write(tmp_path / "images" / name / "1.png", 9)
        (tmp_path / "prompts").mkdir(exist_ok=True)
        (tmp_path / "prompts" / f"{name}.txt").write_text("one")
    source("folder", path="images").build(asked(wanted, "folder"))
    source("public_split").build(asked(wanted, "public_split"))
    source("sklearn_digits").build(asked(wanted, "sklearn_digits"))
    source("procedural", prompts=prompts).build(asked(wanted, "procedural"))
    with pytest.raises(AssertionError, match="a socket was opened"):  # the control
        socket.create_connection(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("package", "table", "named"),
    [
        ("diffusers", {"source": "diffusers", "model": "m"}, "diffusion"),
        ("transformers", {"source": "procedural", "prompts": {"name": "transformers", "model": "m"}}, "diffusion"),
        ("PIL", {"source": "folder", "path": "images"}, "data"),
    ],
)
def test_a_missing_package_names_its_extra(
    package: str, table: dict[str, Any], named: str, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        write(tmp_path / "images" / name / "1.png", 9)
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("folders", "image_files"):  # which other tests have loaded with it
        monkeypatch.delitem(sys.modules, f"sordino.data.{module}", raising=False)
    with pytest.raises(BackendUnavailable, match=package) as refused:
        config.build(table, SOURCES, "candidates", "source").build(wanted(cache=tmp_path / "cache"))
    assert refused.value.code == f"missing-{named}-extra"
    assert f"pip install 'sordino[{named}]'" in refused.value.fix
    assert not (tmp_path / "cache").exists()


def test_candidates_are_different_pictures(wanted: Callable[..., ImageNeeds]) -> None:
    made = source("procedural", bad_fraction=0.0).build(wanted(classes=FIRST, per_class=20))
    assert made.manifest["duplicates"] == 0
    assert made.x.reshape(200, -1).std(0).mean() > 20
