"""How much of each layer is kept, from the layers' norms (Li, Xiao and Chen 2024, algorithm 2).

The published rule is V-shaped in a layer's share of the whole norm: small layers are kept at the largest rate, though the text wants to compress them hard.
`monotone` does what the text says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from sordino.errors import ConfigError

Rule = Literal["published", "monotone"]
Share = Literal["norm_of_whole", "sum_of_norms"]


def rate(share: float, most: float = 0.5, least: float = 0.2, rule: Rule = "published") -> float:
    """Of a layer with this share; in tenths. Rounding is Python's, half to even on the binary number, as published."""
    if not 0 < least <= most <= 1:
        raise ConfigError(
            f"compression rates between {least} and {most}",
            why="they are shares that are kept, the least not above the most",
            fix="for instance least = 0.2, most = 0.5",
            code="rate-out-of-range",
        )
    if rule == "monotone":
        found = round(share, 1)
    elif share < least:
        found = round(most - round(share, 2), 1)
    else:
        found = min(round(share, 1), most)
    return min(max(found, least), most)


def rates(
    norms: Mapping[str, float],
    most: float = 0.5,
    least: float = 0.2,
    rule: Rule = "published",
    share: Share = "norm_of_whole",
) -> dict[str, float]:
    """Of every layer; all at the most where there is nothing to compare."""
    whole = math.fsum(norms.values()) if share == "sum_of_norms" else math.hypot(*norms.values())
    return {name: rate(norm / whole, most, least, rule) if whole else most for name, norm in norms.items()}
