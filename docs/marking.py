"""Pieces of Markdown, and what docstrings say in it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any


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


def prose(text: str) -> str:
    """A docstring as Markdown: indented passages are code, the rest is plain words."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        aligned = any(line.startswith("  ") for line in block.splitlines()) or "   " in block
        blocks.append(code(textwrap.dedent(block), "text") if aligned else plain(block))
    return joined(*blocks).strip()


def plain(text: str) -> str:
    """Words as they are: what Markdown would take for markup is escaped, except inside backticks."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else re.sub(r"([\\*_<>\[\]#])", r"\\\1", p) for p in pieces)


def first_line(text: str) -> str:
    return plain(inspect.cleandoc(text).split("\n\n")[0])


def own_doc(made: Any) -> str:
    """A docstring that somebody wrote: dataclasses and named tuples invent theirs."""
    text = (made.__dict__.get("__doc__") if inspect.isclass(made) else made.__doc__) or ""
    return "" if text.startswith(f"{getattr(made, '__name__', '')}(") else inspect.cleandoc(text)
