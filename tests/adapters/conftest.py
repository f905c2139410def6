"""What tests of adapters may ask for."""

from __future__ import annotations

import pytest
import torch

from sordino.privacy.noise.sources import SystemNoise


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Noise of size zero; its planned deviations, in the order in which it was drawn."""
    drawn: list[float] = []

    def noisy(self: SystemNoise, law: object, values: torch.Tensor, scale: float) -> torch.Tensor:
        drawn.append(scale)
        return values.double()

    monkeypatch.setattr(SystemNoise, "noisy", noisy)
    return drawn
