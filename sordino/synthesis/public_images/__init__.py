"""Candidates: labelled images that the server takes from public sources, never from a client.

Data augmentation by a text-to-image model (SlaugFL, IEEE Transactions on Mobile Computing 2024) starts from these.
"""

from __future__ import annotations

from collections.abc import Callable

from sordino.data.dataset import CandidateSource
from sordino.synthesis.public_images.existing import Folder, PublicSplit, SklearnDigits
from sordino.synthesis.public_images.pretrained import BigGan, Diffusers
from sordino.synthesis.public_images.procedural import Procedural
from sordino.synthesis.public_images.prompts import PROMPTS, Prompts, PromptSource

__all__ = ["PROMPTS", "SOURCES", "PromptSource", "Prompts"]

SOURCES: dict[str, Callable[..., CandidateSource]] = {
    "public_split": PublicSplit,
    "sklearn_digits": SklearnDigits,
    "procedural": Procedural,
    "folder": Folder,
    "diffusers": Diffusers,
    "biggan": BigGan,
}
