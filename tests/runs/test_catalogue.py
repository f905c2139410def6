"""What can be chosen and what it means: nothing is without words, and what was written down is what the code says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sordino.cli.running import EXPERIMENT
from sordino.config import CHOOSERS, Experiment, Privacy, Section, validate
from sordino.runs import catalogue as written
from sordino.runs.catalogue import field_meanings, schema
from tests.repository.following import ROOT

jsonschema = pytest.importorskip("jsonschema")


def test_the_catalogue_is_what_the_code_says() -> None:
    assert written.catalogue() == written.asked(), "write it anew: python -m sordino.runs.catalogue"


def test_every_parameter_has_a_meaning_and_every_meaning_a_parameter() -> None:
    found, words = written.catalogue(), written.meanings()
    assert found.keys() == words.keys()
    for table, choices in found.items():
        taken = {(name, key) for name, entry in choices.items() for key in entry["parameters"]}
        assert [f"{table}.{name}.{key}" for name, key in taken if not choices[name]["parameters"][key]["meaning"]] == []
        keys = {key for _, key in taken} | {f"{name}.{key}" for name, key in taken} | {*written.GIVEN.get(table, ())}
        assert set(words[table]) - keys == set()
        said = [entry["summary"] for entry in choices.values()]
        alike = {words for words in said if said.count(words) > 1}  # those of a file, where a choice has no own words
        assert all(said)
        assert table == "algorithm" or all(words.startswith("Homomorphic encryption") for words in alike), alike


def sections(section: type[Section]) -> list[type[Section]]:
    kinds = [field.annotation for field in section.model_fields.values()]
    inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
    return [section, *(each for kind in inner for each in sections(kind))]


@pytest.mark.parametrize("section", sections(Experiment), ids=lambda section: section.__name__)
def test_every_key_of_an_experiment_has_a_meaning(section: type[Section]) -> None:
    assert field_meanings(section).keys() == section.model_fields.keys()


@pytest.fixture(scope="module")
def checker() -> Any:
    made = schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def test_the_schema_takes_every_experiment_of_the_repository(checker: Any) -> None:
    files = [path for path in (ROOT / "experiments").rglob("*.toml") if path.name != "rows.toml"]
    files += [ROOT / "examples/own_model_and_data/clinics.toml", ROOT / "examples/sites/study.toml"]
    for path in files:
        assert [error.message for error in checker.iter_errors(tomllib.loads(Path(path).read_text()))] == [], path
    assert list(checker.iter_errors(tomllib.loads(EXPERIMENT))) == []
    default = Experiment().model_dump(mode="json", exclude_none=True)
    assert list(checker.iter_errors(default)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[data]\nsource = 'parts:Rings'\noptions = {size = 5}",
        "[partition]\nscheme = 'parts:Turns'\nclients = 5",
        "[cohort]\nname = 'parts:Neighbours'",
        "[loss]\nname = 'parts:focal'",
        "callbacks = ['parts:Diary', {name = 'parts:Diary', file = 'x'}]\n[evaluation]\nmetrics = ['parts:recall']",
    ],
)
def test_the_schema_takes_parts_of_ones_own_wherever_the_program_does(text: str, checker: Any) -> None:
    table = tomllib.loads(text)
    assert validate(table)
    assert [error.message for error in checker.iter_errors(table)] == []


@pytest.mark.parametrize(
    "text",
    [
        "roundz = 3",
        "[data]\nsource = 'tabluar'",
        "[loss]\nname = 'focal'",
        "rounds = 'three'",
        "[algorithm]\nname = 'fedavgg'",
        "[algorithm]\nname = 'fedavg'\nmu = 1.0",
        "[partition]\nscheme = 'dirichlet'\nclients = 3",
        "[privacy]\nepsilon = 1.0\ndetla = 1e-5",
        "uplink = ['wiegh']",
        "[privacy.schedule]\nname = 'geometric'",
    ],
)
def test_the_schema_refuses_what_the_program_refuses(text: str, checker: Any) -> None:
    assert list(checker.iter_errors(tomllib.loads(text)))


def test_the_schema_says_what_a_key_means() -> None:
    found = schema()["properties"]
    assert "more than" not in found["privacy"]["properties"]["epsilon"]["description"]
    assert found["privacy"]["properties"]["epsilon"]["description"] == field_meanings(Privacy)["epsilon"]
    assert (found["rounds"]["minimum"], found["rounds"]["maximum"]) == (1, 100_000)
    forms = {form["title"]: form for form in found["algorithm"]["anyOf"]}
    assert forms["fedprox"]["properties"]["mu"]["description"] == written.meanings()["algorithm"]["mu"]
    assert set(CHOOSERS) <= set(found)
