"""Labelled candidate images that a server draws from public sources: nothing in them comes from any client.

What augments data from a text-to-image model (SlaugFL, IEEE Transactions on Mobile Computing 2024) starts from these.
"""

from __future__ import annotations

from collections.abc import Callable

from sordino.candidates.biggan import BigGan
from sordino.candidates.diffusion import Diffusers
from sordino.candidates.embedded import PublicSplit, SklearnDigits
from sordino.candidates.folder import Folder
from sordino.candidates.procedural import Procedural
from sordino.candidates.prompts import PROMPTS, Prompts, PromptSource
from sordino.candidates.wanted import Candidates, Source, Wanted

__all__ = ["PROMPTS", "SOURCES", "Candidates", "PromptSource", "Prompts", "Source", "Wanted"]

SOURCES: dict[str, Callable[..., Source]] = {
    "public_split": PublicSplit,
    "sklearn_digits": SklearnDigits,
    "procedural": Procedural,
    "folder": Folder,
    "diffusers": Diffusers,
    "biggan": BigGan,
}
