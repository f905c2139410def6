"""Seal of a receipt: digests of the files beside it, fixed in the ledger together with the receipt's own digest.

To put another model under a receipt, or edit a word of it, a forger must forge the ledger too; signatures protect
against that.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from sordino.accounting.events import Json
from sordino.accounting.facts import read_json
from sordino.receipts import Receipt
from sordino.receipts.folder import RunFolder

_ANY = RunFolder(Path())
PAGE = _ANY.page_file.name
# public files, equal for every executor; experiment.toml has a digest of its own
FILES = tuple(
    file.name
    for file in (
        _ANY.agreement_file,
        _ANY.metrics_file,
        _ANY.preparation_file,
        _ANY.tensors_file,
        _ANY.model_file,
        _ANY.description_file,
    )
)


def digests(folder: Path, names: tuple[str, ...] | None = None) -> dict[str, str]:
    """Digests of the files that exist; by default of all public files of a run except report.html."""
    found = {name: folder / name for name in names or (*FILES, *_tables(folder))}
    return {name: hashlib.sha256(_content(path)).hexdigest() for name, path in found.items() if path.is_file()}


def _tables(folder: Path) -> list[str]:
    """Names of the metrics files of the phases before the training."""
    return sorted(str(path.relative_to(folder)) for path in RunFolder(folder).preparation.glob("*/*.jsonl"))


def claimed(folder: Path) -> Json:
    """Reads the receipt as plain JSON, not as validated fields: its digest covers every word."""
    try:
        found = read_json(RunFolder(folder).receipt_file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("guarantees"), list):
        raise ValueError("it is not an object with guarantees")
    return found


def _content(path: Path) -> bytes:
    """Bytes that a file's digest covers: of an agreement all but its digest of the data, which is in the ledger's first
    record under a key of this run alone.
    """
    if path.name != _ANY.agreement_file.name:
        return path.read_bytes()
    try:
        values = read_json(path.read_text(encoding="utf-8"))
        return json.dumps({name: values[name] for name in sorted(values) if name != "dataset"}).encode()
    except (ValueError, TypeError, RecursionError):
        return path.read_bytes()


def still_shows(folder: Path, made: Receipt) -> bool:
    """True if report.html is still valid for this receipt: unchanged, and made from a receipt with the same content."""
    try:
        before = claimed(folder)
        files = {name: value for name, value in before["files"].items() if name != PAGE}
        same = digest({**before, "files": files}) == digest(made.to_json())
        return same and before["files"].get(PAGE) == digests(folder, (PAGE,)).get(PAGE)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def digest(receipt: Json) -> bytes:
    """Digest of a receipt without its ledger head, which changes when the receipt is sealed."""
    fields = {name: value for name, value in receipt.items() if name != "ledger_head"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def absent(folder: Path, claimed: Json) -> list[str]:
    """Files that the receipt names but the folder lacks, as a receipt may be shared without the model."""
    stated = claimed.get("files")
    names = stated if isinstance(stated, dict) else {}
    return sorted(str(name) for name in names if not os.path.lexists(folder / str(name)))


def wrong(folder: Path, claimed: Json) -> list[str]:
    """Files that differ from those of the receipt, or that it does not name; with the reason for each."""
    stated = claimed.get("files")
    if not isinstance(stated, dict):
        return ["files: the receipt names none"]
    here = digests(folder) | digests(folder, (PAGE,))
    there = [name for name in stated if os.path.lexists(folder / name)]
    found = [f"{name}: it is not the file of the receipt" for name in there if here.get(name) != stated[name]]
    found += [
        f"{name}: the receipt does not know it (a page is made anew by `sordino report`)"
        if name == PAGE
        else f"{name}: the receipt does not know it"
        for name in here.keys() - stated.keys()
    ]
    return sorted(found)
