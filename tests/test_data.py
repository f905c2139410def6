"""Loaders: exact contents, caches that survive damage, and a refusal of its own for everything that does not fit."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from real_data import real

from sordino import config
from sordino.data import SOURCES, Dataset, Split, digits, images, pixels, quadratic, tabular
from sordino.data.dataset import apart, pixel_stats, stratified
from sordino.errors import ConfigError, DataError
from sordino.partition.schemes import LongTail, Natural, SortedShards
from sordino.runs.simulation import simulated

Array = NDArray[Any]


def refused(load: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        load()
    return caught.value


# ---- the data set


def small(**changes: Any) -> Dataset:
    split = Split(np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1), np.array([0, 1, 1]), np.array([5, 5, 6]))
    return replace(Dataset("small", "image", 2, split, split, (0.5,), (0.5,)), **changes)


def test_the_fingerprint_is_of_the_data_alone() -> None:
    data = small()
    assert data.fingerprint() == data.fingerprint() == small(name="other", note="x", mean=(0.0,)).fingerprint()
    x, y, group = data.train
    changed = [
        Split(x + np.uint8(1), y, group),
        Split(x.view(np.int8), y, group),
        Split(x.reshape(3, 1, 4, 1), y, group),
        Split(x, y[::-1].copy(), group),
        Split(x, y, None),
        Split(x, y, y),
    ]
    prints = {data.fingerprint(), *(small(train=split).fingerprint() for split in changed)}
    assert len(prints) == 1 + len(changed)
    assert small(train=changed[0]).fingerprint() != small(test=changed[0]).fingerprint()
    with_group, without = Split(y, y, y), Split(y, y, None)
    one, other = small(train=with_group, test=without), small(train=without, test=with_group)
    assert one.fingerprint() != other.fingerprint()
    assert small(train=Split(np.asfortranarray(x), y, group)).fingerprint() == data.fingerprint()


def test_pixel_statistics_agree_with_floating_point() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2500, 3, 2, 3), dtype=np.uint8)
    x[..., 1] = 7
    mean, std = pixel_stats(x)
    assert mean == pytest.approx((x / 255).mean((0, 1, 2)))
    assert std[::2] == pytest.approx((x / 255).std((0, 1, 2))[::2])
    assert std[1] == 1.0  # a constant channel must not divide by 0


def test_a_stratified_split_keeps_proportions_and_refuses_an_empty_side() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 10]))
    train, test = stratified(labels, 0.2, 3)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(160))
    assert np.bincount(labels[test]).tolist() == [20, 10, 2]
    assert not np.array_equal(test, stratified(labels, 0.2, 4)[1])
    assert refused(lambda: stratified(np.arange(5), 0.2, 0)).code == "empty-split"
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        assert refused(lambda f=fraction: stratified(labels, f, 0)).code == "bad-test-fraction"  # type: ignore[misc]


def test_every_source_is_a_loader() -> None:
    assert SOURCES["digits"]().shape == (8, 8, 1)
    assert SOURCES["quadratic"](clients=3, dim=4).shape == (8,)
    assert SOURCES["synthetic"](clients=2).shape == (60,)
    assert set(SOURCES) == {"digits", "folder", "images", "tabular", "quadratic", "synthetic"}


def test_digits_are_all_there() -> None:
    from sklearn.datasets import load_digits

    data = digits.load()
    assert (len(data.train.y), len(data.test.y), data.classes) == (1438, 359, 10)
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int64
    both = np.concatenate([data.train.x, data.test.x]).astype(float)[..., 0]
    grey = np.rint(both * 16 / 255)
    assert np.abs(both - grey * 255 / 16).max() <= 0.5

    def row(image: Array) -> tuple[float, ...]:
        return tuple(image.ravel().tolist())

    assert sorted(map(row, grey)) == sorted(map(row, load_digits().images))
    whole = np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert np.abs(np.bincount(data.test.y) - whole / 5).max() <= 0.5
    assert digits.load().fingerprint() == data.fingerprint() != digits.load(seed=1).fingerprint()


# ---- images

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
PICTURE[:6] = 0  # so that compression has work to do


def encode(image: Array, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(out, kind)
    return out.getvalue()


def put(file: Path, encoded: Sequence[bytes | None], raw: bool = False, **columns: Any) -> Path:
    """A parquet file as the hub writes it: a struct of bytes and path (or raw bytes), and label columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = pa.array(encoded, pa.binary()) if raw else pa.array([{"bytes": b, "path": None} for b in encoded])
    pq.write_table(pa.table({"image": image, **columns}), file, row_group_size=3)
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> SimpleNamespace:
    """12 training and 5 test images in a directory of their own."""
    rng = np.random.default_rng(0)
    x = {name: rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8) for name, n in (("train", 12), ("test", 5))}
    y = {"train": np.arange(12) % 3, "test": np.array([0, 1, 2, 2, 1])}
    root = tmp_path / "tiny"
    for split in x:
        put(root / f"{split}.parquet", [encode(image) for image in x[split]], label=y[split])
    return SimpleNamespace(root=root, x=x, y=y)


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


