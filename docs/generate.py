"""The pages that follow from the code: one per algorithm, the command line, the experiment file, Python.
`write(folder)` makes them.

What an algorithm promises is not typed here: a small run of it is made, and its receipt is read.
"""

from __future__ import annotations

import enum
import functools
import inspect
import tempfile
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import typer.main
from marking import code, first_line, joined, own_doc, plain, prose, table, toctree
from pydantic import BaseModel
from python_page import python
from receipt_page import receipt

import sordino
from sordino import config
from sordino.accounting.facts import epsilon_text
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import merged, sentence
from sordino.algorithms import all_algorithms
from sordino.budget import SCHEDULES
from sordino.cli.program import app
from sordino.config import Experiment, gates
from sordino.partition import SCHEMES
from sordino.runs.catalogue import catalogue, field_meanings
from sordino.sampling.by_budget import COHORTS
from sordino.tasks.nets import NETS

ROOT = Path(__file__).parents[1]
# A small run of each: two rounds of its own experiment where it has one, else of three clients. Private ones get a
# budget that every formula in the library accepts.
SHORT = ("rounds=2", "evaluation.final=1")
TINY = (*SHORT, "partition=iid", "partition.clients=3")
BUDGET = ("privacy.epsilon=0.9", "privacy.delta=1e-5")
HIDDEN = ("cohort={name='poisson', rate=0.5}", "privacy.epsilon=4", "privacy.delta=1e-3")
SPECIAL = {
    "cuag_pfl": (*HIDDEN, "model={name='mlp', hidden=16}"),
    "convex_stable": ("model={name='logistic', radius=4.0}",),
    "pfl_dyn": ("model={name='mlp', hidden=16}",),
    "prifedsync": ("model={name='mlp', hidden=16}",),
    "dp_prox": HIDDEN,
    "dp_fedavg": HIDDEN,
    "trainer": (
        "algorithm={name='trainer', of='tests.helpers.trainers:sgd'}",
        "uplink={client=[{name='clip', radius=1.0}, 'noise', 'weigh']}",
        "privacy.epsilon=4",
        "privacy.delta=1e-3",
    ),
    "slaug_fl": (
        "model={name='cnn_norm'}",
        "data.probe=5",
        "candidates={source='procedural', per_class=20}",
        "algorithm={name='slaug_fl', keep=10, gan_epochs=1, prepare_epochs=1, local_epochs=1}",
    ),
    "fedavg_prototypes": ("model={name='cnn_norm'}", "candidates={source='procedural', per_class=20}"),
    "vhl": ("algorithm={name='vhl', per_class=10, width=8}", "model={name='cnn_norm'}"),
    "pdp_prox": ("cohort=everyone", "privacy.epsilon={linspace=[1.0, 4.0], levels=3}"),
}


def write(folder: Path) -> None:
    """Only what changed is written, so that a second build is quick."""
    pages = {f"algorithms/{name}.md": algorithm(name) for name in all_algorithms()}
    pages |= {
        "algorithms/index.md": algorithms(),
        "command-line.md": command_line(),
        "experiment-file.md": experiment_file(),
        "python.md": python(),
        "receipt.md": receipt(),
    }
    for name, text in pages.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


# algorithms -----------------------------------------------------------------------------------------------------------


def algorithms() -> str:
    rows = [(f"[{name}]({name}.md)", first_line(purpose(name)), promised(name)) for name in all_algorithms()]
    return joined(
        "# Algorithms",
        "One file each. The pages are made from the docstrings, the signatures, and the receipt of a small run; "
        "nothing in the last column is typed by hand.",
        table(("name", "what", "promises at best"), rows),
        toctree(all_algorithms(), hidden=True),
    )


def algorithm(name: str) -> str:
    made, module = all_algorithms()[name], module_of(name)
    parts = [f"# {name}"]
    if not inspect.isclass(made):
        parts.append(prose(inspect.getdoc(made) or ""))
    parts.append(prose(module.__doc__ or ""))
    parts += ["## Parameters", table(PARAMETERS, parameter_rows("algorithm", name)), "## What it promises"]
    parts += promises(name)
    parts += ["## The code"]
    if not inspect.isclass(made):
        parts += [code(inspect.getsource(made)), f"It stands in this file, `{path_of(module)}`:"]
    else:
        parts.append(f"All of `{path_of(module)}`:")
    parts.append(code(inspect.getsource(module)))
    return joined(*parts)


