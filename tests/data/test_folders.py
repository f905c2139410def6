"""Folders of images: which files are drawn, what becomes of them, a refusal for everything that does not fit; and the
names of classes.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from sordino.data import SOURCES, folders, image_files, images, sources
from sordino.data.dataset import Dataset
from sordino.errors import DataError
from tests.data.real_data import real

Array = NDArray[Any]
SIZES = {  # MIO-TCD's classes; a tenth of these, rounded up, but 20 at least where there are as many
    "articulated_truck": 20,
    "background": 201,
    "bicycle": 5,
    "bus": 25,
    "car": 230,
    "motorcycle": 20,
    "non-motorized_vehicle": 20,
    "pedestrian": 20,
    "pickup_truck": 20,
    "single_unit_truck": 20,
    "work_van": 20,
}
DRAWN = {**dict.fromkeys(SIZES, 20), "background": 21, "bicycle": 5, "car": 23}


def encoded(image: Array, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(out, kind)
    return out.getvalue()


def plain(label: int, number: int) -> Array:
    """One colour, which says which image it is at any size."""
    return np.full((3, 5, 3), (label * 20, number, 7), np.uint8)


def put(place: Path, image: Array, kind: str = "PNG") -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(encoded(image, kind))
    return place


def told(x: Array, y: Array) -> set[tuple[int, int]]:
    """(label, number) of every image, read back from its colours."""
    found = {(int(label), int(image[0, 0, 1])) for image, label in zip(x, y, strict=True)}
    assert len(found) == len(y)
    for image, label in zip(x, y, strict=True):
        assert (image == plain(label, image[0, 0, 1])[0, 0]).all()
    return found


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "MIO-TCD"
    for label, (name, size) in enumerate(SIZES.items()):
        for number in reversed(range(size)):  # a file system may list them in any order
            put(root / "train" / name / f"{number:08}.png", plain(label, number))
    put(root / "test" / "00000000.jpg", plain(0, 0), "JPEG")  # whose label is withheld
    (root / "train" / "bus" / "Thumbs.db").write_text("not an image")
    (root / "train" / "bus" / "._00000000.png").write_text("not an image either")
    (root / "train" / ".cache").mkdir()
    return root


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two classes of three images, without train/ and test/."""
    for label, name in enumerate("ab"):
        for number in range(3):
            put(tmp_path / "few" / name / f"{number}.png", plain(label, number))
    return tmp_path / "few"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def refused(load: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        load()
    return caught.value


# ---- which images


def test_a_tenth_of_each_class_is_drawn_and_a_fifth_of_it_held_back(traffic: Path, cache: Path) -> None:
    data = SOURCES["folder"](path=str(traffic), side=4, fraction=0.1, seed=3, cache=cache)
    assert (data.name, data.kind, data.classes, data.shape) == ("MIO-TCD", "image", 11, (4, 4, 3))
    assert data.names == data.class_names == tuple(SIZES)
    held = np.bincount(data.test.y, minlength=11)
    assert (np.bincount(data.train.y) + held).tolist() == list(DRAWN.values())
    assert held.tolist() == [round(drawn / 5) for drawn in DRAWN.values()]
    train, test = told(*data.train[:2]), told(*data.test[:2])
    assert not train & test
    assert all(number < list(SIZES.values())[label] for label, number in train | test)
    assert "4x4" in data.note
    assert "0.1" in data.note
    assert data.mean == pytest.approx((data.train.x / 255).mean((0, 1, 2)))
    again = folders.load(traffic, 4, 0.1, seed=3, cache=cache.with_name("other"))
    assert again.fingerprint() == data.fingerprint()
    other = folders.load(traffic, 4, 0.1, seed=4, cache=cache)
    assert told(*other.train[:2]) | told(*other.test[:2]) != train | test  # other images, not only another cut


def test_the_file_system_may_list_them_in_any_order(
    traffic: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folders.load(traffic, 2, 0.1, cache=cache)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda place: sorted(listed(place), reverse=True))
    second = folders.load(traffic, 2, 0.1, cache=cache.with_name("other"))
    assert (second.fingerprint(), second.names) == (first.fingerprint(), first.names)


def test_all_are_taken_unless_told_otherwise(traffic: Path, cache: Path) -> None:
    data = folders.load(traffic, 2, cache=cache)
    everything = {(label, number) for label, size in enumerate(SIZES.values()) for number in range(size)}
    assert told(*data.train[:2]) | told(*data.test[:2]) == everything
    assert data.note == "images resized to 2x2"


def test_a_share_is_rounded_up_exactly(tmp_path: Path, cache: Path) -> None:
    for name in "ab":
        for number in range(100):
            put(tmp_path / "two" / name / f"{number}.png", plain(0, number))
    assert 0.07 * 100 > 7  # in floating point, which would make it 8
    for fraction, wanted in ((0.07, 7), (0.061, 7), (0.001, 2)):
        data = folders.load(tmp_path / "two", 1, fraction, at_least=2, test_fraction=0.5, cache=cache)
        assert np.bincount([*data.train.y, *data.test.y]).tolist() == [wanted, wanted]


def test_labelled_test_images_are_the_test_set(few: Path, cache: Path) -> None:
    root = few.with_name("parted")
    for split, shift in (("train", 0), ("test", 100)):
        for label, name in enumerate("ab"):
            for number in range(3):
                put(root / split / name / f"{number}.png", plain(label, number + shift))
    data = folders.load(root, 4, cache=cache)
    assert told(*data.train[:2]) == {(label, number) for label in (0, 1) for number in range(3)}
    assert told(*data.test[:2]) == {(label, number + 100) for label in (0, 1) for number in range(3)}
    flat = folders.load(few, 4, test_fraction=0.34, cache=cache)
    assert told(*flat.train[:2]) | told(*flat.test[:2]) == told(*data.train[:2])
    (root / "test" / "b").rename(root / "test" / "c")
    error = refused(lambda: folders.load(root, 4, cache=cache))
    assert (error.code, "b, c" in str(error)) == ("class-folders-differ", True)


# ---- what becomes of them


def test_a_pixel_is_the_mean_of_what_it_covers(few: Path, cache: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (12, 8, 3), dtype=np.uint8)
    put(few / "a" / "0.png", image)
    data = folders.load(few, 4, test_fraction=0.34, cache=cache)
    blocks = np.floor(image.reshape(4, 3, 4, 2, 3).mean((1, 3)) + 0.5)
    x = np.concatenate([data.train.x, data.test.x])
    assert (x == blocks).all((1, 2, 3)).sum() == 1


def test_grey_images_among_coloured_ones_become_colour_and_alone_stay_grey(few: Path, cache: Path) -> None:
    grey = np.full((3, 3, 1), 90, np.uint8)
    put(few / "a" / "0.png", grey)
    data = folders.load(few, 2, test_fraction=0.34, cache=cache)
    x = np.concatenate([data.train.x, data.test.x])
    assert x.shape == (6, 2, 2, 3)
    assert (x == 90).all((1, 2, 3)).sum() == 1
    for file in few.rglob("*.png"):
        put(file, grey)
    for label in "ab":
        put(few / label / "0.png", np.dstack([grey, np.full_like(grey, 255)]))  # with an alpha channel
    alone = folders.load(few, 2, test_fraction=0.34, cache=cache)
    assert alone.shape == (2, 2, 1)
    assert (alone.train.x == 90).all()


def test_the_second_load_decodes_nothing(few: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folders.load(few, 4, cache=cache, test_fraction=0.34)

    def forbidden(*_: Any, **__: Any) -> None:
        raise RuntimeError("an image was decoded")

    monkeypatch.setattr(Image, "open", forbidden)
    assert folders.load(few, 4, cache=cache, verify=True, test_fraction=0.34).fingerprint() == first.fingerprint()
    for change in (
        lambda: folders.load(few, 5, cache=cache, test_fraction=0.34),
        lambda: folders.load(few, 4, cache=cache, test_fraction=0.34, seed=1),
        lambda: os.utime(few / "a" / "1.png", ns=(1, 1)) or folders.load(few, 4, cache=cache, test_fraction=0.34),  # type: ignore[func-returns-value]
    ):
        assert "an image was decoded" in str(refused(change))


# ---- refusals


def corrupt(root: Path) -> None:
    file = root / "b" / "2.png"
    file.write_bytes(file.read_bytes()[:-20])


def lonely(root: Path) -> None:
    for file in (root / "b").iterdir():
        file.unlink()
    (root / "b").rmdir()


def bare(root: Path) -> None:
    lonely(root)
    (root / "a").rename(root / "train")  # train/*.png, and no class folder in it


def empty(root: Path) -> None:
    for file in (root / "b").iterdir():
        file.rename(file.with_suffix(".txt"))


def deep(root: Path) -> None:
    image = Image.fromarray(np.full((3, 3), 40_000, np.uint16))
    image.save(root / "b" / "2.png")


def claimed(root: Path) -> None:
    Image.new("1", (10_000, 6_000)).save(root / "b" / "2.png")


BAD: dict[str, tuple[Callable[[Path], None], str]] = {  # code: (what is done to a good folder, what the message names)
    "corrupt-image": (corrupt, "b/2.png"),
    "unsupported-pixel-format": (deep, "b/2.png"),
    "image-too-large": (claimed, "b/2.png"),
    "empty-class-folder": (empty, "few/b"),
    "one-class-folder": (lonely, "few"),
    "no-class-folders": (bare, "few"),
    "missing-image-folder": (lambda root: root.rename(root.with_name("elsewhere")) and None, "few"),
}


@pytest.mark.parametrize("code", BAD)
def test_a_bad_folder_is_refused_with_its_name_and_a_way_out(code: str, few: Path, cache: Path) -> None:
    spoil, named = BAD[code]
    assert folders.load(few, 2, cache=cache.with_name("good"), test_fraction=0.34).classes == 2
    spoil(few)
    error = refused(lambda: folders.load(few, 2, cache=cache, test_fraction=0.34))
    assert error.code == code
    assert named in str(error)
    assert error.fix
    assert not cache.exists() or all(file.suffix == ".u8" for file in cache.iterdir())  # nothing is half built


def test_a_corrupt_image_leaves_no_part_of_its_split(few: Path, cache: Path) -> None:
    for file in (few / "b").iterdir():
        file.write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    assert refused(lambda: folders.load(few, 2, cache=cache, test_fraction=0.34)).code == "corrupt-image"
    assert not any(cache.iterdir())


def test_an_image_that_cannot_be_read_is_named(few: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(file: Path) -> bytes:
        raise PermissionError(f"not yours: {file}")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    error = refused(lambda: folders.load(few, 2, cache=cache, test_fraction=0.34))
    assert (error.code, "few/a/" in str(error)) == ("unreadable-image", True)


def test_so_large_a_claim_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(np.zeros((20, 30, 1), np.uint8))
    monkeypatch.setattr(image_files, "LARGEST", 600)
    with image_files.opened(data, "here") as (image, mode):
        assert (image.size, mode) == ((30, 20), "L")
    monkeypatch.setattr(image_files, "LARGEST", 599)
    with pytest.raises(DataError) as refusal, image_files.opened(data, "here"):
        pass
    assert refusal.value.code == "image-too-large"


def test_without_the_extra_it_is_named(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("folders", "image_files"):
        monkeypatch.delitem(sys.modules, f"sordino.data.{module}")
    monkeypatch.setitem(sys.modules, "PIL", None)
    error = refused(lambda: SOURCES["folder"](path=few))
    assert (error.code, "'folder'" in str(error), "PIL" in str(error)) == ("missing-data-extra", True, True)


# ---- names of classes


def hub(folder: Path, metadata: Any, labels: tuple[int, ...] = (0, 1, 2)) -> Path:
    """A data set in the hub's format, with what the hub writes beside the schema."""
    folder.mkdir(parents=True, exist_ok=True)
    image = encoded(np.zeros((2, 2, 3), np.uint8))
    table = pa.table({"img": [{"bytes": image, "path": None}] * len(labels), "label": list(labels)})
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    for split in ("train", "test"):
        pq.write_table(table.replace_schema_metadata({b"huggingface": text}), folder / f"{split}.parquet")
    return folder


def features(names: Any) -> dict[str, Any]:
    return {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}, "img": {"_type": "Image"}}}}


def test_the_hubs_files_name_their_classes(tmp_path: Path, cache: Path) -> None:
    data = images.load(hub(tmp_path / "pets", features(["cat", "dog", "owl"])), cache)
    assert data.names == data.class_names == ("cat", "dog", "owl")
    more = images.load(hub(tmp_path / "more", features(["cat", "dog", "owl", "yak"])), cache)
    assert more.names == ("cat", "dog", "owl")  # the last has no image here
    assert images.load(tmp_path / "pets", cache).names == data.names  # from the cache


@pytest.mark.parametrize(
    "metadata",
    [
        features(["cat", "dog"]),
        features([1, 2, 3]),
        features(["cat", "", "owl"]),
        features("cat"),
        features(None),
        {"info": []},
        [],
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
    ids=range(10),
)
def test_where_names_are_missing_or_garbled_numbers_stand_in(metadata: Any, tmp_path: Path, cache: Path) -> None:
    data = images.load(hub(tmp_path / "pets", metadata), cache)
    assert (data.names, data.class_names) == ((), ("0", "1", "2"))


def test_well_known_sets_are_named_without_metadata(tmp_path: Path, cache: Path) -> None:
    ten = tuple(range(10))
    cifar = images.load(hub(tmp_path / "CIFAR-10", {}, ten), cache)
    assert cifar.names[0] == "airplane"
    assert cifar.names[9] == "truck"
    assert images.load(hub(tmp_path / "mnist", {}, ten), cache).names == tuple("0123456789")
    assert images.load(hub(tmp_path / "cifar10", {}), cache).names == ("airplane", "automobile", "bird")
    assert images.load(hub(tmp_path / "twelve" / "cifar10", {}, tuple(range(12))), cache).names == ()
    assert sources.digits().names == tuple("0123456789")
    assert sources.quadratic().class_names == ()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_the_real_files_name_their_classes(name: str) -> None:
    known = images.NAMES.get(name)
    names = images._names(real(name) / "train.parquet", None)
    assert len(names) == {"cifar100": 100}.get(name, 10)
    assert known in (None, names)  # our own lists agree with the files


def test_names_do_not_enter_the_fingerprint(few: Path, cache: Path) -> None:
    data = folders.load(few, 2, cache=cache, test_fraction=0.34)
    nameless = Dataset(data.name, data.kind, data.classes, data.train, data.test, data.mean, data.std)
    assert nameless.fingerprint() == data.fingerprint()
    assert nameless.class_names == ("0", "1")
