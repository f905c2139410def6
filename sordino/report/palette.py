"""Colours and dashes of lines on pages and in figures. Colour-blind readers can tell them apart, on light paper and on
dark, and no line differs by its colour alone.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#fbfaf7", "card": "#ffffff", "ink": "#1c2127", "soft": "#5b6570", "line": "#dedad1",
    "good": "#1f7a4d", "mild": "#8a5a00", "warn": "#b3261e",
    "c0": "#0b66a3", "c1": "#c9550a", "c2": "#2f9480", "c3": "#4f2bc8", "c4": "#5e2a1a", "c5": "#59636e",
}  # fmt: skip
DARK = {
    "paper": "#14171b", "card": "#1c2025", "ink": "#e9e6df", "soft": "#a7adb5", "line": "#343a42",
    "good": "#7fd1a0", "mild": "#f0b35a", "warn": "#ff8a80",
    "c0": "#6cb2ea", "c1": "#f0854a", "c2": "#81ead5", "c3": "#9a72ff", "c4": "#ffd326", "c5": "#7c8793",
}  # fmt: skip
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (10, 3, 2, 3), (14, 4), (5, 2))


def dashes(i: int) -> tuple[int, ...]:
    """Dash pattern of the i-th line: no pair of colour and dashes is repeated before all pairs have been used."""
    return DASHES[(i + i // len(SERIES)) % len(DASHES)]


def look(i: int | None) -> dict[str, str]:
    """SVG attributes of the i-th line; with None, of a line that proves nothing."""
    colour = "warn" if i is None else SERIES[i % len(SERIES)]
    dash = " ".join(map(str, (2, 6) if i is None else dashes(i))) or "none"
    return {"stroke": f"var(--{colour})", "stroke_dasharray": dash, "stroke_width": "2", "fill": "none"}


def css() -> str:
    """CSS custom properties of the light and the dark theme; the reader's system chooses one."""
    light, dark = ("".join(f"--{name}: {value}; " for name, value in theme.items()) for theme in (LIGHT, DARK))
    return f":root {{ color-scheme: light dark; {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}"
