"""Documents about a run: a model card, and a record for the public registry of differential privacy deployments. Both
rest on evidence: receipt, ledger, experiment and agreement, checked against each other.

Names and their order are those of the template in its repository, opendp/deployments-registry-data, commit 057e5d81.
Fields that no file of a run can fill stay empty, and are listed on top: a person has to fill them in.

Neither data nor model nor code of a user's own is needed, so any machine will do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sordino.accounting.claims import standing
from sordino.accounting.events import Json, descriptions
from sordino.accounting.facts import delta_text, epsilon_text
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import (
    CHANGE,
    ONE,
    WHO,
    Described,
    belief,
    described,
    headline,
    in_short,
    merged,
    percent,
    rounded_up,
    subject,
)
from sordino.config import Experiment
from sordino.errors import ConfigError, LedgerError
from sordino.planning import Agreement, PublicNumbers
from sordino.receipts import Environment, Receipt
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import check_run, training_rounds
from sordino.receipts.verify import Verdict, examine

TO_FILL_IN = (
    "deployment.basic: data_curators, intended_use, data_product_region, data_product_sector, publication_date",
    "deployment.implementation: justification, utility",
    "deployment.administrative: evidence_sources, registry_authors",
)
NUMBER = "deployment.privacy_loss: number_of_privacy_units, about"  # where the sizes of clients are not public
SEVERAL = "A person who has several of these units is not protected as a whole."


def record(found: Evidence) -> str:
    """The entry for the registry of deployments, as YAML, under comments that list what a person has to fill in."""
    best = found.strongest
    if best is None:
        raise ConfigError(
            "there is nothing to register",
            why="no row of the receipt has a finite epsilon, and the registry lists differential privacy only",
            fix="--as annex and --as card also describe a run that promises nothing",
            code="nothing-to-register",
        )
    notes = [
        *found.stamps,
        "For the registry of differential privacy deployments: github.com/opendp/deployments-registry-data.",
        "No file of the run knows these; fill them in:",
        *(f"  {name}" for name in TO_FILL_IN),
        *[f"  {NUMBER}"] * (not _number_of_units(found, best)),
    ]
    yaml = as_yaml(_record(found, best))
    return "".join(f"# {note}\n" for note in notes) + yaml


def _record(found: Evidence, best: Guarantee) -> Json:
    name, public = found.experiment.name, found.public
    rows = [in_short(row, found.simulated, by) for row, by in merged(found.receipt.guarantees)]
    unprotected = [row.words for row in found.rows if not math.isfinite(row.epsilon)]
    shape = " x ".join(map(str, public.shape))
    checked = "; ".join(found.verdict.wrong or found.verdict.agreed)
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": [{"data_curator_name": "", "data_curator_type": ""}],
                "description": " ".join([*found.stamps, f"A model trained by federated learning: {found.setting}."]),
                "intended_use": "",
                "data_product_type": "Machine learning model",
                "data_product_region": "",
                "data_product_sector": "",
                "publication_date": "",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"{found.kind} data of shape {shape}, held by {len(public.sizes)} clients, with "
                f"{found.examples} examples.",
                "unprotected_quantities": _bullets([*unprotected, *public.assumed, *public.void]),
            },
            "privacy_loss": {
                "privacy_unit": ONE[best.unit],
                "privacy_unit_details": f"Adjacent data sets differ in {ONE[best.unit]}: {best.neighbours}, "
                f"{CHANGE[best.neighbours]}." + f" {SEVERAL}" * (best.unit != "person"),
                **_number_of_units(found, best),
                "privacy_parameters": {"epsilon": rounded_up(best.epsilon), "delta": best.delta},
                "privacy_parameters_details": _bullets(rows),
            },
            "deployment_model": {
                "model_name": _model(best),
                "model_name_details": f"The promise named here holds against the {best.adversary}.",
                "trust_assumptions": _bullets([*best.because] or ["none beyond the assumptions of the implementation"]),
                "actors": _bullets([f"{who}: {what}" for who, what in WHO.items()]),
                "release_type": "One release",
                "release_type_details": f"All models of {training_rounds(found.receipt)} rounds count as released.",
                "data_source_type": "Static",
                "data_source_type_details": "The run is bound to the digest of its examples: they do not change.",
                "access_type": "Non-interactive",
                "access_type_details": "Nobody may query the data. What is released is planned before the run.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _bullets(found.receipt.assumptions),
                "mechanisms": _bullets([*found.noise, f"sordino {found.environment.sordino}"]),
                "composition": f"All releases together, by the accountant {best.accountant}.",
                "post_processing": "Whatever is computed from uploads and models after noise was added.",
                "justification": "",
                "utility": "",
                "additional_information": f"Run {found.receipt.run}, ledger head {found.receipt.ledger_head}. "
                f"{'The receipt does not hold' if found.verdict.wrong else 'Checked'}: {checked}. "
                f"Not looked at: {'; '.join(found.verdict.unseen) or 'nothing'}.",
            },
            "administrative": {"evidence_sources": {}, "status": "Draft", "registry_authors": [""], "tier": 3},
        },
    }


def _number_of_units(found: Evidence, best: Guarantee) -> Json:
    """Number of privacy units, where it is public: the sizes of clients may be secret, and so may the number of rows
    that belong to one person."""
    many = {"client": len(found.own)}
    if found.experiment.privacy.public_sizes:
        many["example"] = sum(found.own)
    return {"number_of_privacy_units": many[best.unit]} if best.unit in many else {}


def _model(best: Guarantee) -> str:
    """Trust model in the registry's terms. If a client holds rows of several people, these trust the client."""
    if best.adversary != "server":
        return "Central"
    return "Local" if best.unit == "client" else "Federated"


