"""A run folder of somebody else: whatever its words and numbers are, they are printed as they are, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino.runs.run import start
from tests.helpers.command_line import Said
from tests.laws.cases import BY_NAME

EVIL = "evil[/x][conceal]"  # a style that ends nothing, and one that hides what follows
HOSTILE = f"\x1b[2J\u202e{EVIL}\x9b8m"
VALUES: dict[type, object] = {str: HOSTILE, int: 10**400, float: 10**400}  # the number is no float
FILES = "privacy.json", "environment.json", "agreement.json", "metrics.jsonl", "model.json"
COMMANDS = ("show",), ("privacy", "verify"), ("privacy", "spent", "--by-client"), ("watch", "--once"), ("report",)
CASES = "pdp_prox_bounds", "slaug_fl_rigorous_b"


def visible(words: str) -> bool:
    return words.replace("\n", "").isprintable()


def forged(held: Any, put: Callable[[Any], None], at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Puts a hostile value in place of one text or number of a JSON value after the other."""
    entries = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
    for key, value in list(entries):

        def inner(new: Any, key: Any = key) -> None:
            held[key] = new

        yield from forged(value, inner, (*at, key))
    if type(held) in VALUES:
        put(VALUES[type(held)])
        yield at
        put(held)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_word_of_a_folder_moves_the_cursor_or_ends_in_a_traceback(
    name: str, cli: Callable[..., Said], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "theirs"
    start(BY_NAME[name].experiment(), folder)
    seen: set[object] = set()
    wrong: list[object] = []
    told = 0
    for file in FILES:
        place = folder / file
        if not place.exists():
            continue
        kept = place.read_text()
        rows = [json.loads(line) for line in kept.splitlines()] if file.endswith("l") else [json.loads(kept)]
        for at in forged(rows, lambda new: None):
            if (kind := (file, *(one for one in at if not isinstance(one, int)))) in seen:
                continue
            seen.add(kind)
            place.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            for command in (*COMMANDS, ("list",)):
                try:
                    said = cli(*command, folder if command != ("list",) else folder.parent)
                except Exception as error:
                    wrong.append((kind, command, error))
                    continue
                words = said.out + said.err
                told += "evil" in words
                if not visible(words) or words.count("evil") != words.count(EVIL):
                    wrong.append((kind, command, said))
        place.write_text(kept)
    assert not wrong
    assert told > 25
