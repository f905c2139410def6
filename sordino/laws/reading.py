"""Laws that read: the class and its source, before anything of it is called."""

from __future__ import annotations

import ast
import dataclasses
import inspect

from sordino.algorithms.algorithm import Algorithm, unwritten
from sordino.laws.trial import Trial, require

DRAWS = {
    "rand", "randn", "randint", "randperm", "normal", "normal_", "uniform", "uniform_", "laplace", "bernoulli",
    "bernoulli_", "multinomial", "exponential_", "Laplace", "Normal", "default_rng", "gaussian", "coins", "bits",
    "permutation", "integers", "coin", "manual_seed", "urandom", "rand_like", "randn_like", "randint_like",
    "random_", "cauchy_", "geometric_", "log_normal_", "random", "randrange", "gauss", "shuffle", "choice",
    "choices", "token_bytes", "getrandbits",
}  # fmt: skip


def calls(source: str) -> set[str]:
    """The names of everything that a module calls: f(...) and x.f(...)."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func
            found.add(name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", ""))
    return found


def complete(trial: Trial) -> None:
    fix = "subclass FedAvg, as FedProx does, or write all halves"
    require(issubclass(trial.made, Algorithm), "it does not inherit from Algorithm", fix)
    missing = unwritten(trial.made)
    require(not missing, f"it has no {', '.join(missing)}", fix)
    fields = {field.name for field in dataclasses.fields(trial.made)}
    gates = [name for name in ("read", "uplink") if name not in fields]
    fix = "write `read: Reader = Open()` and `uplink: Uplink = Uplink()` as fields"
    require(not gates, f"{' and '.join(gates)} cannot be exchanged: no field of the dataclass", fix)


def frozen(trial: Trial) -> None:
    fix = "put @dataclass(frozen=True) above the class"
    fields = {field.name for field in dataclasses.fields(trial.made)}
    written = inspect.get_annotations(trial.made)
    lost = [name for name, kind in written.items() if name not in fields and "ClassVar" not in str(kind)]
    require(not lost, f"{', '.join(lost)} cannot be set from an experiment: no field of the dataclass", fix)


def draws_nothing(trial: Trial) -> None:
    found = sorted(calls(trial.file.read_text(encoding="utf-8")) & DRAWS)
    fix = "let the gates draw: mini-batches and samples come from the reader, noise from the reader or the uplink"
    require(not found, f"it calls {', '.join(found)}", fix)
