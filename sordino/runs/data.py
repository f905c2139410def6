"""What everybody holds: from an experiment to its data, who trains and is tested on which of them, and what the server
keeps for itself.

Deterministic, so a client process builds exactly what the server's process built.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from sordino import keys
from sordino.config import Experiment, build, filled, parameters
from sordino.config.wording import check_keys
from sordino.data import SOURCES, Dataset
from sordino.data.reserve import Reserved, reserve, resized, smaller
from sordino.data.schema import TableSchema
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.partition.rows import RowNumbers
from sordino.partition.schemes import SCHEMES, Natural, Scheme
from sordino.public_images import SOURCES as CANDIDATES
from sordino.public_images import Candidates, CandidateSource, Wanted, store
from sordino.public_images.wanted import DISCLOSED
from sordino.runs import public_inputs
from sordino.runs.agreement import Agreement
from sordino.types import Examples


class Asked(NamedTuple):
    """What [candidates] says of any source."""

    per_class: int = 200
    network: bool = False  # may other machines be asked?


@dataclass(frozen=True)
class Holdings:
    experiment: Experiment
    data_key: bytes = field(default=b"", repr=False)  # of the digest that stands for the data
    agreed: Agreement | None = None  # what is public of the data, where they are not here

    @property
    def key(self) -> int:
        return keys.root(self.experiment.seed)

    @cached_property
    def dataset(self) -> Dataset:
        """What clients hold together."""
        return self._reserved.dataset if self.agreed is None else self.agreed.blank()

    @cached_property
    def fingerprint(self) -> str:
        """Which data these are and which client holds what, told to nobody who could not tell anyway.

        Runs on one ledger add up client by client: a client of the same number must be the same one in all of them.
        """
        if self.agreed is not None:
            return self.agreed.dataset
        digest = hmac.new(self.data_key, self.dataset.fingerprint(self.data_key).encode(), hashlib.sha256)
        trained, tested = self.shares
        # merged data are cut into training and test within a client: whichever of both, it is this client's
        for held in [(trained, tested)] if self.experiment.data.merge else [(trained,), (tested,)]:
            rows, owners = (np.concatenate([getattr(each, of) for each in held]) for of in ("numbers", "owners"))
            order = np.lexsort((owners, rows))
            digest.update(np.stack([rows[order], owners[order]]).astype("<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def _reserved(self) -> Reserved:
        """Resized, and without what the server keeps for itself."""
        data, found, seed = self.experiment.data, self._loaded, keys.word(keys.fold(self.key, "reserve"))
        if data.side is not None:
            found = resized(found, data.side)
        pool = self.source.pool if self.source is not None else 0.0
        sliced = data.probe is not None or pool
        kept = reserve(found, data.probe, pool or None, seed) if sliced else Reserved(found, None, None)
        if data.train is not None or data.test is not None:
            kept = kept._replace(dataset=smaller(kept.dataset, data.train, data.test, seed))
        if self.scaling == "fixed" and found.kind == "image":
            half = (0.5,) * found.shape[-1]
            kept = kept._replace(dataset=replace(kept.dataset, mean=half, std=half))
        return kept

    @cached_property
    def source(self) -> CandidateSource | None:
        """Where candidates come from."""
        if self._asked is None:
            return None
        assert self.experiment.candidates is not None
        own = {name: value for name, value in self.experiment.candidates.items() if name not in Asked._fields}
        return build(own, CANDIDATES, "candidates", "source")

    @cached_property
    def _asked(self) -> Asked | None:
        table = self.experiment.candidates
        if table is None:
            return None
        if (made := CANDIDATES.get(str(table.get("source")))) is not None:
            check_keys(table, ["source", *Asked._fields, *parameters(made)], f"[candidates] {table['source']}")
        return filled(Asked, {name: table[name] for name in Asked._fields if name in table}, "[candidates]")

    @cached_property
    def _made_candidates(self) -> list[Candidates]:
        """Of all phases of a run together: none so far, or the one set."""
        return []

    @property
    def drawn(self) -> Candidates | None:
        """Candidates, with the story of how they were made."""
        if self._asked is None or self.source is None:
            return None
        if not self._made_candidates:
            self._made_candidates.append(self._draw(self._asked, self.source))
        return self._made_candidates[0]

    def _draw(self, asked: Asked, source: CandidateSource) -> Candidates:
        if self.dataset.kind != "image":
            raise ConfigError(
                f"[candidates] with data.source = {self.experiment.data.source!r}",
                why="candidates are images, and the clients hold none",
                fix="leave the table out, or use images",
                code="candidates-are-images",
            )
        height, width, channels = self.dataset.shape
        wanted = Wanted(
            classes=self.dataset.class_names,
            per_class=asked.per_class,
            shape=(height, width, channels),
            key=keys.word(keys.fold(self.key, "candidates")),
            pool=self._reserved.pool,
            cache=store.folder(self.experiment.engine.cache),
            network=asked.network,
        )
        began = time.monotonic()
        made = source.build(wanted)
        return made._replace(manifest={**made.manifest, "seconds": round(time.monotonic() - began, 3)})

    @property
    def story(self) -> dict[str, Any] | None:
        """What is told of the candidates that this process has drawn; nothing where it drew none."""
        return self._made_candidates[0].manifest if self._made_candidates else None

    @property
    def disclosed(self) -> list[str]:
        """What a user should know of where the names of the classes went."""
        hosts = self.story[DISCLOSED] if self.story else []
        return [f"the names of the classes were disclosed to {host}, which wrote prompts" for host in hosts]

    @property
    def candidates(self) -> Examples | None:
        return None if self.drawn is None else _examples(self.drawn.x, self.drawn.y)

    @property
    def probe(self) -> Examples | None:
        kept = self._reserved.probe
        return None if kept is None else _examples(kept.x, kept.y)

    @property
    def tested(self) -> Examples:
        return _examples(self.dataset.test.x, self.dataset.test.y)

    @cached_property
    def _loaded(self) -> Dataset:
        data = self.experiment.data
        needed = {"images": ("path",), "folder": ("path",), "tabular": ("path", "label")}.get(data.source, ())
        for name in needed:
            if getattr(data, name) is None:
                raise ConfigError(
                    f"data.source = {data.source!r} needs data.{name}", fix=f"set data.{name}", code="missing-key"
                )
        held = {} if data.test_fraction is None else {"test_fraction": data.test_fraction}
        many = {} if data.clients is None else {"clients": data.clients}
        takes: Mapping[str, Mapping[str, Any]] = {
            "digits": held,
            "images": {
                "path": data.path,
                "allow_download": data.download,
                "label": data.label,
                "merge": data.merge,
                "standardise": "pixel" if self.scaling == "pixel" else "channel",
            },
            "folder": {
                "path": data.path,
                "fraction": data.fraction,
                "at_least": data.at_least,
                "side": 32 if data.side is None else data.side,
                "seed": keys.word(keys.fold(self.key, "data")),
                **held,
            },
            "tabular": {
                "path": data.path,
                "label": data.label,
                "group": data.group,
                "key": data.key,
                "schema": self.declared,
                "standardise": self.scaling,
                **held,
            },
            "quadratic": {"dim": data.dim, "heterogeneity": data.heterogeneity, **many},
            "synthetic": {
                "alpha": data.alpha,
                "beta": data.beta,
                "iid": data.iid,
                "largest": data.largest,
                "seed": keys.word(keys.fold(self.key, "data")),
                **held,
                **many,
            },
        }
        return SOURCES[data.source](**takes[data.source])

    @cached_property
    def declared(self) -> TableSchema | None:
        """What was declared of a table's columns; None where they are learned from the rows, and of other data."""
        return public_inputs.declared(self.experiment.data, self._real)

    @property
    def _real(self) -> bool:
        """Is there noise that protects real people?"""
        return self.experiment.privacy.noise == "system"

    @property
    def scaling(self) -> public_inputs.Scaling:
        """How inputs are scaled."""
        return public_inputs.scaling(self.experiment.data, self.declared)

    # what a receipt must say of the data -----------------------------------------------------------------------------

    @property
    def scaled_by_rows(self) -> bool:
        """Are inputs scaled by a mean and a deviation of examples, which no noise covers?"""
        return self.scaling in ("channel", "pixel")

    @property
    def learned_from_rows(self) -> tuple[str, ...]:
        """What was read off a table's rows before any noise: why nothing may be claimed about a row."""
        return public_inputs.learned(self.experiment.data, self.declared)

    @property
    def drawn_from_labels(self) -> tuple[str, ...]:
        """What was decided from all examples together (their labels, or their places): two neighbours must agree on
        it."""
        data = self.experiment.data
        if data.source in public_inputs.INVENTED:
            return ()
        asked = [*self._loaded.taken_as_public]
        if data.source == "tabular" and data.key is None:
            asked.append(public_inputs.PLACES)
        if self.scheme.reads_labels:
            asked.append(public_inputs.PARTITION)
        elif data.source == "tabular" and not isinstance(self.scheme, Natural):
            asked.append(public_inputs.DEALT)
        if any(part is not None for part in (data.train, data.test, data.probe)) or self._reserved.pool is not None:
            asked.append(public_inputs.RESERVED)
        return tuple(asked)

    @cached_property
    def shares(self) -> tuple[RowNumbers, RowNumbers]:
        """Row numbers of each client, of the training and the test examples."""
        train, test = self.dataset.train, self.dataset.test
        rng = np.random.default_rng(keys.word(keys.fold(self.key, "partition")))
        if self._real and self.experiment.data.source == "tabular" and self.scheme.reads_labels:
            raise UnsoundGuarantee(
                f"partition.scheme = {self.experiment.partition['scheme']!r} of a table, under real noise",
                why="one changed label would move other rows to other clients, which no noise hides",
                fix='partition = {scheme = "natural"} with data.group, or {scheme = "iid", clients = 8}',
                code="partition-from-labels",
            )
        rows = self.scheme.assign(train.y, train.group, rng)
        if self.experiment.data.merge:
            fraction = self.experiment.data.test_fraction
            return rows.held_back(0.1 if fraction is None else fraction, rng)
        return rows, self.scheme.match(train, rows, test, rng)

    @cached_property
    def scheme(self) -> Scheme:
        return build(self.experiment.partition, SCHEMES, "partition", "scheme")

    @cached_property
    def named(self) -> Dataset:
        """The data with the labels as the clients call them: what is learned and tested."""
        data = self.dataset
        if self.agreed is not None:
            return replace(data, classes=self.agreed.named, names=())
        if not self.scheme.anonymous:
            return data
        rows, tests = self.shares
        if self.experiment.data.merge:  # both are of one set
            rows = tests = RowNumbers.of(np.concatenate(both) for both in zip(rows, tests, strict=True))
        rng = np.random.default_rng(keys.word(keys.fold(self.key, "names")))
        train, test, classes = self.scheme.relabel(data.train.y, rows, data.test.y, tests, rng)
        data = replace(data, names=())
        return replace(data, train=data.train._replace(y=train), test=data.test._replace(y=test), classes=classes)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Of each client."""
        return self.shares[0].sizes if self.agreed is None else self.agreed.sizes

    @cached_property
    def largest(self) -> int:
        """The size of the largest client."""
        return max(self.sizes)


def _examples(x: Any, y: Any) -> Examples:
    return Examples(torch.from_numpy(np.asarray(x)), torch.from_numpy(np.asarray(y)))
