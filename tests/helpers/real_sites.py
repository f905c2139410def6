"""A server and its sites as processes of their own, each with its own files, started as their users would start them."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sordino import config
from sordino.config import Experiment
from sordino.data.dataset import Split
from sordino.data.sources import digits
from sordino.receipts.signature import generate, private_key, public_key
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.sites import agreement_file as agreed
from sordino.sites import identity
from sordino.sites.join import data_key
from sordino.sites.own_data import OwnData
from sordino.sites.secure_sums import HOLDER
from tests.laws import warm
from tests.laws.cases import Case

Table = dict[str, Any]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def written(place: Path, train: Split, test: Split) -> Path:
    """Images as a folder of the hub's format."""
    place.mkdir(parents=True)
    for name, split in (("train", train), ("test", test)):
        images = []
        for pixels in np.asarray(split.x):
            file = io.BytesIO()
            Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "png")
            images.append({"bytes": file.getvalue(), "path": None})
        kinds = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {"image": pa.array(images, kinds), "label": pa.array(np.asarray(split.y))}
        pq.write_table(pa.table(columns), place / f"{name}.parquet")
    return place


@dataclass
class Trial:
    """One run, from nothing: files, keys, certificates, an agreement."""

    place: Path
    table: Table
    sites: int = 4
    tls: bool = True
    rehearsal: bool = True
    more: list[str] = field(default_factory=list)  # for `serve`
    host: str = "localhost"  # of the server
    files: dict[str, int] = field(default_factory=dict)  # that somebody may open
    inside: Callable[[str], list[str]] | None = None  # what starts a command on somebody's machine
    processes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, place: Path, **changes: Any) -> Trial:
        """A case of the laws."""
        table = case.experiment(**changes).model_dump(mode="json", exclude_none=True)
        return cls(place, table, len(table["partition"]) and table["partition"]["clients"])

    def __post_init__(self) -> None:
        kept = (Split(one.x[::4], one.y[::4]) for one in (digits().train, digits().test))
        path = written(self.place / "all", *kept)
        own = {
            key: value for key, value in self.table.get("data", {}).items() if key in ("probe", "train", "test", "side")
        }
        self.table["data"] = {"source": "images", "classes": list("0123456789"), "colours": False, **own}
        self.experiment: Experiment = config.validate({**self.table, "data": {**self.table["data"], "path": str(path)}})
        # who is to hold which digits is nobody's secret here, whatever the noise of the run is
        dealt = {**self.experiment.privacy.model_dump(), "noise": "counter"}
        population = simulated(
            config.validate(self.experiment.model_dump(exclude_none=True) | {"privacy": dealt})
        ).population
        named, shares = population.named, population.shares
        self.port = free_port()
        parts = []
        for k, (train, test) in enumerate(zip(*shares, strict=True)):
            name = self.name(k)
            generate(self.place / name)
            held = [
                Split(np.asarray(one.x)[rows], np.asarray(one.y)[rows])
                for one, rows in ((named.train, train), (named.test, test))
            ]
            data = written(self.place / f"{name}-data", *held)
            key = private_key(self.place / name)
            identity.allow(self.list, name, public_key(self.place / f"{name}.pub"))
            parts.append(OwnData(self.experiment, data, data_key(key)).announced(name))
        generate(self.place / "server")
        (self.place / "agreement.toml").write_text(agreed.merged(parts).toml())
        (self.place / "experiment.toml").write_text(self.experiment.toml())
        names = [self.name(k) for k in range(self.sites)]
        if self.encrypts:
            generate(self.place / HOLDER)
            identity.allow(self.list, HOLDER, public_key(self.place / f"{HOLDER}.pub"))
            names.append(HOLDER)
        if self.tls:
            identity.make_certificates(self.place / "certs", [self.host], names, 30)

    def name(self, k: int) -> str:
        return f"site-{k}"

    @property
    def list(self) -> Path:
        return self.place / "sites.toml"

    @property
    def trial(self) -> list[str]:
        return ["--rehearsal"] if self.rehearsal else []

    @property
    def folder(self) -> Path:
        return self.place / "run"

    @property
    def invitation(self) -> Path:
        return self.folder / "invitation.toml"

    def simulated(self) -> Path:
        start(self.experiment, self.place / "loop")
        return self.place / "loop"

    def serve(self) -> None:
        p = self.place
        words = ["serve", p / "experiment.toml", "--agreement", p / "agreement.toml", "--identity", p / "server"]
        words += ["--list", self.list, "--bind", f"{self.host}:{self.port}", "--out", self.folder, "-q", *self.trial]
        words += ["--certificates", p / "certs"] if self.tls else []
        self._start("server", [*words, *self.more])

    def join(self, k: int, *more: str) -> None:
        p, name = self.place, self.name(k)
        words = ["join", self.invitation, "--data", p / f"{name}-data", "--name", name, "--identity", p / name]
        words += ["--out", p / f"{name}-run", "--yes", "-q", *self.trial]
        words += ["--certificates", p / "certs" / name] if self.tls else []
        self._start(name, [*words, *more])

    def _start(self, who: str, words: list[Any]) -> None:
        command = [sys.executable, "-m", "sordino", *map(str, words)]
        with open(self.place / f"{who}.log", "ab") as log:
            if self.inside is None:
                self.processes[who] = warm.Process(command, stderr=log, files=self.files.get(who))
            else:
                self.processes[who] = subprocess.Popen([*self.inside(who), *command], stdout=log, stderr=log)

    def played(self, seconds: float = 90) -> None:
        """Starts everybody, and waits until everybody has ended well."""
        self.serve()
        self.wait_for(self.invitation)
        digest = self.hold_key() if self.encrypts else []
        for k in range(self.sites):
            self.join(k, *digest)
        self.ended(seconds)

    @property
    def encrypts(self) -> bool:
        return "authority" in str(self.table.get("uplink"))

    def hold_key(self) -> list[str]:
        """Starts the key holder; what every site is to be told of its key."""
        p = self.place
        words = ["hold-key", self.invitation, "--identity", p / HOLDER, "--out", p / f"{HOLDER}-run", *self.trial]
        self._start(HOLDER, [*words, *(["--certificates", p / "certs" / HOLDER] if self.tls else [])])
        until = time.monotonic() + 60
        while not (found := re.search("--key-digest ([0-9a-f]{64})", self.said(HOLDER).replace("\n", ""))):
            assert time.monotonic() < until, self.said(HOLDER)
            time.sleep(0.05)
        return ["--key-digest", found[1]]

    def ended(self, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        for who, process in reversed(self.processes.items()):  # a site that fails is told at once
            code = process.wait(max(0.1, until - time.monotonic()))
            assert code == 0, f"{who} ended with {code}: {self.said(who)}"

    def wait_for(self, file: Path, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not file.exists():
            assert time.monotonic() < until, self.said("server")
            time.sleep(0.02)

    def said(self, who: str) -> str:
        return (self.place / f"{who}.log").read_text(errors="replace")[-2000:]

    def rows(self) -> list[Table]:
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
