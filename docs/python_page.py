"""The page about Python, from the source: what may be called, and the words of an algorithm."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from marking import code, joined, own_doc, prose

import sordino
from sordino import errors, types
from sordino.algorithms import optional
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.phases import Phase
from sordino.results import Result
from sordino.results.comparison import Comparison

SIDES = (
    *(optional.PublicFacts, optional.Home, optional.FitsData, optional.OwnLoss, optional.OtherReads),
    *(optional.PerClientMessages, optional.RequestsClients, optional.PublicTensors, optional.FollowsPhase),
)


def python() -> str:
    parts = ["# Python", "Everything below is public: names reached otherwise may change."]
    parts += ["## `sordino`"]
    for name in sordino.__all__:
        made = getattr(sordino, name)
        if callable(made):
            parts += member(f"sordino.{name}", made)
    parts += ["## Results"]
    parts += member("Result", Result)
    parts += member("Comparison", Comparison)
    parts += ["## The words of an algorithm", prose(types.__doc__ or "")]
    for made in (Algorithm, Phase, *SIDES):
        parts += member(made.__name__, made)
    for name in (
        "Reader",
        "Shard",
        "Batch",
        "Task",
        "Received",
        "Grant",
        "LocalWork",
        "Claim",
        "Bound",
        "Offer",
    ):
        parts += member(name, getattr(types, name))
    parts += ["## Errors", code(inspect.cleandoc(errors.__doc__ or ""), "text")]
    parts += member("SordinoError", errors.SordinoError)
    return joined(*parts)


def member(name: str, made: Any) -> list[str]:
    """The lines of the source that say what it takes: fields and method heads, no bodies."""
    lines = textwrap.dedent(inspect.getsource(made)).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    kept = head(node, lines) if isinstance(node, ast.FunctionDef) else [lines[node.lineno - 1]]
    for part in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            kept += lines[part.lineno - 1 : part.end_lineno]
        elif isinstance(part, ast.FunctionDef) and (not part.name.startswith("_") or part.name == "__init__"):
            said = (ast.get_docstring(part) or "").partition("\n")[0]
            kept += ["", *([f"    # {said}"] if said else []), *head(part, lines)]
    return [f"### `{name}`", prose(own_doc(made)), code("\n".join(kept))]


def head(function: ast.FunctionDef, lines: list[str]) -> list[str]:
    """Decorators and signature as they stand."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    body = function.body[0]
    if lines[body.lineno - 1][: body.col_offset].strip():  # `def f(): ...` has its body in its head
        return lines[first - 1 : body.lineno]
    *above, last = [line for line in lines[first - 1 : body.lineno - 1] if line.strip()]
    return [*above, f"{last} ..."]
