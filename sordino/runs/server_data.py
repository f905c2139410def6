"""The server's own data beside its state: examples that it keeps, and images from public sources. Client processes
never get them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from sordino import keys
from sordino.accounting.events import Json
from sordino.branches import part
from sordino.config import Experiment, build, filled, parameters, resolved_table
from sordino.config.wording import check_keys
from sordino.data.candidates import DISCLOSED, Candidates, CandidateSource, Wanted, cache_folder
from sordino.data.dataset import Split
from sordino.device import CPU, here, on
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.runs.setup import Whole
from sordino.types import Examples, Task


class CandidateSettings(NamedTuple):
    """Settings of [candidates] that every source takes."""

    per_class: int = 200
    network: bool = False  # other machines may be asked


class ServerRows(NamedTuple):
    """The server's own examples."""

    tested: Split | None = None  # examples that results are measured on
    probe: Split | None = None  # examples to rank models with
    pool: Split | None = None  # examples that candidates may be chosen from


@dataclass(frozen=True)
class ServerData:
    """The server's own data. Candidates, which may take hours to draw, are drawn on first use."""

    whole: Whole = field(repr=False)
    kept: ServerRows = field(default=ServerRows(), repr=False)

    @property
    def task(self) -> Task:
        return self.whole.task

    @property
    def key(self) -> Key:
        return keys.root(self.whole.experiment.seed)

    @property
    def sizes(self) -> Sequence[int]:
        return self.whole.public.sizes

    @cached_property
    def probe(self) -> Examples | None:
        return None if self.kept.probe is None else _examples(self.kept.probe.x, self.kept.probe.y)

    @cached_property
    def tested(self) -> Examples:
        assert self.kept.tested is not None
        return _examples(self.kept.tested.x, self.kept.tested.y)

    @cached_property
    def candidates(self) -> Examples | None:
        return None if self.drawn is None else _examples(self.drawn.x, self.drawn.y)

    @property
    def story(self) -> Json | None:
        """The manifest of the candidates; None where this process drew none."""
        drawn = self.__dict__.get("drawn")
        return None if drawn is None else drawn.manifest

    @property
    def disclosed(self) -> list[str]:
        """Warnings about machines that were sent the names of the classes."""
        hosts = self.story[DISCLOSED] if self.story else []
        return [f"the names of the classes were disclosed to {host}, which wrote prompts" for host in hosts]

    @cached_property
    def drawn(self) -> Candidates | None:
        """Candidates with their manifest; None where the experiment asks for none."""
        experiment, public = self.whole.experiment, self.whole.public
        if (asked := asked_for(experiment)) is None or (source := source_of(experiment)) is None:
            return None
        if public.kind != "image":
            raise ConfigError(
                f"[candidates] with data.source = {experiment.data.source!r}",
                why="candidates are images, but the clients' examples are not",
                fix="leave the [candidates] table out, or use image data",
                code="candidates-are-images",
            )
        height, width, channels = public.shape
        wanted = Wanted(
            classes=public.class_names,
            per_class=asked.per_class,
            shape=(height, width, channels),
            key=keys.word(keys.fold(self.key, "candidates")),
            pool=self.kept.pool,
            cache=cache_folder(experiment.engine.cache),
            network=asked.network,
        )
        began = time.monotonic()
        with on(CPU):  # a source says itself where it draws
            made = source.build(wanted)
        return made._replace(manifest={**made.manifest, "seconds": round(time.monotonic() - began, 3)})


def source_of(experiment: Experiment) -> CandidateSource | None:
    """The source of candidates that [candidates] names."""
    if asked_for(experiment) is None:
        return None
    assert experiment.candidates is not None
    table = resolved_table(experiment, experiment.candidates)
    own = {name: value for name, value in table.items() if name not in CandidateSettings._fields}
    made: CandidateSource = build(own, part("candidates", "sources"), "candidates", "source")
    return made


def asked_for(experiment: Experiment) -> CandidateSettings | None:
    """The settings of [candidates] that do not depend on its source."""
    table = experiment.candidates
    if table is None:
        return None
    if (made := part("candidates", "sources").get(str(table.get("source")))) is not None:
        check_keys(table, ["source", *CandidateSettings._fields, *parameters(made)], f"[candidates] {table['source']}")
    return filled(
        CandidateSettings, {name: table[name] for name in CandidateSettings._fields if name in table}, "[candidates]"
    )


def _examples(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Examples:
    return Examples(here(torch.from_numpy(np.asarray(x))), here(torch.from_numpy(np.asarray(y))))
