"""`sordino data`: lists of sources, and partitions in numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sordino import config
from sordino.cli import data
from sordino.config import Data
from sordino.data import SOURCES
from sordino.errors import ConfigError
from sordino.partition.row_numbers import table
from sordino.runs.population import Population
from sordino.runs.simulation import simulated
from tests.helpers.command_line import Said

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def cli(cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    monkeypatch.setenv("COLUMNS", "150")
    return partial(cli, "data")


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Three clinics of 30, 3 and 2 rows; this seed leaves each of them a row to train on, and the smallest none to
    test on.
    """
    rows = [f"{i % 7},{i % 3},{'ABC'[(i >= 30) + (i >= 33)]}" for i in range(35)]
    (tmp_path / "table.csv").write_text("feature,label,clinic\n" + "\n".join(rows) + "\n")
    path = tmp_path / "clinics.toml"
    path.write_text(
        f'seed = 2\n[data]\nsource = "tabular"\npath = "{tmp_path}/table.csv"\nlabel = "label"\ngroup = "clinic"\n'
        '[partition]\nscheme = "natural"\n[algorithm]\nname = "fedavg"\n'
    )
    return path


# list -----------------------------------------------------------------------------------------------------------------


def test_every_source_is_listed_with_what_it_needs_and_takes(cli: Callable[..., Said]) -> None:
    listed = json.loads(cli("list", "--json").out)
    assert set(listed) == {*SOURCES, "module:Class"}
    said = {key for source in listed.values() for key in (*source["needs"], *source["takes"])}
    assert said == set(Data.model_fields) - {"source"}
    shown = cli("list").out
    assert all(name in shown for name in SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_source_is_said_to_need_is_what_it_asks_for(name: str) -> None:
    given = {"path": "somewhere", "label": "column"}
    for missing in config.DATA_SOURCES[name].needs:
        rest = {key: given[key] for key in config.DATA_SOURCES[name].needs if key != missing}
        with pytest.raises(ConfigError) as refusal:
            _ = Population(config.validate({"data": {"source": name, **rest}})).dataset
        assert refusal.value.code == "missing-key"
        assert missing in refusal.value.what
    if not config.DATA_SOURCES[name].needs:
        assert Population(config.validate({"data": {"source": name}})).dataset.train.y is not None


def test_an_experiments_data_are_named_and_fingerprinted(cli: Callable[..., Said], clinics: Path) -> None:
    facts = json.loads(cli("list", clinics, "--json").out)
    loaded = simulated(config.load(clinics)).population.dataset
    assert facts["fingerprint"] == loaded.fingerprint()
    assert (facts["classes"], facts["natural_clients"], facts["shape"]) == (3, 3, [1])
    assert facts["train"] + facts["test"] == 35
    shown = cli("list", clinics).out
    assert loaded.fingerprint() in shown
    other = json.loads(cli("list", clinics, "data.test_fraction=0.5", "--json").out)
    assert other["fingerprint"] != facts["fingerprint"]


# partition ------------------------------------------------------------------------------------------------------------


def test_a_partition_is_that_of_the_run(cli: Callable[..., Said]) -> None:
    words = ("partition.clients=7", "partition.alpha=0.3", "seed=4")
    found = json.loads(cli("partition", *words, "--json").out)
    parts = simulated(config.load(None, words))
    counts = table(parts.population.dataset.train.y, parts.population.shares[0], 10)
    assert [client["labels"] for client in found["clients"]] == counts.tolist()
    assert [client["train"] for client in found["clients"]] == list(parts.setup.public.sizes)
    assert [client["test"] for client in found["clients"]] == [len(rows) for rows in parts.population.shares[1]]
    assert found["smallest"] == int(np.argmin(parts.setup.public.sizes))
    assert found["summary"]["clients"] == 7
    assert found["unused"] == 0
    shown = cli("partition", *words).out
    for client in found["clients"]:
        cells = ["·" if count == 0 else str(count) for count in client["labels"]]
        row = " ".join([str(client["client"]), str(client["train"]), str(client["test"]), *cells])
        assert row in re.sub(" +", " ", shown)


def test_what_is_lacking_is_said(cli: Callable[..., Said], clinics: Path) -> None:
    found = json.loads(cli("partition", clinics, "--json").out)
    sizes = [(client["train"], client["test"]) for client in found["clients"]]
    assert sum(train + test for train, test in sizes) == 35
    assert found["without_test"] == [name for name, (_, test) in zip("ABC", sizes, strict=True) if not test] != []
    said = " ".join(cli("partition", clinics).out.split())
    assert f"{len(found['without_test'])} of 3 clients have no test examples" in said
    tail = json.loads(cli("partition", "partition={scheme='long_tail', clients=3, alpha=1.0, rho=0.1}", "--json").out)
    assert tail["unused"] > 0


@pytest.mark.slow
def test_a_thousand_clients_fit_on_a_screen_or_two(cli: Callable[..., Said]) -> None:
    many = "partition={scheme='iid', clients=1000}"
    short, whole = cli("partition", many).out, cli("partition", many, "--all").out
    assert len(short.splitlines()) < 60
    assert len(re.findall(r"^ +\d+ +\d", short, re.M)) == 30
    assert len(re.findall(r"^ +[\d,]+ +\d", whole, re.M)) == 1000


def test_regression_has_no_labels(cli: Callable[..., Said]) -> None:
    words = ("data.source=quadratic", "partition={scheme='natural'}")
    found = json.loads(cli("partition", *words, "--json").out)
    assert {client["labels"] for client in found["clients"]} == {None}
    assert "label" not in cli("partition", *words).out


def test_many_classes_are_cut_to_the_most_frequent() -> None:
    held = [0] * 100
    held[7], held[3], held[50:56] = 9, 4, [1] * 6
    assert data._labels(held, wide=False) == ["7: 9, 3: 4, 50: 1, 51: 1, 52: 1, 53: 1 and 2 more"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("plot", "--out", "partition.png"), 3, "not-an-svg"),
        (("partition", "no.toml"), 2, "no-file"),
        (("partition", "one.toml", "two.toml"), 2, "only one experiment"),
        (("partition", "partition.clients=100000"), 3, "(clients)"),
        (("list", "data.source=tabular"), 2, "missing-key"),
    ],
)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...],
    code: int,
    said: str,
    cli: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli(*words)
    assert answer.code == code
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []
