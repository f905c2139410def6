"""A folder that is put back in its place from a copy, as rsync, `cp -a` and snapshots do: every file keeps its inode."""

from __future__ import annotations

from pathlib import Path


def put_back(copy: Path, folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_dir() and not (copy / path.relative_to(folder)).exists():
            path.unlink()
    for path in sorted(copy.rglob("*")):
        there = folder / path.relative_to(copy)
        if path.is_dir():
            there.mkdir(exist_ok=True)
        else:
            there.write_bytes(path.read_bytes())