def test_the_second_load_decodes_nothing(tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = images.load(tiny.root, cache).fingerprint()

    def forbidden(*_: Any, **__: Any) -> None:
        raise RuntimeError("an image was decoded")

    monkeypatch.setattr(Image, "open", forbidden)
    assert images.load(tiny.root, cache, verify=True).fingerprint() == first
    os.utime(tiny.root / "test.parquet", ns=(1, 1))  # another source file: now it must decode
    assert "an image was decoded" in str(refused(lambda: images.load(tiny.root, cache)))


def test_writing_to_the_images_never_reaches_the_cache(tiny: SimpleNamespace, cache: Path) -> None:
    data = images.load(tiny.root, cache)
    whole = train_file(cache).read_bytes()
    data.train.x[:] = 0
    data.train.x.flush()  # type: ignore[attr-defined]
    assert train_file(cache).read_bytes() == whole


def train_file(cache: Path) -> Path:
    (file,) = cache.glob("tiny-train-*.u8")
    return file


LABELS_AT, PIXELS_AT = 1024, 1024 + 8 * 12
SIZE = PIXELS_AT + 12 * 4 * 5 * 3


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 15, 47, 48, 300, 1023, 1024, 1060, PIXELS_AT, 1500, SIZE - 1, SIZE + 1])
def test_a_truncated_cache_is_built_again(tiny: SimpleNamespace, cache: Path, kept: int) -> None:
    images.load(tiny.root, cache)
    whole = train_file(cache).read_bytes()
    assert len(whole) == SIZE
    train_file(cache).write_bytes((whole + b"\0")[:kept])
    assert np.array_equal(images.load(tiny.root, cache).train.x, tiny.x["train"])
    assert train_file(cache).read_bytes() == whole


@pytest.mark.parametrize("place", [0, 8, 12, 20, 47, 48, 60, 100, 200, 1023])
def test_any_flipped_bit_of_the_header_is_seen(tiny: SimpleNamespace, cache: Path, place: int) -> None:
    images.load(tiny.root, cache)
    file = train_file(cache)
    damaged = bytearray(whole := file.read_bytes())
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert pixels.read(file) is None
    images.load(tiny.root, cache)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("place", [LABELS_AT, PIXELS_AT, SIZE - 1])
def test_a_flipped_bit_of_the_payload_is_seen_when_asked(tiny: SimpleNamespace, cache: Path, place: int) -> None:
    images.load(tiny.root, cache)
    file = train_file(cache)
    damaged = bytearray(whole := file.read_bytes())
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert pixels.read(file) is not None  # opening checks the header and the size only
    images.load(tiny.root, cache, verify=True)
    assert file.read_bytes() == whole


