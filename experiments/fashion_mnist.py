"""Fashion-MNIST as the parquet files that `data.source = "images"` reads: python experiments/fashion_mnist.py FROM TO

FROM holds the four idx files, packed or not, as Debian's package `dataset-fashion-mnist` installs them; TO is made,
with train.parquet and test.parquet in the form of the Hugging Face hub.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LABEL = {"names": CLASSES, "_type": "ClassLabel"}  # as the hub says what the numbers mean
PARTS = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 8  # the only kind of number that these files hold


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    source, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True)
    for name, part in PARTS.items():
        images, labels = (idx(source / f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        if len(images) != len(labels) or labels.max() >= len(CLASSES):
            raise ValueError(f"{source}: {len(images)} images and {len(labels)} labels of {part} do not fit each other")
        column = [{"bytes": png(image), "path": None} for image in images]
        kinds = {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()}
        schema = pa.schema(kinds, metadata={"huggingface": json.dumps({"info": {"features": {"label": LABEL}}})})
        pq.write_table(pa.table({"image": column, "label": labels}, schema=schema), target / f"{name}.parquet")
        print(f"{target / name}.parquet: {len(labels)} images")
    return 0


def idx(file: Path) -> NDArray[np.uint8]:
    """The array of an idx file, which may be packed."""
    packed = file.with_name(f"{file.name}.gz")
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else file.read_bytes()
    if data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTES:
        raise ValueError(f"{file} is no idx file of bytes")
    sides = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + sides.nbytes).reshape(sides.astype(int))


def png(image: NDArray[np.uint8]) -> bytes:
    made = io.BytesIO()
    Image.fromarray(image).save(made, "png")
    return made.getvalue()


if __name__ == "__main__":
    sys.exit(main())