def promises(name: str) -> list[str]:
    made = guarantees(name)
    rows = [(row.unit, row.neighbours, row.adversary, epsilon_text(row.epsilon), f"`{row.status}`") for row in made]
    words = [f"- {sentence(row, by)}" for row, by in merged(made)]
    command = " ".join(filter(None, ("sordino run", experiment(name), *settings(name))))
    return [
        f"Read from the receipt of `{command}`:",
        table(("unit", "neighbours", "against", "epsilon", "status"), rows),
        "\n".join(words),
    ]


def promised(name: str) -> str:
    """The widest unit and strongest adversary with a finite number."""
    if any(row.status == "nominal" for row in guarantees(name)):
        return "nothing: what its source prints proves nothing"
    row = strongest(guarantees(name))
    if row is None:
        return "nothing by itself; a noisy reader or uplink makes it private"
    return f"{row.unit}, against {row.adversary}: `{row.status}`"


@functools.cache
def guarantees(name: str) -> tuple[Guarantee, ...]:
    """Of a small run: what its receipt says."""
    with tempfile.TemporaryDirectory() as folder:
        return sordino.run(None, *settings(name), out=Path(folder) / "run").receipt.guarantees


def experiment(name: str) -> str:
    """The experiment of its own that lies in the repository; none for nothing."""
    return own if (ROOT / (own := f"experiments/{name}.toml")).is_file() else ""


def settings(name: str) -> list[str]:
    if experiment(name):
        return [*SHORT]
    return [f"algorithm={name}", *TINY, *(BUDGET if is_private(name) else ()), *SPECIAL.get(name, ())]


def is_private(name: str) -> bool:
    made = all_algorithms()[name]()
    return made.read.offer() is not None or made.uplink.noise() is not None


def purpose(name: str) -> str:
    made = all_algorithms()[name]
    return (module_of(name).__doc__ if inspect.isclass(made) else inspect.getdoc(made)) or ""


def module_of(name: str) -> ModuleType:
    module = inspect.getmodule(all_algorithms()[name])
    assert module is not None
    return module


def path_of(module: ModuleType) -> str:
    return module.__name__.replace(".", "/") + ".py"


# the command line -----------------------------------------------------------------------------------------------------


def command_line() -> str:
    parts = ["# Command line", "Made from the program itself: what `--help` says, on one page."]
    parts += list(commands(typer.main.get_command(app), ("sordino",)))
    return joined(*parts)


def commands(command: Any, path: tuple[str, ...]) -> Iterable[str]:
    subcommands = getattr(command, "commands", {})
    if path != ("sordino",):
        yield f"{'##' if len(path) == 2 else '###'} {' '.join(path)}"
    yield plain(command.help or "")
    shown = [p for p in command.params if p.name not in ("help", "install_completion", "show_completion")]
    if shown:
        yield table(("argument or option", "default", "what"), map(option_row, shown))
    for name, inner in subcommands.items():
        yield from commands(inner, (*path, name))


def option_row(option: Any) -> tuple[str, str, str]:
    is_option = option.param_type_name == "option"
    name = ", ".join([*option.opts, *option.secondary_opts]) if is_option else option.metavar or option.name.upper()
    default = option.default
    if isinstance(default, enum.Enum):
        name, default = f"{name} {'|'.join(choice.value for choice in type(default))}", default.value
    shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    return f"`{name}`", "required" if option.required else shown, plain(option.help or "")


# the experiment file --------------------------------------------------------------------------------------------------