def _bullets(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {one}" for one in lines)


PIPELINES = {  # a model hub's names, by the kind of the data and the task; of others a card says none
    ("image", "classification"): "image-classification",
    ("image", "multi_label"): "image-classification",
    ("table", "classification"): "tabular-classification",
    ("table", "multi_label"): "tabular-classification",
    ("table", "regression"): "tabular-regression",
    ("table", "counts"): "tabular-regression",
    ("text", "classification"): "text-classification",
    ("text", "multi_label"): "text-classification",
    ("text", "next_token"): "text-generation",
}
BY_HAND = "*No file of the run knows this: write it here.*"


def card(found: Evidence) -> str:
    """Model card: Markdown with the front matter that model hubs read, for README.md beside a model."""
    promised = any(row.finite for row in found.receipt.guarantees)
    holds_of = {"federated-learning": True, "differential-privacy": promised, "simulation": found.simulated}
    tags = [tag for tag, holds in holds_of.items() if holds]
    pipeline = PIPELINES.get((found.kind, found.experiment.task["name"]))
    top = {
        "library_name": "sordino",
        **({"pipeline_tag": pipeline} if pipeline else {}),
        "tags": tags,
        "model_name": found.experiment.name,
    }
    matter = as_yaml(top)
    kept = [row.words for row in found.rows if math.isfinite(row.epsilon)]
    lost = [row.words for row in found.rows if not math.isfinite(row.epsilon)]
    verdict = found.verdict
    parts = [
        f"---\n{matter}---",
        f"# {_plain(found.experiment.name)}",
        *(f"> **{stamp}**" for stamp in found.stamps),
        f"{_plain(found.setting)}.",
        "## Intended use",
        BY_HAND,
        "## Privacy",
        _plain(headline(found.receipt.guarantees, found.simulated) or "Nothing is promised about anybody."),
        _table(COLUMNS, table(found)),
        *_section("### Protected", kept),
        *_section("### Not protected", lost),
        *_section("### Noise", found.noise),
        *_section("## Limitations and assumptions", [*found.receipt.assumptions, *found.public.void]),
        *_section("## What does not agree", verdict.wrong),
        *_section("## What was checked, and agrees", verdict.agreed),
        *_section("## What was not looked at", verdict.unseen),
        *_section("## What no receipt shows", FORGED),
        f"Run `{found.receipt.run}`, sordino {found.environment.sordino}, ledger head `{found.receipt.ledger_head}`. "
        "`sordino privacy verify` checks the receipt without any data.",
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    bullets = "\n".join(f"- {_plain(line)}" for line in lines)
    return [title, bullets] if bullets else []


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(columns)
    lines = [head, ["---"] * len(head), *(list(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Escape markup and line breaks in words that come from a run's files."""
    flat = " ".join(text.split())
    return "".join(f"\\{one}" if one in "\\`*_<>[]#|" else one for one in flat)


def as_yaml(values: Mapping[str, object]) -> str:
    """Writes names and values as YAML, in order. Values are written as JSON, which is valid YAML, except for texts of
    several lines. YAML is never read here, because YAML parsers build the objects that a file names."""
    return "".join(f"{line}\n" for line in _lines(values))


def _lines(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{name}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, str) and "\n" in value:
            yield f"{name}: |-"
            yield from (f"  {_printable(line)}" for line in value.split("\n"))
        else:
            yield f"{name}: {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, float):
        base, sign, power = repr(value).partition("e")
        return f"{base if '.' in base else base + '.0'}{sign}{power}"  # 1e-05 is a text to some readers
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


NO_NOISE = "NOT PRIVATE: no noise was drawn. This run protects nobody."
STAMP = "SIMULATION: the noise came from a seed and can be repeated. This run protects nobody."
BROKEN = "THIS RECEIPT DOES NOT HOLD: files of the run do not agree with each other."
FORGED = (
    "that ledger, receipt and files were not forged together: against this a site signs its receipt",
    "which program wrote the files, and that it really drew the noise",
)
COLUMNS = (
    "protected", "against", "epsilon", "delta", "hidden change", "status", "accountant", "a 1% guess can become",
)  # fmt: skip


class Evidence(NamedTuple):
    """Facts about a run from which documents are written, with the verdict of their verification."""

    receipt: Receipt
    experiment: Experiment
    public: PublicNumbers
    environment: Environment
    verdict: Verdict

    @property
    def simulated(self) -> bool:
        return self.receipt.simulated

    @property
    def stamps(self) -> list[str]:
        """Warnings on top of every document."""
        return [BROKEN] * bool(self.verdict.wrong) + [STAMP if self.noised else NO_NOISE] * self.simulated

    @property
    def noised(self) -> bool:
        """True where any noise was drawn."""
        return any(row.status != "none" for row in self.receipt.guarantees) or self.receipt.budget is not None

    @property
    def rows(self) -> tuple[Described, ...]:
        return described(self.receipt.guarantees, self.simulated)

    @property
    def strongest(self) -> Guarantee | None:
        return strongest(self.receipt.guarantees)

    @property
    def kind(self) -> str:
        """Kind of the examples: image, table or text; text is recognised by a model that reads tokens."""
        return "text" if self.experiment.model["name"] in ("text", "transformer") else self.public.kind

    @property
    def own(self) -> list[int]:
        """Sizes of the clients that the receipt is about: all of them, or those of one site."""
        among = self.environment.clients
        return [size for k, size in enumerate(self.public.sizes) if among is None or k in among]

    @property
    def examples(self) -> str:
        """Number of examples in words, where it is public."""
        return f"{sum(self.public.sizes):,}" if self.experiment.privacy.public_sizes else "an undisclosed number of"

    @property
    def setting(self) -> str:
        """Algorithm, data, rounds and model of the run, in a sentence."""
        of = f"{len(self.public.sizes)} clients with {self.examples} examples"
        of += f" (this receipt is about {len(self.own)} of them)" * (len(self.own) < len(self.public.sizes))
        kind = {"image": "images", "text": "texts", "table": "rows of a table"}[self.kind]
        cohort = self.experiment.cohort.get("name", "all")
        return (
            f"{self.experiment.algorithm['name']} on {kind}: {of}, {training_rounds(self.receipt)} of "
            f"{self.experiment.rounds} rounds, cohort {cohort}, model {self.experiment.model['name']}"
        )

    @property
    def noise(self) -> list[str]:
        """Each kind of noise behind the strongest guarantee, and how often it was drawn for the busiest client."""
        row = self.strongest or next(iter(self.receipt.guarantees), None)
        return [] if row is None or row.event is None else descriptions(row.event)


def gather(folder: Path, key: Path | None, code: bool, anyway: bool) -> Evidence:
    """Verify a run folder, or a copy of its public files, and collect its facts. A receipt that does not hold is
    refused, unless `anyway` is set: then the document says so. `key`: public key of the site that must have signed it;
    `code`: import an algorithm of the user's own.
    """
    verdict, run = examine(folder, key, code), RunFolder(folder)
    try:
        check_run(run)
    except LedgerError as error:
        verdict = verdict._replace(wrong=[*verdict.wrong, error.what], agreed=[])
    if verdict.wrong and not anyway:
        raise LedgerError(
            f"no document can be made of {folder}: the receipt does not hold",
            why="; ".join(verdict.wrong),
            fix="ask the sender for the files that the run wrote, or add --anyway: then the document "
            "says on its top that the receipt does not hold",
            code="receipt-does-not-hold",
        )
    return Evidence(run.receipt(sealed=False), run.experiment, Agreement.read(folder).public, run.environment, verdict)


def table(found: Evidence) -> list[tuple[str, ...]]:
    """Table of the guarantees, one row for each; COLUMNS names its columns."""
    return [
        (
            f"one {row.unit}",
            subject(by),
            epsilon_text(row.epsilon) if row.nominal_epsilon is None else _both(row),
            delta_text(row.delta),
            f"{row.neighbours}: {CHANGE[row.neighbours]}",
            standing(row.status, found.simulated),
            row.accountant,
            _sure(row, found.simulated),
        )
        for row, by in merged(found.receipt.guarantees)
    ]


def _sure(row: Guarantee, simulated: bool) -> str:
    posterior = belief(row.epsilon, row.delta).posterior
    return "certain" if posterior == 1.0 else percent(posterior) + (" (with real noise)" if simulated else "")


def _both(row: Guarantee) -> str:
    printed = epsilon_text(row.nominal_epsilon or 0.0)
    return f"{epsilon_text(row.epsilon)} holds; {printed} is printed and proves nothing"
