"""HTML that is written here, where no script may run: everything is text, unless it is made by these functions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already."""


def tag(name: str, *inside: str | int, **attributes: str) -> Html:
    """An element. What is inside is text, and shown as it is, unless it is HTML already."""
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{said}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str | int]) -> Html:
    return Html("".join(part if isinstance(part, Html) else html.escape(str(part)) for part in parts))


def listed(lines: Iterable[str], **attributes: str) -> Html:
    return tag("ul", *(tag("li", line) for line in lines), **attributes)


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]], **attributes: str) -> Html:
    """The first of a row names it."""
    top = tag("tr", *(tag("th", name, scope="col") for name in columns))
    lines = [
        tag("tr", *(tag("td", value) if i else tag("th", value, scope="row") for i, value in enumerate(row)))
        for row in rows
    ]
    return tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *lines), **attributes)
