"""Prompts: what is read out of a language model's answer, and the sources that need none."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.data.dataset import ImageNeeds
from sordino.errors import ConfigError, DataError
from sordino.synthesis.public_images import PROMPTS
from sordino.synthesis.public_images.prompts import chosen
from sordino.synthesis.public_images.prompts.chat import IDLE, Reply, Turn, converse, is_refusal, parse
from sordino.synthesis.public_images.prompts.texts import SYNONYMS

CLASSES = (*SYNONYMS, "7", "pickup_truck", "non-motorized vehicle")
TWO = ["a red cat on a roof", "a cat asleep"]

REPLIES = {
    "JSON": json.dumps(TWO),
    "JSON in a fence": f"Here you are:\n```json\n{json.dumps(TWO, indent=2)}\n```\nShall I continue?",
    "JSON of objects": json.dumps([{"id": 1, "prompt": TWO[0]}, {"id": 2, "prompt": TWO[1]}]),
    "JSON within an object": json.dumps({"prompts": TWO}),
    "numbered": "Sure!\n1. a red cat on a roof\n2. a cat asleep\n\nThat is all.",
    "numbered, otherwise": "1) A red cat on a roof\n(2) a cat asleep".replace("A red", "a red"),
    "numbered and bold": '1. **a red cat on a roof**\n2. "a cat asleep"',
    "bulleted": "- a red cat on a roof\n* a cat asleep",
    "bulleted, otherwise": "\u2022 a red cat on a roof\n\u2022 a cat asleep",
    "JSON cut off": '["a red cat on a roof", "a cat asleep", "a black c',
    "JSON of objects cut off": '[{"style": "photo", "prompt": "a red cat on a roof"}, {"prompt": "a cat asleep"}, {"prom',
    "thought first": '<think>\n1. what is asked?\n</think>\n["a red cat on a roof", "a cat asleep"]',
    "twice the same": '["a red cat on a roof", "A Red Cat On A Roof", " a cat asleep,"]',
    "escapes": '["a red cat on a roof", "a cat\\u0020asleep"]',
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
def test_prompts_are_found_in_every_form_of_answer(reply: str) -> None:
    assert parse(reply) == TWO


@pytest.mark.parametrize(
    "reply", ["", "I like cats.", "{}", "[]", "[1, 2]", "<html><body>error</body></html>", "[" * 5000, '["' * 3000]
)
def test_what_is_no_list_gives_nothing(reply: str) -> None:
    assert parse(reply) == []


@pytest.mark.slow
@given(
    st.lists(st.text(string.ascii_lowercase + ' "\\\n[]{}:', min_size=3, max_size=20), max_size=6),
    st.integers(0, 200),
    st.sampled_from([None, 1]),
)
def test_a_list_cut_anywhere_gives_its_beginning(texts: list[str], cut: int, indent: int | None) -> None:
    whole = json.dumps([f"x{text}x" for text in texts], indent=indent)
    found = parse(whole[:cut])
    assert found == parse(whole)[: len(found)]
    finished = sum(
        len(json.dumps([f"x{t}x" for t in texts[: n + 1]], indent=indent)) - 1 - bool(indent) <= cut
        for n in range(len(texts))
    )
    assert len(found) >= len(parse(json.dumps([f"x{text}x" for text in texts[:finished]])))


def test_a_refusal_is_told_from_an_answer() -> None:
    assert is_refusal("I'm sorry, but I can't help with that.")
    assert is_refusal("I cannot describe this.")
    assert not is_refusal("Sorry for the wait!\n1. a red cat\n2. a cat asleep")
    assert not is_refusal('["I cannot believe it is a cat"]')


@pytest.mark.one_fast
@pytest.mark.parametrize("name", CLASSES)
def test_the_grammar_has_thousands_of_different_prompts_that_name_the_class(
    name: str, wanted: Callable[..., ImageNeeds]
) -> None:
    asked = wanted(classes=CLASSES)
    made = PROMPTS["template"]().prompts(name, 2000, asked)
    assert len({text.casefold() for text in made.texts}) == 2000
    assert made.by == {"template": 2000}
    words = SYNONYMS.get(name, (name.replace("_", " "),))
    assert all(any(word in text for word in words) for text in made.texts)
    assert made == PROMPTS["template"]().prompts(name, 2000, asked)
    assert made != PROMPTS["template"]().prompts(name, 2000, wanted(classes=CLASSES, key=asked.key + 1))


def test_more_prompts_than_the_grammar_has_are_refused(wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(ConfigError) as refused:
        PROMPTS["template"]().prompts("cat", 10**6, wanted())
    assert refused.value.code == "too-few-prompts"


def test_files_are_read_as_text_and_as_lines_of_json(tmp_path: Path, wanted: Callable[..., ImageNeeds]) -> None:
    (tmp_path / "cat.txt").write_text("a cat\n\n  a black cat  \nA CAT\n")
    (tmp_path / "1.jsonl").write_text('"a dog"\n{"prompt": "a brown dog", "by": "me"}\n')
    source = PROMPTS["file"](str(tmp_path))
    assert source.prompts("cat", 2, wanted()).texts == ("a cat", "a black cat")
    several = source.prompts("dog", 5, wanted())
    assert several.texts == ("a dog", "a brown dog", "a dog", "a brown dog", "a dog")
    assert several.by == {"file": 2, "file, again": 3}


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("horse.txt", b"a horse", "no-prompt-file"),
        ("cat.txt", b"\n \n", "bad-prompt-file"),
        ("cat.txt", b"\xff\xfe\xff", "bad-prompt-file"),
        ("cat.jsonl", b'{"text": "a cat"}', "bad-prompt-file"),
        ("cat.jsonl", b"a cat", "bad-prompt-file"),
    ],
)
def test_a_bad_file_of_prompts_is_named(
    name: str, content: bytes, code: str, tmp_path: Path, wanted: Callable[..., ImageNeeds]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=str(tmp_path)) as refused:
        PROMPTS["file"](str(tmp_path)).prompts("cat", 2, wanted())
    assert refused.value.code == code


def test_the_bare_name_is_the_same_for_every_image(wanted: Callable[..., ImageNeeds]) -> None:
    made = chosen({"name": "label_only"}).prompts("pickup_truck", 3, wanted())
    assert made.texts == ("pickup truck",) * 3


def talk(
    replies: list[str], count: int, wanted: ImageNeeds
) -> tuple[tuple[str, ...], dict[str, int], list[list[Turn]]]:
    heard: list[list[Turn]] = []

    def say(dialogue: list[Turn]) -> Reply:
        heard.append(list(dialogue))
        return Reply(replies[min(len(heard), len(replies)) - 1])

    made = converse("model", "cat", count, 50, say, wanted)
    assert made.calls == len(heard)
    return made.texts, made.by, heard


def test_a_model_that_runs_dry_is_asked_three_times_more_and_then_helped_out(
    wanted: Callable[..., ImageNeeds],
) -> None:
    texts, by, heard = talk(['["a red cat", "a cat asleep"]', "[]", '["A RED CAT"]'], 10, wanted())
    assert len(heard) == 1 + IDLE
    assert by == {"model": 2, "template": 8}
    assert texts[:2] == ("a red cat", "a cat asleep")
    assert len({text.casefold() for text in texts}) == 10


def test_a_pause_in_between_is_forgiven(wanted: Callable[..., ImageNeeds]) -> None:
    texts, by, heard = talk(["[]", '["cat one"]', "[]", "[]", '["cat two"]'], 2, wanted())
    assert (texts, by, len(heard)) == (("cat one", "cat two"), {"model": 2}, 5)


def test_prompts_that_the_grammar_would_also_write_are_not_counted_twice(wanted: Callable[..., ImageNeeds]) -> None:
    grammar = PROMPTS["template"]().prompts("cat", 5, wanted()).texts
    texts, by, _ = talk([json.dumps(grammar[:3])], 5, wanted())
    assert sorted(texts) == sorted(grammar)
    assert by == {"model": 3, "template": 2}
