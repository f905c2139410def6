"""Long vectors of random numbers on any device, from one key."""

from __future__ import annotations

import torch

from sordino import keys


def stream(key: keys.Key, device: torch.device | str = "cpu") -> torch.Generator:
    """On an accelerator its own generator, seeded by the key: other numbers than a processor draws, the same ones every
    time.
    """
    if torch.device(device).type == "cpu":
        return keys.generator(key)
    return torch.Generator(device).manual_seed(keys.word(key) >> 1)
