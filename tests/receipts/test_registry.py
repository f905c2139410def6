"""Records for the public registry of deployments pass its own rules, once a person has written what no file of a run
knows.

The rules are read from github.com/opendp/deployments-registry-data: the fields, choices and tiers of its schema at
commit 057e5d81, the checks of file names, quoting and tiers of scripts/check.py at 062cd8a8. It also asks every link in
a record for an answer; ours have none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

import sordino
from sordino.planning import PublicNumbers
from sordino.receipts.documents import gather, record
from tests.helpers.planned_receipts import planned
from tests.laws.cases import BY_NAME

TINY = ("rounds=2", "partition.clients=3", "model=logistic", "evaluation.final=1", "algorithm.local_steps=1")
NAME = "deployment.yaml"  # of the file that is written by default
TEXT: dict[str, Any] = {"type": "string"}
ANY: dict[str, Any] = {}


def one_of(*choices: object) -> dict[str, Any]:
    return {"enum": list(choices)}


def fields(required: str = "", **inner: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": inner}


CURATOR = {
    "type": "object",
    "required": ["data_curator_name", "data_curator_type"],
    "properties": {"data_curator_name": TEXT, "data_curator_type": one_of("Government", "Industry", "Nonprofit")},
}
SCHEMA = fields(
    "url_slug deployment",
    url_slug=TEXT,
    deployment=fields(
        "basic administrative",
        basic=fields(
            "name data_curators description intended_use data_product_type data_product_region publication_date",
            name=TEXT,
            data_curators={"type": "array", "minItems": 1, "items": CURATOR},
            description=TEXT,
            intended_use=TEXT,
            data_product_type=one_of(
                *("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
                *("Interactive API", "SQL queries"),
            ),
            data_product_region=TEXT,
            data_product_sector=one_of("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
            publication_date={"type": "string", "format": "date"},
        ),
        dp_variant=fields(
            variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=fields(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            number_of_privacy_units={"type": "integer"},
            privacy_parameters=fields(
                epsilon={"type": "number"}, delta={"type": ["number", "string"]}, rho={"type": "number"}
            ),
            privacy_parameters_details=ANY,
        ),
        deployment_model=fields(
            model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
            model_name_details=TEXT,
            trust_assumptions=TEXT,
            actors=ANY,
            release_type=one_of("One release", "Many releases"),
            release_type_details=TEXT,
            data_source_type=one_of("Static", "Dynamic"),
            data_source_type_details=TEXT,
            access_type=one_of("Interactive", "Non-interactive"),
            access_type_details=TEXT,
        ),
        implementation=fields(
            preprocessing_and_hyperparameter_tuning=TEXT,
            mechanisms=TEXT,
            composition=TEXT,
            post_processing=TEXT,
            justification=TEXT,
            utility=ANY,
            additional_information=ANY,
        ),
        administrative=fields(
            "status registry_authors tier",
            evidence_sources={"type": "object"},
            status=one_of(
                *("Converted", "Draft", "Pending", "Changes Required", "Approved"),
                *("Approved (Update Requested)", "Approved (Pending)"),
            ),
            registry_authors={"type": "array", "minItems": 1, "items": TEXT},
            tier=one_of(1, 2, 3),
        ),
    ),
)
PARTS = SCHEMA["properties"]["deployment"]["properties"]
UNTIERED = {"release_type_details", "status", "registry_authors", "tier"}
SECOND = {
    *("variant_name", "privacy_unit", "privacy_parameters", "model_name", "release_type"),
    *("data_source_type", "data_source_type_details", "access_type"),
}
FIRST = {*PARTS["basic"]["properties"], "additional_information", "evidence_sources"}
THIRD = {name for part in PARTS.values() for name in part["properties"]} - FIRST - SECOND - UNTIERED

# what a person writes
BY_HAND = {
    "data_curators": '[{"data_curator_name": "A clinic", "data_curator_type": "Nonprofit"}]',
    "intended_use": '"To sort pictures."',
    "data_product_region": '"Europe"',
    "data_product_sector": '"Healthcare"',
    "publication_date": '"2026-01-02"',
    "justification": '"The board asked for it."',
    "utility": '"Nine of ten."',
    "registry_authors": '["A person"]',
    "evidence_sources": "{}",
}


def filled(text: str) -> str:
    for name, value in BY_HAND.items():
        text, many = re.subn(rf"(?m)^( *{name}:) .*$", lambda found, value=value: f"{found[1]} {value}", text)
        assert many == 1, name
    return text


def complaints(name: str, text: str) -> list[str]:
    """Rules of the registry that a record breaks, by the field or the rule."""
    told = yaml.safe_load(text)
    found = [] if re.fullmatch(r"[a-z0-9_]+\.yaml", name) else ["name"]
    validator = Draft7Validator(SCHEMA, format_checker=Draft7Validator.FORMAT_CHECKER)
    found += [str(([*error.path] or ["record"])[-1]) for error in validator.iter_errors(told)]
    styles = {token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)}
    found += ["quoting"] if styles - {None, "|", '"', "'"} else []
    found += ["link"] if re.search(r"https?://", str(told)) else []
    present = {field for part in told["deployment"].values() for field in part}
    tiers = (FIRST, FIRST | SECOND, FIRST | SECOND | THIRD)
    highest = max((tier for tier, all_of in enumerate(tiers, 1) if all_of <= present), default=0)
    return found + ["tier"] * (told["deployment"]["administrative"].get("tier") != highest)


RUNS = {
    "examples": ("algorithm=gaussian_gdp", "privacy.epsilon=4"),
    "examples, real noise": (
        "algorithm=gaussian_gdp",
        "privacy.epsilon=4",
        "privacy.noise=system",
        "privacy.delta=1e-4",
    ),
    "clients": ("algorithm=dp_fedavg", "privacy.epsilon=4", "partition.clients=12"),
    "values": ("algorithm=ldp_fl",),
    "budgets": ("algorithm=gaussian_gdp", 'privacy={epsilon={groups={"2"=0.5,"8"=0.5}},delta=1e-5}'),
}


def made(words: tuple[str, ...], folder: Path) -> str:
    sordino.run(None, *TINY, *words, out=folder)
    return record(gather(folder, None, code=False, anyway=False))


def test_a_record_of_a_site_counts_its_own_units_alone(tmp_path: Path) -> None:
    """As it was, an epsilon that one hospital's ledger shows was registered for the patients of all."""
    made_by, told = BY_NAME["gaussian_gdp"].experiment(), dict[tuple[int, ...] | None, str]()
    public = PublicNumbers(kind="image", shape=(8, 8, 1), classes=10, named=10, sizes=(40, 60, 90, 90))
    for site in (None, (1,)):
        told[site] = record(gather(planned(tmp_path / str(site), made_by, public, site), None, False, False))
    counted = {site: yaml.safe_load(text)["deployment"]["privacy_loss"] for site, text in told.items()}
    assert [one["number_of_privacy_units"] for one in counted.values()] == [280, 60]
    assert ["about 1 of them" in text for text in told.values()] == [False, True]