def test_a_valid_header_of_another_version_is_not_read(
    tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.load(tiny.root, cache)
    assert pixels.read(train_file(cache)) is not None
    monkeypatch.setattr(pixels, "_VERSION", 2)
    assert pixels.read(train_file(cache)) is None


def test_a_failed_build_leaves_nothing_behind(tiny: SimpleNamespace, cache: Path) -> None:
    encoded = [encode(image) for image in tiny.x["train"]]
    put(tiny.root / "train.parquet", [*encoded[:-1], b"\x89PNG\r\n\x1a\nrubbish"], label=tiny.y["train"])
    error = refused(lambda: images.load(tiny.root, cache))
    assert error.code == "corrupt-image"
    assert "train.parquet, row 11" in str(error)
    assert list(cache.iterdir()) == []


def test_a_build_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise OSError("killed before the file was moved into place")

    monkeypatch.setattr(os, "replace", killed)
    batch = pixels.PixelBatch(PICTURE[None], jpegs=0)
    assert refused(lambda: pixels.write(tmp_path / "a.u8", np.array([1]), [batch])).code == "cache-not-writable"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_says_how_to_move_it(tiny: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    error = refused(lambda: images.load(tiny.root, tmp_path / "file"))
    assert error.code == "cache-not-writable"
    assert "SORDINO_CACHE" in error.fix


def test_the_cache_directory_comes_from_the_environment(
    tiny: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "elsewhere"))
    images.load(tiny.root)
    assert len(list((tmp_path / "elsewhere").glob("tiny-*.u8"))) == 2


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


@settings(deadline=None, max_examples=150)
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
    assert (error.code, "2 of 3 train shards" in str(error)) == ("missing-shard", True)


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
    assert (error.code, "has no test split" in str(error)) == ("missing-test-split", True)
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
    assert (error.code, error.fix) == ("missing-hub-extra", "pip install sordino[hub]")

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


# ---- tables

TABLE: dict[str, list[Any]] = {
    "age": [30, 40, 50, 60] * 5,
    "income": [1.5, 2.5, 3.5, 4.5] * 5,
    "colour": ["red", "blue", "red", "green"] * 5,
    "member": [True, False, False, True] * 5,
    "site": ["oslo", "bergen"] * 10,
    "outcome": ["yes", "no"] * 10,
}
FORMATS: dict[str, Callable[[pa.Table, Path], None]] = {".csv": csv.write_csv, ".parquet": pq.write_table}


def save(folder: Path, columns: dict[str, Any], suffix: str = ".parquet") -> Path:
    FORMATS[suffix](pa.table(columns), folder / f"people{suffix}")
    return folder / f"people{suffix}"


@pytest.mark.parametrize("suffix", FORMATS)
def test_tables_come_back_raw_with_training_statistics(suffix: str, tmp_path: Path) -> None:
    data = tabular.load(save(tmp_path, TABLE, suffix), "outcome", group="site")
    assert (data.name, data.kind, data.classes, data.shape) == ("people", "table", 2, (6,))
    assert [len(data.train.y), len(data.test.y)] == [len(rows) for rows in apart(20, None, 0.2, 0)]
    assert data.train.x.dtype == np.float32
    for x, y, group in (data.train, data.test):
        assert group is not None
        first = x[:, 0].astype(int) // 10 - 3  # age tells which of the four kinds of rows it was
        assert np.array_equal(x[:, 1], 1.5 + first)
        levels = np.array([[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]])  # blue, green, red
        assert np.array_equal(x[:, 2:5], levels[first])
        assert np.array_equal(x[:, 5], np.isin(first, [0, 3]))
        assert np.array_equal(y, np.array([1, 0])[first % 2])  # no, yes
        assert np.array_equal(group, np.array([1, 0])[first % 2])  # bergen, oslo
    assert data.mean[:2] == pytest.approx(data.train.x[:, :2].mean(0))
    assert data.std[:2] == pytest.approx(data.train.x[:, :2].std(0), rel=1e-6)
    assert (data.mean[2:5], data.std[2:5]) == ((0, 0, 0), (1, 1, 1))
    assert len(Natural().assign(data.train.y, data.train.group, np.random.default_rng())) == 2


def test_whole_number_labels_and_dictionaries_and_constants(tmp_path: Path) -> None:
    columns = {"kind": pa.array(["a", "b"] * 10).dictionary_encode(), "flat": [3] * 20, "label": [7, -2] * 10}
    data = tabular.load(save(tmp_path, columns), "label")
    assert np.array_equal(data.train.y, data.train.x[:, 0])  # a is 7, which comes second, b is -2
    assert (data.mean[2], data.std[2]) == (3.0, 1.0)
    assert data.train.group is None


BAD_TABLES: dict[str, tuple[dict[str, Any], str, str]] = {  # code: (columns, label, what the message must say)
    "unknown-column": (TABLE, "outcom", "did you mean 'outcome'?"),
    "missing-values": (
        {**TABLE, "age": [None, 40, None, 60] * 5},
        "outcome",
        "column age is missing, NaN or infinite in 10 rows",
    ),
    "one-class": ({**TABLE, "outcome": ["yes"] * 20}, "outcome", "the same outcome"),
    "no-features": ({"outcome": ["yes", "no"] * 10}, "outcome", "no column is left"),
    "bad-label-type": (TABLE, "income", "label column income has type double"),
    "too-many-levels": (
        {"id": [f"p{i}" for i in range(65)], "y": [0, 1, 2, 3, 4] * 13},
        "y",
        "column id has 65 different strings",
    ),
    "empty-table": ({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}, "y", "holds no rows"),
    "unsupported-column-type": ({"a": [[1], [2]] * 5, "y": [0, 1] * 5}, "y", "column a has type list"),
}


@pytest.mark.parametrize("code", BAD_TABLES)
def test_bad_tables_are_refused_each_with_its_own_code(code: str, tmp_path: Path) -> None:
    columns, label, said = BAD_TABLES[code]
    error = refused(lambda: tabular.load(save(tmp_path, columns), label))
    assert error.code == code
    assert said in str(error)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_must_be_finite(bad: float, tmp_path: Path) -> None:
    file = save(tmp_path, {"a": [1.0, bad, 2.0, 3.0] * 5, "y": [0, 1] * 10})
    assert "in 5 rows" in str(refused(lambda: tabular.load(file, "y")))


@pytest.mark.parametrize("column", ["age", "colour", "outcome", "site"])
def test_an_empty_cell_of_a_csv_file_is_a_missing_value(column: str, tmp_path: Path) -> None:
    rows = [",".join(TABLE), *(",".join(map(str, row)) for row in zip(*TABLE.values(), strict=True))]
    cells = rows[4].split(",")
    cells[list(TABLE).index(column)] = ""
    file = tmp_path / "people.csv"
    file.write_text("\n".join([*rows[:4], ",".join(cells), *rows[5:]]))
    error = refused(lambda: tabular.load(file, "outcome", group="site"))
    assert (error.code, f"column {column} " in str(error)) == ("missing-values", True)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    assert refused(lambda: tabular.load(tmp_path / "a.csv", "y")).code == "missing-file"
    assert refused(lambda: tabular.load(tmp_path / "a.xlsx", "y")).code == "unknown-table-format"
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    assert refused(lambda: tabular.load(tmp_path / "b.parquet", "y")).code == "corrupt-table"
    (tmp_path / "c.csv").write_text("a,y\n1,2\n1,2,3\n")
    assert refused(lambda: tabular.load(tmp_path / "c.csv", "y")).code == "corrupt-table"
    (tmp_path / "d.csv").write_text("a,a,y\n1,2,3\n")
    assert refused(lambda: tabular.load(tmp_path / "d.csv", "y")).code == "repeated-column-name"


# ---- quadratics


def fedavg_fixed_point(data: Dataset, steps: int, lr: float) -> Array:
    """Full participation, `steps` gradient steps per round on loss(w; row) = 0.5 * sum(a * (w - b)^2)."""
    a, b = np.hsplit(data.train.x.astype(np.float64), 2)
    w = np.zeros(a.shape[1])
    for _ in range(2000):
        local = np.tile(w, (len(a), 1))
        for _ in range(steps):
            local -= lr * a * (local - b)
        w = local.mean(0)
    return w


def test_the_quadratic_optimum_has_no_gradient_and_fedavg_misses_it() -> None:
    data, optimum = quadratic.make(clients=6, dim=4, seed=3, examples=2)
    a, b = np.hsplit(data.train.x.astype(np.float64), 2)
    assert np.abs((a * (optimum - b)).mean(0)).max() < 1e-12
    assert a.min() >= 0.5
    assert a.max() <= 2
    assert (np.ptp(a, axis=0) > 0.1).all()
    assert np.abs(fedavg_fixed_point(data, 1, 0.1) - optimum).max() < 1e-9  # one step is gradient descent
    assert np.abs(fedavg_fixed_point(data, 50, 0.4) - b.mean(0)).max() < 1e-3  # many: the mean of the minimisers
    assert np.abs(b.mean(0) - optimum).max() > 0.01
    same, shared = quadratic.make(clients=6, dim=4, seed=3, heterogeneity=0.0)
    assert np.abs(fedavg_fixed_point(same, 50, 0.4) - shared).max() < 1e-6


def test_quadratic_rows_belong_to_their_clients_and_stay_as_they_are() -> None:
    data, _ = quadratic.make(clients=3, dim=2, examples=4)
    assert data.train.x.shape == (12, 4)
    assert data.train.group is not None
    assert data.train.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (data.classes, set(data.mean), set(data.std)) == (0, {0.0}, {1.0})
    assert not data.train.y.any()
    assert quadratic.make(3, 2)[0].fingerprint() != quadratic.make(3, 2, seed=1)[0].fingerprint()
    for bad in ({"clients": 0}, {"dim": 0}, {"examples": 0}, {"heterogeneity": float("nan")}):
        assert refused(lambda b=bad: quadratic.make(**{"clients": 2, "dim": 2, **b})).code == "bad-quadratic"  # type: ignore[misc]
