"""Prompts that are simply there: one file per class, or the bare name of the class."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sordino.data.candidates import Wanted
from sordino.errors import DataError
from sordino.synthesis.public_images.manifest import spoken
from sordino.synthesis.public_images.prompts.asked import Prompts
from sordino.synthesis.public_images.prompts.parsing import unique


@dataclass(frozen=True)
class File:
    """Prompts from files: `<path>/<class name or number>.txt`, a prompt on each line, or `.jsonl`, each line a
    string or an object with `prompt`.
    """

    path: str

    def prompts(self, name: str, count: int, wanted: Wanted) -> Prompts:
        folder, number = Path(self.path).expanduser(), wanted.classes.index(name)
        places = [folder / f"{stem}{suffix}" for stem in (name, number) for suffix in (".txt", ".jsonl")]
        place = next((file for file in places if file.is_file()), None)
        if place is None:
            raise DataError(
                f"{folder} has no prompts for {name}",
                fix=f"add {name}.txt or {name}.jsonl to the folder",
                code="no-prompt-file",
            )
        found = _read(place)
        # a prompt that comes again gives another image, from another seed
        again = {"file, again": count - len(found)} if count > len(found) else {}
        texts = tuple(found[at % len(found)] for at in range(count))
        return Prompts(texts, {"file": min(count, len(found)), **again})


def _read(place: Path) -> list[str]:
    try:
        lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the prompts {place}", why=str(error), fix="give a text file in UTF-8", code="bad-prompt-file"
        ) from None
    texts = [_of_json(place, line) for line in lines] if place.suffix == ".jsonl" else lines
    if not texts:
        raise DataError(f"{place} is empty", fix="write one prompt on each line", code="bad-prompt-file")
    return unique(texts)


def _of_json(place: Path, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{place} has a line that is not a prompt: {line[:60]}",
            fix='write "text" or {"prompt": "text"} on each line',
            code="bad-prompt-file",
        )
    return text.strip()


@dataclass(frozen=True)
class LabelOnly:
    """The name of the class and nothing else, with another seed for each image: what the words of a language model are
    worth is seen against this.
    """

    def prompts(self, name: str, count: int, wanted: Wanted) -> Prompts:
        return Prompts((spoken(name),) * count, {"label_only": count})