@pytest.mark.one_fast
@pytest.mark.parametrize("name", RUNS)
def test_a_record_passes_the_registry_s_rules_at_the_highest_tier(name: str, tmp_path: Path) -> None:
    """A person writes no field about privacy, but for how many units there are where that is not public."""
    text = made(RUNS[name], tmp_path / "run")
    told = yaml.safe_load(text)["deployment"]
    assert told["administrative"]["tier"] == 3
    assert not set(BY_HAND) & {*told["dp_variant"], *told["privacy_loss"], *told["deployment_model"]}
    known = "number_of_privacy_units" in told["privacy_loss"]
    assert known or "number_of_privacy_units, about" in text.partition("url_slug")[0]
    if not known:
        text = re.sub(
            r"( *)privacy_parameters:", r"\1number_of_privacy_units: 10\n\1privacy_parameters:", text, count=1
        )
    assert complaints(NAME, filled(text)) == []
    assert set(complaints(NAME, text)) - {"tier"} <= {
        *BY_HAND,
        "data_curator_type",
    }  # an empty one says who must fill it


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(made(RUNS["examples"], tmp_path_factory.mktemp("registered") / "run"))


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  administrative:", '  unexpected: "x"\n  administrative:', "deployment"),
        ('"2026-01-02"', '"1/1/2026"', "publication_date"),
        ('"2026-01-02"', "2026-01-02", "publication_date"),  # a date of YAML is no text
        ("tier: 3", "tier: 0", "tier"),
        ("tier: 3", "tier: 2", "tier"),
        ('intended_use: "To sort pictures."', "intended_use: >\n        To sort pictures.", "quoting"),
        ("Approximate DP", "Approximately DP", "variant_name"),
        ('    status: "Draft"\n', "", "administrative"),
        ("privacy_unit_details", "privacy_units_details", "privacy_loss"),
        ("number_of_privacy_units: ", "number_of_privacy_units: 0.", "number_of_privacy_units"),
        ("A clinic", "https://a.clinic", "link"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(old: str, new: str, complaint: str, text: str) -> None:
    assert complaints(NAME, text) == []
    broken = text.replace(old, new)
    assert broken != text
    assert complaint in complaints(NAME, broken)
    assert complaints("Deployment 1.yaml", text) == ["name"]
