"""Checkpoints that were saved, and what is asked of a process that saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.engine.checkpoint import Loaded, digest_trees, save
from sordino.errors import RunError
from tests.engine.checkpoint_workers import meta, state

Ask = Callable[..., str]


def saved(directory: Path, *steps: int) -> Path:
    for step in steps:
        save(directory, step, state(step), meta(step))
    return directory


def is_state(found: Loaded | None) -> bool:
    """Whether this is exactly some round's state, nothing mixed, nothing lost."""
    return (
        found is not None
        and digest_trees(found.trees) == digest_trees(state(found.step))
        and list(found.trees) == list(state(found.step))
        and found.meta == meta(found.step)
    )


def refusal(call: Callable[[], object]) -> RunError:
    with pytest.raises(RunError) as refused:
        call()
    return refused.value
