"""Nothing but the declared arrays passes an adapter."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sordino.adapters.private_uplink import DeclaredArrays
from sordino.errors import SordinoError
from tests.adapters.malformed import MODEL, files, malformed, npy

DECLARED = DeclaredArrays(MODEL)


def refusals(read: Callable[[Any], object], sent: list[Any]) -> list[str]:
    """The codes of refusals; empty for what was let through."""
    found = []
    for one in sent:
        try:
            read(one)
        except SordinoError as error:
            found.append(error.code)
        else:
            found.append("")
    return found


def test_a_thousand_malformed_models_are_a_thousand_refusals() -> None:
    assert refusals(DECLARED.from_npy, list(malformed(1_000))) == ["array-not-declared"] * 1_000


def test_a_model_as_declared_passes() -> None:
    """The control: else all could be refused for another reason."""
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    for sent in (w, np.asfortranarray(w)):
        read = DECLARED.from_npy(files(w=sent))
        assert np.array_equal(read["w"], w)
    assert [*read] == [*MODEL]
    assert DECLARED.coordinates == 8


def test_a_header_takes_no_memory() -> None:
    huge = {
        **files(),
        "w": npy(MODEL["w"]).replace(b"'shape': (3, 2), }", b"'shape': (99999999999,)}")[: len(npy(MODEL["w"]))],
    }
    tracemalloc.start()
    assert refusals(DECLARED.from_npy, [huge]) == ["array-not-declared"]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


class Subclass(np.ndarray):  # type: ignore[type-arg]
    """An array whose methods are somebody else's."""


STRANGE: list[Any] = [
    None,
    [],
    list(MODEL.items()),
    {**MODEL, "w": MODEL["w"].tolist()},
    {**MODEL, "w": MODEL["w"].view(Subclass)},
    {**MODEL, "w": torch.zeros(3, 2)},
    {**MODEL, "w": MODEL["w"].astype(np.float64)},
    {**MODEL, "w": MODEL["w"].T},
    {**MODEL, "w": np.array(MODEL["w"], dtype=object)},
    {"w": MODEL["w"]},
    {**MODEL, "loss": np.zeros((), np.float32)},
]


def test_objects_that_are_no_declared_arrays_are_refused() -> None:
    assert refusals(DECLARED.checked, STRANGE) == ["array-not-declared"] * len(STRANGE)
    assert refusals(DECLARED.checked, [MODEL]) == [""]


# a float16 that is clipped to 1 may be 1.001 long
@pytest.mark.parametrize(
    "model",
    [{}, {"steps": np.zeros((), np.int64)}, {"w": np.zeros(2, np.longdouble)}, {"w": np.zeros(2, np.float16)}],
)
def test_only_arrays_of_real_numbers_can_be_declared(model: dict[str, Any]) -> None:
    with pytest.raises(SordinoError) as refusal:
        DeclaredArrays(model)
    assert refusal.value.code == "array-not-real"
    assert refusal.value.fix


def test_a_network_is_declared_by_its_state() -> None:
    net = torch.nn.Linear(2, 3)
    declared = DeclaredArrays(net.state_dict())
    before = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    after = {name: value + 1 for name, value in before.items()}
    change = declared.change(before, after)
    assert all(torch.allclose(leaf, torch.ones_like(leaf)) for leaf in change.values())
    moved = declared.moved(before, change)
    assert all(np.allclose(moved[name], after[name]) for name in after)
    assert {name: leaf.shape for name, leaf in declared.zero.items()} == {
        name: v.shape for name, v in net.state_dict().items()
    }
