"""Write visits.csv: the breast-cancer table that ships with scikit-learn, its rows dealt to eight clinics of different size."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer


def main(folder: Path) -> None:
    table = load_breast_cancer()
    clinics = np.random.default_rng(0).choice(8, size=len(table.target), p=np.arange(1, 9) / 36)
    with open(folder / "visits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace(" ", "_") for name in table.feature_names), "clinic", "outcome"])
        for row, clinic, outcome in zip(table.data, clinics, table.target, strict=True):
            writer.writerow([*row, f"clinic-{clinic}", table.target_names[outcome]])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