CHOICES: Mapping[str, tuple[str, str, Mapping[str, Callable[..., Any]]]] = {
    "partition": ("scheme", "Who holds what.", SCHEMES),
    "model": (
        "name",
        "What is learned; `module:Class` names a `torch.nn.Module` of your own: `options` are the arguments of its "
        "constructor, and with `reset = true` its initial values are drawn anew.",
        NETS,
    ),
    "cohort": ("name", "Who takes part in a round.", COHORTS),
    "privacy.schedule": ("name", "How a budget is spread over a client's rounds.", SCHEDULES),
    "read": ("name", "How client code may read examples, for algorithms that come without a reader.", gates.READERS),
    "uplink.client / uplink.server": ("name", "What the server sees of uploads: lists of stages.", gates.STAGES),
}
KEYS = ("key", "type", "default", "what")
PARAMETERS = ("name", "type", "default", "what")
LISTED = {  # the same, as the catalogue calls them
    "partition": "partition",
    "model": "model",
    "cohort": "cohort",
    "privacy.schedule": "schedule",
    "read": "read",
    "uplink.client / uplink.server": "uplink",
}
GIVEN = ("shape", "classes")  # what the data decide, no table


def experiment_file() -> str:
    parts = [
        "# Experiment file",
        "One TOML file. A table that chooses something takes exactly the parameters of what it chooses; an unknown "
        "key is an error that "
        "names the nearest one. The command line goes over the file, the file over these defaults. "
        "Only without a file, and with a private algorithm, is there a budget by default: epsilon 8.",
        "## Top level",
        table(KEYS, field_rows(Experiment, lambda kind: not is_section(kind))),
    ]
    for name, field in Experiment.model_fields.items():
        if is_section(field.annotation):
            rows = field_rows(field.annotation, lambda kind: True)
            parts += [f"## `[{name}]`", table(KEYS, rows)]
    for where, (key, what, choices) in CHOICES.items():
        listed = [(f"`{choice}`", arguments(made), first_line(own_doc(made))) for choice, made in choices.items()]
        parts += [f"## `[{where}]`", what, table((f"`{key}`", "parameters = defaults", "what"), listed)]
        parts.append(table(("parameter", "of", "meaning"), meant(LISTED[where])))
    parts += [
        "## `[algorithm]`",
        "`name` is one of the [algorithms](algorithms/index.md), or `module:Class` for your own.",
    ]
    return joined(*parts)


def meant(where: str) -> list[tuple[str, str, str]]:
    """Each parameter of the choices of a table, and whose it is; equal words stand once."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, entry in catalogue()[where].items():
        for parameter, said in entry["parameters"].items():
            found.setdefault((parameter, said["meaning"]), []).append(name)
    return [(f"`{key}`", ", ".join(names), plain(words)) for (key, words), names in sorted(found.items())]


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def field_rows(section: Any, keep: Callable[[Any], bool]) -> list[tuple[str, str, str, str]]:
    said = field_meanings(section)
    return [
        (
            f"`{name}`",
            type_text(field.annotation),
            f"`{shown_default(field.get_default())}`",
            plain(said[name]),
        )
        for name, field in section.model_fields.items()
        if keep(field.annotation)
    ]


def arguments(made: Callable[..., Any]) -> str:
    listed = [
        name if default is ... else f"{name} = {shown_default(default)}"
        for name, (_, default) in config.parameters(made).items()
        if name not in GIVEN
    ]
    return f"`{', '.join(listed)}`" if listed else ""


def parameter_rows(where: str, name: str) -> list[tuple[str, str, str, str]]:
    return [
        (
            f"`{parameter}`",
            plain(entry["type"]),
            "required" if entry.get("required") else f"`{shown_default(entry['default'])}`",
            plain(entry["meaning"]),
        )
        for parameter, entry in catalogue()[where][name]["parameters"].items()
    ]


def type_text(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if typing.get_origin(kind) is typing.Literal:
        return " | ".join(f'`"{choice}"`' for choice in typing.get_args(kind))
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        return " | ".join(type_text(part) for part in typing.get_args(kind))
    words = {dict: "table", str: "text", int: "integer", float: "number", bool: "`true` | `false`"}
    return words.get(typing.get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))


def shown_default(value: Any) -> str:
    """As one would write it in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {shown_default(v)}" for k, v in value.items()) + "}"
    return "none" if value is None else str(value)


if __name__ == "__main__":
    write(Path(__file__).parent / "generated")
