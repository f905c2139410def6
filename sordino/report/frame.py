"""The frame of every page: head, content security policy, style, script, and the parts that all pages share."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from sordino.accounting.words import Described, epsilon_text
from sordino.report import palette
from sordino.results.markup import Html, joined, tag

SELF_CONTAINED = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, head: Sequence[Html], body: Sequence[str], *scripts: Html, **main: str) -> str:
    """One whole HTML document. `main`: attributes of its <main> element."""
    top = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *head,
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
    )
    whole = tag("html", tag("head", *top), tag("body", tag("main", *body, id="main", **main), *scripts), lang="en")
    return f"<!doctype html>\n{whole}\n"


def self_contained(title: str, *body: str) -> str:
    """A page that is opened from disk and loads nothing: style and script are part of it."""
    policy = tag("meta", http_equiv="Content-Security-Policy", content=SELF_CONTAINED)
    head = (policy, tag("meta", name="color-scheme", content="light dark"), tag("style", style()))
    return document(title, head, body, tag("script", source("page.js")))


def style() -> Html:
    return Html(f"{palette.css()}\n{source('page.css')}")


def source(*names: str) -> Html:
    """The text of these files of `report/web`, one after another."""
    place = files("sordino.report").joinpath("web")
    return Html("\n".join(place.joinpath(name).read_text(encoding="utf-8") for name in names))


def top(title: str, lead: str, *notices: str) -> Html:
    """Title, summary, and the notices that must not be overlooked."""
    said = [tag("p", notice, class_="notice") for notice in notices if notice]
    return joined([tag("h1", title), tag("p", lead, class_="lead"), *said])


def promises(rows: Sequence[Described]) -> Html:
    """Privacy guarantees, each in a box: badges, words, and what an attacker who is 1% sure can come to believe."""
    boxes = (
        tag(
            "li",
            *_badges(row),
            row.words,
            tag("p", row.belief, class_="belief"),
            class_=f"{row.status} {row.grade}".strip(),
        )
        for row in rows
    )
    return tag("ul", *boxes, class_="promises")


def _badges(row: Described) -> Sequence[Html]:
    said = f"ε {epsilon_text(row.epsilon)}"
    if row.nominal_epsilon is not None:
        printed = f"nominal ε {epsilon_text(row.nominal_epsilon)}: proves nothing"
        first = tag("span", printed, class_="badge unproved")
        return first, tag("span", f"holds: {said}, {row.strength}", class_="badge")
    strength = row.strength if row.status == "none" else f"{row.standing}, {row.strength}"
    return tag("span", said, class_="badge"), tag("span", strength, class_="badge")
