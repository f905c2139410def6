"""HTML elements that pages are made of, and PNG images in them (W3C recommendation, 2003), written with the standard
library. Text that these functions did not make is escaped.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

Row = Sequence[str | int]


class Html(str):
    """Text that is HTML already."""


def tag(name: str, /, *inside: str | int, **attributes: str) -> Html:
    """One HTML element with its attributes; void elements, such as `img`, have no content."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_quoted(value)}"' for key, value in attributes.items())
    return Html(
        f"<{name}{written}>" if name in ("img", "meta", "link") else f"<{name}{written}>{joined(inside)}</{name}>"
    )


def _quoted(value: str) -> str:
    return html.escape(value, quote=False).replace('"', "&quot;")


def joined(parts: Iterable[str | int]) -> Html:
    return Html("".join(part if isinstance(part, Html) else html.escape(str(part), quote=False) for part in parts))


def listed(lines: Sequence[str], **attributes: str) -> Html:
    """An unordered list; nothing where there are no lines."""
    return tag("ul", *(tag("li", line) for line in lines), **attributes) if lines else Html("")


def section(title: str, *inside: str, **attributes: str) -> Html:
    """A section with its heading; nothing where nothing is inside."""
    return tag("section", tag("h2", title), *inside, **attributes) if any(inside) else Html("")


def note(text: str) -> Html:
    return tag("p", text, class_="note") if text else Html("")


def cards(shown: Iterable[tuple[str, str, str]]) -> Html:
    """Headline numbers: each a name, a value, and a small remark."""
    return joined(
        tag("div", tag("dt", name), tag("dd", value, tag("small", small) if small else ""))
        for name, value, small in shown
    )


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    words: Sequence[str] = (),
    placed: bool = False,
    **attributes: str,
) -> Html:
    """HTML table; the first cell of a row is its header. `words`: columns that hold sentences. `placed`: each row
    begins with its position in a picture, which becomes an attribute.
    """
    kind = [{"class_": "words"} if name in words else {} for name in columns]
    top = tag("tr", *(tag("th", name, scope="col", **of) for name, of in zip(columns, kind, strict=True)))
    lines = []
    for row in rows:
        place, cells = ({"data_at": str(row[0])}, row[1:]) if placed else ({}, row)
        first, *others = zip(cells, kind, strict=True)
        lines.append(
            tag("tr", tag("th", first[0], scope="row"), *(tag("td", cell, **of) for cell, of in others), **place)
        )
    return tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *lines), **attributes)


def scrolled(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    words: Sequence[str] = (),
    placed: bool = False,
    whole: bool = False,
) -> Html:
    """A table in a frame that scrolls sideways, and down too unless it is shown `whole`."""
    made = table(caption, columns, rows, words, placed, class_="wide")
    return tag(
        "div", made, class_="scroll whole" if whole else "scroll", tabindex="0", role="region", aria_label=caption
    )


def folded(title: str, *inside: str) -> Html:
    """A part of a page that can be folded. A script folds it at first; without scripts nothing is hidden."""
    return tag("details", tag("summary", title), *inside, open="")


def saved(name: str, text: str) -> Html:
    """A link that saves a text as a file."""
    return tag("a", f"Save as {name}", download=name, href=f"data:text/plain;charset=utf-8,{quote(text)}")


Pixels: TypeAlias = NDArray[np.uint8]
FRAME = (224, 72, 62, 255)  # around what is wrong: seen on white paper and on black


def strip(images: Pixels, framed: Sequence[bool] = ()) -> str:
    """Images [n, h, w, 1 or 3] side by side on a transparent ground, some of them framed, as a data URI."""
    count, height, width, _ = images.shape
    gap = 1 if width <= 16 else 2  # around each, in which a frame lies; small images are shown larger
    sheet = np.zeros((height + 2 * gap, count * (width + 2 * gap), 4), np.uint8)
    for i, image in enumerate(images):
        cell = sheet[:, i * (width + 2 * gap) : (i + 1) * (width + 2 * gap)]
        if i < len(framed) and framed[i]:
            cell[:] = FRAME
        cell[gap:-gap, gap:-gap, :3] = image
        cell[gap:-gap, gap:-gap, 3] = 255
    return f"data:image/png;base64,{base64.b64encode(png(sheet)).decode()}"


def png(pixels: Pixels) -> bytes:
    """PNG file of red, green, blue and opacity [h, w, 4]; a pixel is stored as its difference from the one before."""
    height, width, _ = pixels.shape
    before = np.pad(pixels, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    rows = np.concatenate([np.ones((height, 1), np.uint8), (pixels - before).reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
