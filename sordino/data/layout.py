"""Where the parquet files of an image data set are, on this disk or on the Hugging Face hub.

A directory holds train*.parquet and test*.parquet (or its only such subdirectory does, as in data/), in one
or several shards: train-00000-of-00002.parquet. Nothing is downloaded unless asked for.
"""

from __future__ import annotations

import re
from pathlib import Path

from sordino.errors import DataError


def folder(path: str | Path, allow_download: bool = False) -> Path:
    """The directory that holds train*.parquet: the path itself, or the only one in it that does."""
    root = _root(path, allow_download)
    places = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
    holding = [place for place in places if any(place.glob("train*.parquet"))]
    if not holding:
        raise DataError(
            f"{root} has no training file",
            why="there is no train*.parquet in it, nor in a folder inside it",
            fix="name the training file train.parquet or train-00000-of-00001.parquet",
            code="missing-train-split",
        )
    if len(holding) > 1 and holding[0] != root:
        raise DataError(
            f"{root} holds several data sets: {', '.join(place.name for place in holding)}",
            why="a run uses one data set",
            fix="give the path of one of them",
            code="several-data-sets",
        )
    return holding[0]


def shards(place: Path, split: str) -> list[Path]:
    """The files of one split in order, of which none is missing."""
    files = sorted(place.glob(f"{split}*.parquet"))
    if not files:
        raise DataError(
            f"{place} has no {split} file",
            why=f"there is no {split}*.parquet beside the training files",
            fix="add one; sordino does not make a test set out of the training images by itself",
            code=f"missing-{split}-split",
        )
    numbered = [m for file in files if (m := re.search(r"-(\d+)-of-(\d+)\.parquet$", file.name))]
    expected = max((int(m[2]) for m in numbered), default=0)
    if numbered and {int(m[1]) for m in numbered} != set(range(expected)):
        raise DataError(
            f"{place} has {len(numbered)} of {expected} {split} files",
            why="the numbers in the file names have gaps",
            fix="complete the download",
            code="missing-shard",
        )
    return files


def _root(path: str | Path, allow_download: bool) -> Path:
    root = Path(path).expanduser()
    if root.is_dir():
        return root
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)):
        raise DataError(
            f"there is no directory {path}",
            fix="give a directory that holds train*.parquet and test*.parquet",
            code="missing-directory",
        )
    if not allow_download:
        raise DataError(
            f"there is no directory {path}",
            why="it could be the id of a data set on the hub, but downloads are off",
            fix="give a local directory, or set data.download=true and run: pip install 'sordino[hub]'",
            code="download-not-allowed",
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(
            f"cannot download {path}",
            why="huggingface_hub is not installed",
            fix="pip install sordino[hub]",
            code="missing-hub-extra",
        ) from error
    try:
        return Path(snapshot_download(str(path), repo_type="dataset", allow_patterns=["*.parquet"]))
    except (OSError, ValueError) as error:  # the hub's errors derive from these
        raise DataError(
            f"cannot download {path}",
            why=str(error),
            fix="check the id and your connection, or give a local directory",
            code="download-failed",
        ) from error
