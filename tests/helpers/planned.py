"""Experiments that are planned and played."""

from __future__ import annotations

from typing import Any

Table = dict[str, Any]


CLIP, WEIGH, NOISE = {"name": "clip", "radius": 2.0}, {"name": "weigh"}, {"name": "noise"}
