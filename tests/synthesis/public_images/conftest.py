"""What is asked of sources in these tests, and a machine without a network."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from sordino import keys
from sordino.data.dataset import ImageNeeds


@pytest.fixture
def wanted() -> Callable[..., ImageNeeds]:
    def made(**changed: Any) -> ImageNeeds:
        plain: dict[str, Any] = {"classes": ("cat", "dog"), "per_class": 6, "shape": (16, 16, 3), "key": keys.root(3)}
        return ImageNeeds(**plain | changed)

    return made


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", opened)
    monkeypatch.setattr(socket, "getaddrinfo", opened)
