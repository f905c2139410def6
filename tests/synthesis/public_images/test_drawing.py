"""The cache: what was drawn once is not drawn again, and what was cut off goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.data.dataset import Array, ImageNeeds
from sordino.errors import ConfigError, DataError, RunError
from sordino.synthesis.public_images import store
from sordino.synthesis.public_images.store import REDRAWN, DrawnImages, draw_all, gathered

TEXTS = (tuple(f"cat {n}" for n in range(6)), tuple(f"dog {n}" for n in range(6)))
DEPENDS = {"backend": "painter", "model": "m@1", "steps": 50, "guidance": 7.5, "size": 32}


class Painter:
    """A model that counts its work; `blank` prompts come out in one colour for so many tries."""

    def __init__(self, blank: dict[str, int] | None = None, breaks_at: int = -1) -> None:
        self.started = self.calls = 0
        self.drawn: list[str] = []
        self.blank, self.breaks_at = dict(blank or {}), breaks_at

    def start(self) -> Callable[[list[str], list[int]], Array]:
        self.started += 1
        return self.draw

    def draw(self, prompts: list[str], seeds: list[int]) -> Array:
        if self.calls == self.breaks_at:
            raise KeyboardInterrupt
        self.calls += 1
        self.drawn += prompts
        return np.stack([self.one(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)])

    def one(self, prompt: str, seed: int) -> Array:
        if self.blank.get(prompt, 0):
            self.blank[prompt] -= 1
            return np.zeros((32, 32, 3), np.uint8)
        words = np.frombuffer(prompt.encode(), np.uint8).tolist()
        return np.random.default_rng([seed, *words]).integers(0, 256, (32, 32, 3), np.uint8)


def draw(wanted: ImageNeeds, painter: Painter, texts: Any = TEXTS, **changed: Any) -> DrawnImages:
    return draw_all(wanted, texts, DEPENDS | changed, 4, painter.start)


def test_a_hit_draws_nothing_and_loads_nothing(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    asked, first, again = wanted(cache=tmp_path), Painter(), Painter()
    made, found = draw(asked, first), draw(asked, again)
    assert (first.started, first.calls, len(first.drawn)) == (1, 3, 12)
    assert (again.started, again.calls) == (0, 0)
    np.testing.assert_array_equal(made.images, found.images)
    np.testing.assert_array_equal(made.images, draw(wanted(), Painter()).images)  # nor does a cache change anything
    assert (made.facts, found.facts) == (
        {"made": 12, "cached": 0, "blanks": 0},
        {"made": 0, "cached": 12, "blanks": 0},
    )


@pytest.mark.parametrize(
    "changed", [{"model": "m@2"}, {"steps": 25}, {"guidance": 5.0}, {"size": 64}, {"backend": "other"}]
)
def test_what_an_image_hangs_on_makes_it_another(
    changed: dict[str, Any], wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    draw(wanted(cache=tmp_path), Painter())
    assert draw(wanted(cache=tmp_path), Painter(), **changed).facts["made"] == 12


def test_so_do_key_shape_and_prompt(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    draw(wanted(cache=tmp_path), Painter())
    assert draw(wanted(cache=tmp_path, key=4), Painter()).facts["made"] == 12
    assert draw(wanted(cache=tmp_path, shape=(8, 8, 1)), Painter()).facts["made"] == 12
    other = Painter()
    draw(wanted(cache=tmp_path), other, texts=(("cat 0", "cat 1", "cat ?", *TEXTS[0][3:]), TEXTS[1]))
    assert other.drawn == ["cat ?"]


def test_a_run_that_was_cut_off_goes_on(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    asked, rest = wanted(cache=tmp_path), Painter()
    with pytest.raises(KeyboardInterrupt):
        draw(asked, Painter(breaks_at=2))
    resumed = draw(asked, rest)
    assert resumed.facts == {"made": 4, "cached": 8, "blanks": 0}
    assert rest.drawn == list(TEXTS[1][2:])
    np.testing.assert_array_equal(resumed.images, draw(wanted(), Painter()).images)
    assert not list(tmp_path.rglob("*.tmp"))


def test_without_a_class_the_others_stay(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    draw(wanted(cache=tmp_path), Painter())
    assert draw(wanted(cache=tmp_path, classes=("dog",)), Painter(), texts=TEXTS[1:]).facts["cached"] == 6


def test_a_damaged_image_is_drawn_again(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    whole = draw(wanted(cache=tmp_path), Painter())
    kept = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    flipped = bytearray(kept[0].read_bytes())
    flipped[-1] ^= 1
    kept[0].write_bytes(flipped)
    kept[1].write_bytes(kept[1].read_bytes()[:-1])
    kept[2].write_bytes(b"")
    again = draw(wanted(cache=tmp_path), Painter())
    assert again.facts["made"] == 3
    np.testing.assert_array_equal(whole.images, again.images)


@pytest.mark.parametrize("tries", range(REDRAWN + 2))
def test_a_blank_image_is_tried_three_times_again(
    tries: int, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    asked, painter, again = wanted(cache=tmp_path), Painter({"dog 3": tries}), Painter()
    made = draw(asked, painter)
    lost = int(tries > REDRAWN)
    assert made.facts["blanks"] == lost
    assert [len(images) for images in made.images] == [6, 6 - lost]
    assert painter.drawn.count("dog 3") == 1 + min(tries, REDRAWN)
    assert painter.drawn.count("dog 2") == 1
    found = draw(asked, again)  # a blank one is remembered too
    assert again.calls == 0
    assert found.facts["blanks"] == lost
    for one, other in zip(made.images, found.images, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_class_of_blanks_alone_is_refused(wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(DataError, match="dog") as refused:
        draw(wanted(), Painter(dict.fromkeys(TEXTS[1], 99)))
    assert refused.value.code == "all-blank"


def test_a_cache_that_cannot_be_written_is_refused(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(DataError, match=str(tmp_path)) as refused:
        draw(wanted(cache=tmp_path / "file"), Painter())
    assert refused.value.code == "candidate-cache"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    store.put(tmp_path / "a", b"old")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RunError, match="no space left"):
        store.put(tmp_path / "a", b"new")
    monkeypatch.undo()
    assert store.get(tmp_path / "a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_manifest_counts(wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    other = image + 1
    built = gathered("s", "", wanted(cache=tmp_path), [np.stack([image, other, image]), np.stack([image])], model="m@1")
    assert json.loads(json.dumps(built.manifest)) == built.manifest
    assert list(tmp_path.iterdir()) == []  # it belongs to a run, not to the cache
    assert built.manifest["counts"] == {"cat": 3, "dog": 1}
    assert built.manifest["duplicates"] == 1  # the same picture of another class is none
    assert built.y.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "wrong",
    [{"classes": ()}, {"classes": ("a", "a")}, {"shape": (16, 16, 2)}, {"shape": (0, 16, 1)}],
)
def test_what_cannot_be_wanted_is_refused(wrong: dict[str, Any], wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(ConfigError) as refused:
        wanted(**wrong)
    assert refused.value.code == "out-of-range"
