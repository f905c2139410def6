"""privacy.json as a JSON Schema: names and types are those of the values that a run writes, and each has its meaning
beside it.

For programs that read receipts: what a file of another shape says is no receipt of this version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from sordino.accounting.events import KINDS, Json
from sordino.accounting.statement import AN_EVENT
from sordino.receipts.run_files import Receipt

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "privacy.json: what a run of sordino promised and spent, to whom, under which assumptions"
LINK = {"$ref": "#/$defs/Event"}
INSIDE: Mapping[str, Json] = {  # the types that fields of events have
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "str": {"type": "string"},
    "Event": LINK,
    "tuple[Event, ...]": {"type": "array", "items": LINK},
}

GUARANTEE = {
    "unit": "What is protected: a pixel, an image, an example, a cell of examples, a person with "
    "several examples, or everything of a client.",
    "neighbours": "Which change of one unit the promise hides: `replace` (it has another value), `zero_out` (its "
    "contribution is counted or not; that it exists, and how many there are, is public).",
    "adversary": "From whom: the `server` sees every upload, `participants` every model that is sent out, the `public` "
    "what is published.",
    "epsilon": "Whatever the adversary sees is at most e^epsilon times as likely with one data set as with its "
    'neighbour. "inf": nothing is promised.',
    "delta": "The chance that is added to that; what sampled noise lacks of the ideal law is in it.",
    "accountant": "Whose composition of all releases is the smallest: gdp, pure, rdp, pld, or a sum of several kinds.",
    "accountants": "What accountants say of these releases. Each is a bound of its own. Where gdp says something it is "
    "exact, and others are left out: `sordino privacy verify` asks them all.",
    "status": "How far it is proved: `proved`, `conditional` (if `because` is true), `nominal` (a "
    "formula prints it, and it proves nothing), `none`.",
    "because": "What the promise depends on, or why nothing is promised.",
    "releases": "How many releases are counted, of the client that lost most.",
    "event": "All that was released about that client: which noise, how often, behind which sampler.",
    "nominal_epsilon": "What the formula of a publication prints. It proves nothing; `epsilon` is what holds.",
    "nominal_composed": "The same formula with all rounds added up, where that is another number.",
}
MEANING: Mapping[str, Mapping[str, str]] = {
    "Receipt": {
        "format": "The version of this shape: 1.",
        "run": "The run's name in the ledger and in environment.json.",
        "config": "Digest of experiment.toml, which every entry of the ledger names too.",
        "simulated": "true: the noise came from a seed and can be repeated, so nobody is protected by this run.",
        "rounds": "Rounds that the ledger knows: one that was begun counts.",
        "clients": "Clients that this receipt speaks of: all of them, or those of one site.",
        "guarantees": "What can still be learned: one row for each unit and adversary.",
        "budget": "What clients granted and have spent; null where nothing was granted.",
        "phases": "What each phase of a run with a preparation promises, given what went out before it.",
        "assumptions": "What the numbers rest on, in words. They are part of the promise.",
        "ledger_head": "Hash of the ledger's last entry when the receipt was sealed.",
        "files": "SHA-256 of the files that belong to the receipt, by name (of agreement.json: without `dataset`).",
    },
    "Guarantee": GUARANTEE,
    "Promised": GUARANTEE,
    "OfPhase": {
        "phase": "Its name.",
        "releases": "Rounds of it that the ledger knows.",
        "guarantees": "What it promises by itself.",
    },
    "ReceiptBudget": {
        "epsilon": "What the most generous client granted over all rounds.",
        "delta": "At this delta.",
        "currency": "What adds up in the ledger: such as rho of zCDP, mu^2 of Gaussian DP, or epsilon itself.",
        "granted": "The most generous budget in that currency; several numbers where the currency has several orders.",
        "spent_share": "The share of its own budget that a client has spent.",
        "exposures_planned": "In how many rounds a client was to pay.",
        "exposures_used": "In how many rounds a client did pay.",
        "groups": "Personal budgets: clients that grant the same.",
        "subject": "Whose epsilon the groups tell.",
    },
    "Group": {
        "granted": "The epsilon that each of them grants.",
        "clients": "How many they are.",
        "spent": "The epsilon of the one that lost most, from the ledger.",
        "status": "As of a guarantee.",
        "claimed": "What the publication's own count gives, which proves nothing; null where the count is sound.",
        "exposures": "In how many rounds they paid.",
    },
    "Subject": {name: GUARANTEE[name] for name in ("unit", "neighbours", "adversary")},
    "Between": {"min": "Of all clients.", "median": "Of all clients.", "max": "Of all clients."},
    "Event": {
        "gaussian": "Normal noise. `noise_multiplier`: its deviation over how far one unit can move the sum.",
        "discrete_gaussian": "The same law on whole numbers.",
        "laplace": "Laplace noise. `scale`: its scale over how far one unit can move the sum.",
        "response": "One of `levels` answers, kept or replaced at random, which costs `epsilon`.",
        "poisson": "`event`, on a secret sample in which each unit takes part with probability `rate`.",
        "repeat": "`event`, `count` times, each with fresh noise.",
        "once": "`event`, drawn once under this `name` and then only looked at again.",
        "together": "All of `events`, on the same data.",
        "non_private": "Access without protection, and the `reason`.",
        "nothing": "No access to the data.",
    },
}


def receipt_schema() -> Json:
    """The schema of privacy.json. Names that it does not know are no part of a receipt."""
    made = Receipt.model_json_schema(mode="validation")
    shapes = made.pop("$defs")
    receipt = {"$schema": DIALECT, **made, "title": TITLE}
    for name, shape in (("Receipt", receipt), *shapes.items()):
        shape["additionalProperties"] = False
        shape["properties"] = {
            field: {**_written(kind), "description": MEANING[name][field]}
            for field, kind in shape["properties"].items()
        }
    whole: Json = _linked({**receipt, "$defs": {**shapes, "Event": {"oneOf": list(_events())}}})
    return whole


def _written(kind: Json) -> Json:
    """The type of a field as a file has it: what says no more than its default is left out, so no null stands there."""
    kept = {name: value for name, value in kind.items() if name not in ("title", "default")}
    if "default" in kind and kind["default"] is None:
        kept["anyOf"] = [one for one in kind["anyOf"] if one != {"type": "null"}]
    return kept


def _events() -> Iterator[Json]:
    for kind, made in KINDS.items():
        parts = {field.name: INSIDE[str(field.type)] for field in fields(made)}
        yield {
            "type": "object",
            "description": MEANING["Event"][kind],
            "properties": {"kind": {"const": kind}, **parts},
            "required": ["kind", *parts],
            "additionalProperties": False,
        }


def _linked(part: Any) -> Any:
    """With a reference wherever an event stands."""
    if part == AN_EVENT:
        return LINK
    if isinstance(part, dict):
        return {name: _linked(inner) for name, inner in part.items()}
    return [_linked(inner) for inner in part] if isinstance(part, list) else part
