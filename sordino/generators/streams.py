"""Long vectors of random numbers on any device, from one key."""

from __future__ import annotations

import torch

from sordino import keys


def stream(key: keys.Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of random numbers that the key seeds. An accelerator has its own: other numbers than a processor
    draws, the same ones every time.
    """
    if torch.device(device).type == "cpu":
        return keys.generator(key)
    return torch.Generator(device).manual_seed(keys.word(key) >> 1)
