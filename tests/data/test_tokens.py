"""Text read by a tokenizer, which no private text has trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sordino.data import schema
from sordino.data.columns import tokens
from sordino.data.schema import TextColumn, TokenColumn
from sordino.errors import DataError

NAMES = {"[UNK]": 0, "pain": 1, "fever": 2, "[CLS]": 7}  # numbers may have gaps
FILE = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": "BatchLongest",
        "direction": "Left",
        "pad_to_multiple_of": 4,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[UNK]",
    },
    "added_tokens": [],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": NAMES, "unk_token": "[UNK]"},
}


def column(said: str) -> TextColumn:
    found = schema.parsed(f'[columns]\nnote = {{ kind = "text", {said} }}\ny = {{ kind = "label", range = [0, 1] }}\n')
    note = found.columns["note"]
    assert isinstance(note, TextColumn)
    return note


def test_bytes_need_no_package_and_no_training() -> None:
    found = column('tokenizer = "bytes", length = 4')
    assert isinstance(found, TokenColumn)
    assert (found.vocabulary, found.tokens, found.width) == (256, 257, 4)
    assert tokens(["ab", "", "é", "abcdef"], found).tolist() == [
        [98, 99, 0, 0],
        [0] * 4,
        [0xC3 + 1, 0xA9 + 1, 0, 0],
        [98, 99, 100, 101],
    ]


def test_a_tokenizer_file_numbers_each_text_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="Hugging Face's tokenizers is not installed")
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE))
    found = column(f'tokenizer = "{(tmp_path / "tokenizer.json").as_posix()}", length = 3')
    assert isinstance(found, TokenColumn)
    assert (found.vocabulary, found.tokens) == (8, 9)
    # what the file says of padding and truncation would let one text move another
    texts = ["Fever pain", "what", "", "pain pain pain pain"]
    beside = tokens(texts, found).tolist()
    assert beside == [[3, 2, 0], [1, 0, 0], [0] * 3, [2] * 3]
    assert [tokens([text], found).tolist()[0] for text in texts] == beside


def test_another_tokenizer_is_another_schema(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="Hugging Face's tokenizers is not installed")
    digests = []
    for names in (NAMES, {**NAMES, "cough": 3}):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**FILE, "model": {**FILE["model"], "vocab": names}}))  # type: ignore[dict-item]
        found = column(f'tokenizer = "{(tmp_path / "tokenizer.json").as_posix()}", length = 3')
        digests.append(schema.TableSchema({"note": found}).digest)
    assert digests[0] != digests[1]


def test_a_schema_of_words_keeps_its_digest() -> None:
    """It is what a ledger and the sites of an older version know."""
    plain = TextColumn("text", words=("pain",), length=4)
    assert schema.TableSchema({"note": plain}).digest == (
        "0bc8e2929dcd302cd4676d66a92d796d9db5ad6669e14ee2a345c9644f52916d"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('tokenizer = "bpe", length = 4', "is learned from rows reveals the words"),
        ("tokenizer = true, length = 4", "is learned from rows reveals the words"),
        ('tokenizer = "bytes", buckets = 4, length = 4', "one of"),
        ("length = 4", "one of"),
        ('tokenizer = "nowhere.json", length = 4', "cannot be read"),
        ('tokenizer = "bytes"', "length"),
    ],
)
def test_a_text_that_is_declared_wrongly_is_refused(said: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        column(said)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="Hugging Face's tokenizers is not installed")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        column(f'tokenizer = "{(tmp_path / "tokenizer.json").as_posix()}", length = 3')


def test_a_tokenizer_file_without_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    schema.loaded.cache_clear()
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE))
    with pytest.raises(DataError) as refused:
        column(f'tokenizer = "{(tmp_path / "tokenizer.json").as_posix()}", length = 3')
    assert refused.value.code == "missing-data-extra"
    assert "tokenizer = 'bytes'" in refused.value.fix
