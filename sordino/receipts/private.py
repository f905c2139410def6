"""Private folder of a run: secrets, and facts that no privacy guarantee covers. Only the user who started the run can
read it.

A simulation protects nobody, and everything it computes is its result: it has no such folder, but for data.key (the key
of the digest that stands for the data), which every run keeps beside it for its owner alone. A run with noise of the
operating system keeps here

    clients.secret   source of the randomness that clients draw once in a run
    clients.run      digest of the run's name under that secret: another run's secret is noticed
    metrics.jsonl    scores for the evaluator: accuracies and losses on the test data, client by client
    model.json       inputs and outputs of the model, where rows decided columns, classes or scale
    sites.json       at a server: the newest ledger head that each site has signed, to be returned to the site
    events.jsonl     between sites: connections, requests and answers, with all addresses and reasons
    log.txt          remarks about the rows, for their owner
    evaluator-only.html, figures   the page of an evaluator
    here             inode number of this file, so that a copied folder is noticed before it releases a round again
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from shlex import quote

from sordino.errors import RunError, damaged

FOLDER = "private"
CLIENTS, WHOSE, DATA, HERE, README = "clients.secret", "clients.run", "data.key", "here", "README"
KEY = 32  # bytes of a key, and of a secret
NOT_TO_BE_SHARED = (
    "Not to be shared. What lies here is covered by no epsilon: who reads it learns what the run promises to hide.\n"
    "Everything else in the run folder may be shown to those whom the statement in privacy.json names,\n"
    "but for checkpoints, data.key and (at a site) replies, which are for their owner alone, too.\n"
)


def create(run: Path, secret: bytes) -> None:
    """Creates the private folder of a new run. `secret`: that from which clients draw their run-long randomness, if
    any."""
    place = run / FOLDER
    place.mkdir(mode=0o700)
    write(place / README, NOT_TO_BE_SHARED.encode())
    if secret:
        write(place / CLIENTS, secret)
    settle(run)


def settle(run: Path) -> None:
    """Records that the run continues in this folder, so that copies of it are noticed."""
    place = run / FOLDER / HERE
    write(place, b"")
    write(place, str(place.stat().st_ino).encode())


def check_place(run: Path, moved: bool) -> None:
    """Refuses to continue a copied run folder with real noise. `moved`: accept it in the original's place."""
    if moved:
        settle(run)
    check_no_copy(run)


def check_no_copy(run: Path) -> None:
    """Refuses a copied run folder: the inode of its file `here` differs from the recorded one. A copy that is put back
    in the original's place is noticed by `runs.witness`.
    """
    place = run / FOLDER / HERE
    try:
        same = place.read_text(encoding="utf-8") == str(place.stat().st_ino)
    except (OSError, UnicodeDecodeError):
        same = False
    if not same:
        raise RunError(
            f"{run} is a copy of a run folder",
            why="if the run and its copy both continued, rounds would be released twice with fresh noise, and paid "
            "for once",
            fix="continue in the original run folder; if that no longer exists, add --moved to the command: "
            f"`sordino resume {quote(str(run))} --moved`; between sites `sordino serve` or `sordino join`",
            code="copied-run",
        )


def new_key() -> bytes:
    """A new random key, for the digest that stands for a run's data, or as the clients' secret."""
    return secrets.token_bytes(KEY)


def key_of_data(run: Path) -> bytes:
    """The key of the digest that stands for the data of a run."""
    return kept(run / DATA, KEY)


def kept(
    place: Path, size: int, fix: str = "put the file back from a copy: without it, this run cannot continue"
) -> bytes:
    """Reads a key or secret from a file; refuses one of the wrong size, which would not protect."""
    try:
        found = place.read_bytes()
    except OSError as error:
        raise damaged(place, error, fix) from None
    if len(found) != size:
        raise damaged(place, f"it has {len(found)} bytes in place of {size}: it cannot keep anything secret", fix)
    return found


def write(path: Path, data: bytes, new: bool = False) -> None:
    """Write a file that its owner alone can read, from the first byte on. A `new` one is complete or absent."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            if new:
                path.unlink(missing_ok=True)
            raise
