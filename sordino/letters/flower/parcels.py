"""A letter as Flower's objects: parts of a few mebibytes, each below the length that a request may have."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sordino.errors import WireError
from sordino.letters.flower import interfaces as flower

PART = 4 << 20  # bytes
LIFE = 30 * 86400.0  # seconds; what is no longer wanted is taken back, not left to grow old
_KEY = "part"


def packed(letter: bytes) -> Any:
    """The content of a message."""
    view = memoryview(letter)
    parts = [bytes(view[begin : begin + PART]) for begin in range(0, len(view), PART)]
    return flower.RecordDict({str(i): flower.ConfigRecord({_KEY: part}) for i, part in enumerate(parts)})


def unpacked(tree: Any, objects: dict[str, bytes], most: int) -> bytes:
    """The letter in a message that somebody else has packed."""
    try:
        content = flower.inflate_object_from_contents(tree.object_id, objects).content
        parts = [content[str(i)][_KEY] for i in range(len(content))]
        if not all(isinstance(part, bytes) for part in parts) or sum(map(len, parts)) > most:
            raise ValueError(f"it is not bytes, or more than {most} of them")
    except Exception as error:  # whatever Flower's readers make of bytes that are none of its objects
        raise WireError(
            "a message without a letter",
            why=f"{type(error).__name__}: {error}"[:300],
            fix="ignore it",
            code="no-parcel",
        ) from None
    return b"".join(parts)


def message_to(node: int, run: int, letter: bytes) -> Any:
    """A letter to a node, as a message that answers nothing."""
    about = flower.Metadata(run, "", flower.SUPERLINK_NODE_ID, node, "", "", time.time(), LIFE, "query")
    return flower.make_message(about, packed(letter))


def reply_to(message: Any, letter: bytes) -> Any:
    return flower.Message(packed(letter), reply_to=message)


def taken_apart(message: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """What Flower sends of a message: itself without content, the tree of its objects, and these by their ids."""
    with flower.no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id  # nothing else sets it
        return (
            flower.remove_content_from_message(message),
            flower.get_object_tree(message),
            flower.get_all_nested_objects(message),
        )
