"""Images come back exactly, are kept in a cache that survives damage, and are refused each for what is wrong."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sordino import config
from sordino.data import images
from sordino.data.dataset import CLASSES, pixel_stats
from sordino.errors import ConfigError, DataError
from sordino.partition import LongTail, SortedShards
from sordino.runs.simulation import simulated
from tests.data.files import PICTURE, Array, encode, put, refused
from tests.data.real_data import real


def test_images_come_back_exactly(tiny: SimpleNamespace, cache: Path) -> None:
    data = images.load(tiny.root, cache)
    for split, name in ((data.train, "train"), (data.test, "test")):
        assert split.x.dtype == np.uint8
        assert split.y.dtype == np.int64
        assert np.array_equal(split.x, tiny.x[name])
        assert np.array_equal(split.y, tiny.y[name])
        assert split.group is None
    assert (data.name, data.kind, data.classes, data.shape, data.note) == ("tiny", "image", 3, (4, 5, 3), "")
    assert data.mean == pytest.approx((tiny.x["train"] / 255).mean((0, 1, 2)))


def test_training_and_test_images_go_together_and_every_pixel_has_its_scale(
    tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(cache))
    apart = images.load(tiny.root, cache=cache)
    whole = images.load(tiny.root, cache=cache, merge=True, standardise="pixel")
    assert np.array_equal(whole.train.x, np.concatenate([apart.train.x, apart.test.x]))
    assert np.array_equal(whole.train.y, np.concatenate([apart.train.y, apart.test.y]))
    assert whole.test is whole.train  # each client holds back rows of its own
    pixels = whole.train.x.astype(np.float64)
    assert np.array(whole.mean) * 255 == pytest.approx(pixels.mean(0).reshape(-1))
    assert np.array(whole.std) * 255 == pytest.approx(pixels.std(0).reshape(-1) + 0.001)
    experiment = config.validate(
        {
            "data": {
                "source": "images",
                "path": str(tiny.root),
                "merge": True,
                "standardise": "pixel",
                "test_fraction": 0.5,
            },
            "partition": {"scheme": "iid", "clients": 2},
            "model": {"name": "logistic"},
            "algorithm": {"name": "fedavg"},
            "privacy": {},
        }
    )
    parts = simulated(experiment)
    train, test = parts.population.shares
    assert sorted([*train.numbers, *test.numbers]) == list(range(len(pixels)))
    scaled = parts.setup.task._scaled(torch.from_numpy(whole.train.x.copy()), torch.float32)  # type: ignore[attr-defined]
    own = scaled.movedim(1, -1).double() if scaled.dim() == 4 else scaled.double()
    assert float(own.mean(0).abs().max()) < 1e-3


def test_only_images_are_put_together() -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = simulated(config.validate({"data": {"merge": True}})).population.dataset
    assert refusal.value.code == "setting-of-another-source"
    quadratics = simulated(config.validate({"data": {"source": "quadratic"}, "partition": {"scheme": "natural"}}))
    assert list(quadratics.population.shares[1].sizes) == [1] * 10  # whose test rows are the training rows, all of them


def decoded(data: bytes) -> Array | None:
    """None if refused; any other error than a refusal is a failure of the test."""
    try:
        return images._decode(data, "somewhere", None)[0]
    except DataError as error:
        return {"corrupt-image": None, "unsupported-pixel-format": None}[error.code]


def test_a_png_with_a_flipped_bit_is_refused_or_still_exact() -> None:
    whole = encode(PICTURE)
    refusals = 0
    for place in range(8 * len(whole)):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        found = decoded(bytes(data))
        assert found is None or np.array_equal(found, PICTURE)
        refusals += found is None
    assert refusals > 7 * len(whole)  # only a few bits, like those of the end marker, do not matter


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 400), st.sampled_from(["PNG", "JPEG", "GIF"]))
def test_damaged_images_never_crash(place: int, byte: int, kept: int, kind: str) -> None:
    data = bytearray(encode(PICTURE, kind))
    data[place % len(data)] = byte
    for broken in (bytes(data), bytes(data[:kept]), bytes(data) + b"\0"):
        found = decoded(broken)
        assert found is None or found.dtype == np.uint8


def test_jpeg_images_are_said_to_be_copies(tiny: SimpleNamespace, cache: Path) -> None:
    encoded = [encode(image) for image in tiny.x["test"]]
    put(tiny.root / "test.parquet", [*encoded[:-1], encode(tiny.x["test"][-1], "JPEG")], label=tiny.y["test"])
    for _ in range(2):  # decoded, and from the cache
        assert images.load(tiny.root, cache).note == "images are a JPEG copy of the original"


def grey(n: int = 4) -> list[Array]:
    return list(np.random.default_rng(1).integers(0, 256, (n, 3, 3, 1), dtype=np.uint8))


def test_raw_bytes_grey_images_and_other_label_names(tmp_path: Path, cache: Path) -> None:
    encoded = [encode(image) for image in grey()]
    columns = {"labels": pa.array([1, 0, 1, 0], pa.uint8()), "weight": [0.5] * 4}
    for split in ("train", "test"):
        put(tmp_path / "grey" / "data" / f"{split}-00000-of-00001.parquet", encoded, raw=True, **columns)
    data = images.load(tmp_path / "grey", cache)
    assert np.array_equal(data.train.x, np.stack(grey()))
    assert data.test.y.tolist() == [1, 0, 1, 0]


def test_shards_are_read_in_order_and_none_may_be_missing(tiny: SimpleNamespace, cache: Path) -> None:
    (tiny.root / "train.parquet").unlink()
    for i, rows in enumerate(np.split(np.arange(12), 3)):
        encoded = [encode(image) for image in tiny.x["train"][rows]]
        put(tiny.root / f"train-0000{i}-of-00003.parquet", encoded, label=tiny.y["train"][rows])
    assert np.array_equal(images.load(tiny.root, cache).train.x, tiny.x["train"])
    (tiny.root / "train-00001-of-00003.parquet").unlink()
    error = refused(lambda: images.load(tiny.root, cache))
    assert (error.code, "2 of 3 train files" in str(error)) == ("missing-shard", True)


def test_grey_among_colour_becomes_colour_and_colour_among_grey_is_refused(tmp_path: Path, cache: Path) -> None:
    one, colour = grey(1)[0], np.full((3, 3, 3), 9, np.uint8)
    pair = {"train": [encode(colour), encode(one)], "test": [encode(colour)] * 2}
    for split, encoded in pair.items():
        put(tmp_path / f"{split}.parquet", encoded, label=[0, 1])
    assert np.array_equal(images.load(tmp_path, cache).train.x[1], one.repeat(3, axis=2))
    put(tmp_path / "train.parquet", pair["train"][::-1], label=[0, 1])
    assert refused(lambda: images.load(tmp_path, cache)).code == "mixed-pixel-formats"


def test_alpha_and_palette_images_become_colour(tmp_path: Path, cache: Path) -> None:
    colour = Image.fromarray(np.random.default_rng(0).integers(0, 2, (3, 3, 3), dtype=np.uint8) * 255)
    encoded = []
    for image in (colour.convert("RGBA"), colour.quantize(16)):
        out = io.BytesIO()
        image.save(out, "PNG")
        encoded.append(out.getvalue())
    for split in ("train", "test"):
        put(tmp_path / f"{split}.parquet", encoded, label=[0, 1])
    train = images.load(tmp_path, cache).train.x
    assert np.array_equal(train[0], np.asarray(colour))
    assert np.array_equal(train[1], np.asarray(colour))


def sixteen_bit() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((3, 3), 40_000, np.uint16)).save(out, "PNG")
    return out.getvalue()


IMAGE = encode(grey(1)[0])


BAD_TRAIN: dict[str, dict[str, Any]] = {
    "missing-image-bytes": {"encoded": [IMAGE, None], "label": [0, 1]},
    "corrupt-image": {"encoded": [IMAGE, IMAGE[:-30]], "label": [0, 1]},
    "mixed-image-sizes": {"encoded": [IMAGE, encode(np.zeros((3, 4, 1), np.uint8))], "label": [0, 1]},
    "unsupported-pixel-format": {"encoded": [sixteen_bit()] * 2, "label": [0, 1]},
    "split-shapes-differ": {"encoded": [encode(np.zeros((2, 2, 1), np.uint8))] * 2, "label": [0, 1]},
    "missing-labels": {"encoded": [IMAGE] * 2, "label": [0, None]},
    "negative-labels": {"encoded": [IMAGE] * 2, "label": [0, -1]},
    "label-not-a-code": {"encoded": [IMAGE] * 2, "label": [0, 500]},
    "no-label-column": {"encoded": [IMAGE] * 2, "caption": ["a", "b"]},
    "several-label-columns": {"encoded": [IMAGE] * 2, "coarse": [0, 1], "fine": [0, 1]},
    "no-single-image-column": {"encoded": [IMAGE] * 2, "label": [0, 1], "depth": [b"", b""]},
    "empty-split": {"encoded": [], "label": pa.array([], pa.int64())},
}


@pytest.mark.parametrize("code", BAD_TRAIN)
def test_bad_image_files_are_refused_each_with_its_own_code(code: str, tmp_path: Path, cache: Path) -> None:
    put(tmp_path / "train.parquet", **BAD_TRAIN[code])
    put(tmp_path / "test.parquet", [IMAGE] * 2, label=[0, 1])
    if code in {"several-label-columns", "no-label-column"}:
        put(tmp_path / "test.parquet", [IMAGE] * 2, coarse=[0, 1], fine=[0, 1])
    assert refused(lambda: images.load(tmp_path, cache)).code == code


def test_of_several_label_columns_one_can_be_named(tmp_path: Path, cache: Path) -> None:
    for split in ("train", "test"):
        put(tmp_path / f"{split}.parquet", [IMAGE] * 3, coarse=[0, 1, 0], fine=[0, 1, 2])
    error = refused(lambda: images.load(tmp_path, cache))
    assert "coarse, fine" in str(error)
    assert images.load(tmp_path, cache, label="fine").train.y.tolist() == [0, 1, 2]
    assert images.load(tmp_path, cache, label="coarse").train.y.tolist() == [0, 1, 0]
    assert refused(lambda: images.load(tmp_path, cache, label="middle")).code == "no-label-column"


def test_missing_places_and_splits(tiny: SimpleNamespace, tmp_path: Path, cache: Path) -> None:
    assert refused(lambda: images.load(tmp_path / "nowhere", cache)).code == "missing-directory"
    (tmp_path / "empty").mkdir()
    assert refused(lambda: images.load(tmp_path / "empty", cache)).code == "missing-train-split"
    (tiny.root / "test.parquet").rename(tiny.root / "validation.parquet")
    error = refused(lambda: images.load(tiny.root, cache))
    assert (error.code, "has no test file" in str(error)) == ("missing-test-split", True)
    assert not cache.exists()  # refused before anything was decoded
    for name in ("a", "b"):
        put(tmp_path / "two" / name / "train.parquet", [IMAGE], label=[0])
    assert refused(lambda: images.load(tmp_path / "two", cache)).code == "several-data-sets"


@pytest.mark.parametrize("kept", [0, 3, 100, 400, -1])
def test_a_corrupt_parquet_file_is_named(tiny: SimpleNamespace, cache: Path, kept: int) -> None:
    file = tiny.root / "train.parquet"
    file.write_bytes(file.read_bytes()[:kept])
    error = refused(lambda: images.load(tiny.root, cache))
    assert (error.code, str(file) in str(error)) == ("corrupt-parquet", True)


def test_a_hub_id_is_refused_unless_downloads_are_allowed(
    tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(lambda: images.load("owner/tiny", cache)).code == "download-not-allowed"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = refused(lambda: images.load("owner/tiny", cache, download=True))
    assert (error.code, "pip install 'sordino[hub]'" in error.fix) == ("missing-hub-extra", True)

    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tiny.root)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert images.load("owner/tiny", cache, download=True).name == "tiny"
    assert asked == [("owner/tiny", {"repo_type": "dataset", "allow_patterns": ["*.parquet"]})]
    monkeypatch.chdir(tiny.root.parent)
    tiny.root.rename(Path("owner").absolute())
    Path("parent").mkdir()
    Path("owner").rename(Path("parent/tiny"))
    assert images.load("parent/tiny", cache, download=True).shape == (4, 5, 3)  # a local directory comes first
    assert len(asked) == 1

    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=offline))
    assert refused(lambda: images.load("owner/none", cache, download=True)).code == "download-failed"


def test_well_known_statistics_apply_where_the_shape_agrees(tiny: SimpleNamespace, cache: Path) -> None:
    named = tiny.root.rename(tiny.root.with_name("CIFAR-10"))
    assert images.load(named, cache).mean == (0.4914, 0.4822, 0.4465)
    named = named.rename(named.with_name("mnist"))  # three channels: not that one
    assert len(images.load(named, cache).mean) == 3


@pytest.mark.slow
def test_real_mnist(cache: Path) -> None:
    data = images.load(real("mnist"), cache)
    assert (data.shape, data.classes, data.note) == ((28, 28, 1), 10, "")
    assert np.bincount(data.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    mean, std = pixel_stats(data.train.x)
    assert (data.mean, data.std) == ((round(mean[0], 4),), (round(std[0], 4),)) == ((0.1307,), (0.3081,))
    kept = LongTail(100, 0.5).class_counts(data.train.y)
    assert kept.tolist() == [5421, 3249, 1948, 1167, 700, 419, 251, 150, 90, 54]
    parts = SortedShards(100).assign(data.train.y, None, np.random.default_rng(0))
    assert {len(part) for part in parts} == {600}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_cifar(name: str, classes: int, cache: Path) -> None:
    data = images.load(real(name), cache)
    assert (data.shape, data.classes) == ((32, 32, 3), classes)
    assert np.bincount(data.train.y).tolist() == [50_000 // classes] * classes
    assert np.bincount(data.test.y).tolist() == [10_000 // classes] * classes
    # The known mean, to the last digit or two: these files are JPEG copies, and say so.
    assert pixel_stats(data.train.x)[0] == pytest.approx(data.mean, abs=3e-4)
    assert "JPEG" in data.note


def test_names_in_a_file_declare_no_classes(
    tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many there are still follows from the largest label, which a single row may have."""
    many = images.load(tiny.root, cache).classes
    names = [f"class {k}" for k in range(many)]
    monkeypatch.setattr(images, "_names", lambda *given: tuple(names))
    seen = images.load(tiny.root, cache)
    assert (seen.names, CLASSES in seen.learned) == (tuple(names), True)
    assert CLASSES not in images.load(tiny.root, cache, classes=names).learned
