"""Zhao, Mopuri and Bilen, 2020 (arXiv 2001.02610).

Deviations: several images, whose labels are read off the last layer's biases together; the search is DLG's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino import keys
from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.matching import label_counts, labels_of, squared
from sordino.attacks.methods.dlg import DeepLeakage, best


@dataclass(frozen=True)
class ImprovedLeakage(DeepLeakage, name="idlg"):
    """Reads the labels off the last layer's gradient, and then moves images alone (iDLG)."""

    def draw(self, view: UpdateView) -> Tensor:
        labels, off = labels_of(label_counts(view), view.images), squared(view.gradient)
        return best([self.once(view, off, keys.fold(view.key, "idlg", i), labels) for i in range(self.starts)])
