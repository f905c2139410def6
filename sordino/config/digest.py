"""The digest of an experiment: the name of what is played, whoever plays it and on whatever machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

# for Field(json_schema_extra=SINCE): a setting that came after the first format of run folders
SINCE: dict[str, Any] = {"since": 2}


def digest_of(experiment: BaseModel) -> str:
    """`[engine]`, which is how, and where anybody's files lie and how they are written are left out."""
    what = experiment.model_dump(mode="json", exclude={"engine"})
    _forget_new(experiment, what)
    what.pop("callbacks", None)  # who is told of a run is no part of it
    what["privacy"]["ledger"] = what["data"]["path"] = None
    for written in ("separator", "decimal", "encoding"):
        what["data"].pop(written, None)
    schema = what["data"]["schema"]
    what["data"]["schema"] = schema and ("learned" if schema == "learned" else "declared")
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _forget_new(section: BaseModel, what: dict[str, Any]) -> None:
    """With its default a setting that is new is no part of the digest, so that runs from before it keep their names."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) and name in what:
            _forget_new(value, what[name])
        elif field.json_schema_extra == SINCE and value == field.get_default():
            what.pop(name, None)
