"""An upload with a bound is dense before it is added: sums of factored uploads are float32 products of whole bunches of
clients, in which one client's huge rows that cancel could move what others add.
"""

from __future__ import annotations

import pytest
import torch

from sordino import tree
from sordino.fast.factored import ClientRows, Lazy, Span
from sordino.privacy.noise.sources import SystemNoise
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates
from sordino.privacy.uplink.stages import Clip, ClipLayers, Weigh
from sordino.types import Grant

CLIPPED = [
    (Clip(1.0),),
    (Clip(1.0, order=1),),
    (Clip(100.0),),  # longer than the upload
    (ClipLayers(1.0),),
    (ClipCoordinates(1.0),),
    (Clip(1.0), Weigh()),
]


def sent(stages: tuple[object, ...]) -> tree.Tree:
    draw = torch.Generator().manual_seed(0)
    rows, c = torch.randn(50, 7, generator=draw), torch.randn(50, 3, generator=draw)
    uplink = Uplink(client=stages)  # type: ignore[arg-type]
    uplink.bound(24)
    return uplink.encode(
        {"w": Span(ClientRows(rows), c), "b": torch.randn(3, generator=draw)}, Grant(0, 5, 10, SystemNoise())
    )


@pytest.mark.parametrize("stages", CLIPPED, ids=lambda stages: " ".join(map(str, stages)))
def test_what_is_clipped_is_dense(stages: tuple[object, ...]) -> None:
    upload = sent(stages)
    assert not any(isinstance(leaf, Lazy) for leaf in tree.leaves(upload))


def test_what_has_no_bound_may_stay_factored() -> None:
    """The control: without a clip it would be seen."""
    assert any(isinstance(leaf, Lazy) for leaf in tree.leaves(sent(())))
