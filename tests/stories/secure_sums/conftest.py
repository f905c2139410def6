"""One key of every kind for all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sordino.secagg import encrypted
from tests.stories.secure_sums.sums import key_for_tests

FRESH = dict(encrypted.GENERATE)


@cache
def lattice_key(scheme: str) -> Any:
    return FRESH[scheme](None)  # type: ignore[arg-type]  # a stage says nothing about its keys


@pytest.fixture(autouse=True)
def one_test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for tests and their tables are made once; keys of full length in every run."""

    def paillier(stage: Any) -> Any:
        return key_for_tests() if stage.testing else FRESH["paillier"](stage)

    monkeypatch.setitem(encrypted.GENERATE, "paillier", paillier)
    for scheme in ("bfv", "ckks"):
        monkeypatch.setitem(encrypted.GENERATE, scheme, lambda _, scheme=scheme: lattice_key(scheme))
