"""What a network draws from torch's own generator, such as the dropout inside an attention or a recurrent layer: it
follows from the keys of the examples, so the same is drawn in another process and after a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from sordino import keys
from sordino.device import drawing

if TYPE_CHECKING:
    from torch import Tensor


def draws(passing: Callable[[], object]) -> bool:
    """Does this pass move torch's generator?"""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), drawing():
        before = torch.get_rng_state()
        passing()
        return not torch.equal(before, torch.get_rng_state())


@contextmanager
def seeded(drawn: Tensor) -> Iterator[None]:
    """Torch's generator, seeded by the keys of all examples together; nobody else's draws are moved."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.as_tensor(keys.fold(drawn, "own draws")).sum()))
        with drawing():
            yield
