"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A column in which nothing stands is left out."""
    names, *body = [list(head), *map(list, rows)]
    used = [i for i in range(len(names)) if any(row[i] for row in body)]
    lines = [[row[i] for i in used] for row in (names, ["---"] * len(names), *body)]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def toctree(names: Iterable[str], hidden: bool = False) -> str:
    return "\n".join(["```{toctree}", *([":hidden:", ""] if hidden else []), *names, "```"])


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.strip()}\n```"
