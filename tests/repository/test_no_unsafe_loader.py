"""Nothing in the repository can reach a loader that runs what it reads: an AST ban and a poisoned pickle.

The ban resolves import aliases (`import numpy as n; n.load`), and covers references as well as calls. It sees
names, not values: `getattr(torch, "lo" + "ad")` would pass it; the poisoned run below is there for such ways.
"""

from __future__ import annotations

import ast
import logging.handlers
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino.engine import checkpoint, wire
from sordino.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("sordino", "verifier", "tests", "benchmarks", "examples", "experiments", "docs")

MODULES = {
    *("pickle", "_pickle", "cPickle", "pickletools", "dill", "cloudpickle", "jsonpickle"),
    *("joblib", "marshal", "shelve", "yaml", "ruamel", "runpy"),
}
NAMES = {
    *("eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__"),
    *("importlib.import_module", "importlib.__import__", "importlib.util.spec_from_file_location"),
    *("torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load", "torch.package"),
    *("numpy.load", "numpy.lib.format.read_array", "numpy.lib.npyio.load"),
    *("pandas.read_pickle", "pandas.io.pickle"),
}
BELOW = tuple(f"{name}." for name in NAMES)
RECORDS = {"tests/receipts/test_exports.py", "tests/receipts/test_registry.py"}
ALLOWED = {
    "importlib.import_module": {
        # the user's own model or algorithm is named in their own experiment file or on their own command line
        *("sordino/user_code.py", "sordino/checks/__init__.py"),
        # our own names, of parts that need an extra
        *("sordino/data/__init__.py", "sordino/runs/trackers.py", "sordino/branches.py"),
        "sordino/branches.py",  # torch, which a verb names
        # what a user's training function has imported in its fork is imported in the process that it was forked from
        "sordino/privacy/readers/function_reader.py",
        # our own files, which name their algorithms, or attacks, themselves
        *("sordino/algorithms/__init__.py", "sordino/attacks/methods/__init__.py"),
        "tests/repository/test_house.py",  # our own modules, for the examples in their docstrings
        "tests/repository/test_benchmarks.py",  # our own modules, whose names benchmarks import
    },
    # the code blocks of our own documentation
    "exec": {"tests/repository/following.py"},
    # and a library of another's, whose package imports what is not needed
    "importlib.util.spec_from_file_location": {"tests/repository/following.py", "tests/golden/make_opake.py"},
    # our own programs beside the published tables
    "runpy": {"tests/experiments/test_tables.py"},
    "runpy.run_path": {"tests/experiments/test_tables.py"},
    # records for registries, and workflows, are written as YAML; another reader must find in them what was meant
    "yaml": RECORDS | {"tests/repository/test_release.py"},
    "yaml.safe_load": RECORDS | {"tests/repository/test_release.py"},
    "yaml.scan": RECORDS,
    "yaml.ScalarToken": RECORDS,
}


WRITTEN = [set(name.split(".")) for name in MODULES | NAMES]


def unsafe(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every banned import or reference."""
    words = set(re.findall(r"\w+", source))
    if source.isascii() and not any(name <= words for name in WRITTEN):
        return  # who reaches a name has written all its parts; Python reads some other letters as if they were ASCII
    nodes = list(ast.walk(ast.parse(source)))
    meaning = {name: name for name in ("eval", "exec", "__import__")}
    inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _banned(node, alias.name)
                meaning[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield from _banned(node, f"{node.module}.{alias.name}")
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and node not in inner:
            yield from _banned(node, _full_name(node, meaning))


def _banned(node: ast.stmt | ast.expr, name: str) -> Iterator[tuple[int, str]]:
    if name and (name.split(".")[0] in MODULES or name in NAMES or name.startswith(BELOW)):
        yield node.lineno, name


def _full_name(node: ast.expr, meaning: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, meaning)}.{node.attr}"
    return meaning.get(node.id, "") if isinstance(node, ast.Name) else ""


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.slow
def test_no_file_reaches_an_unsafe_loader() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in files()
        for line, name in unsafe(path.read_text(encoding="utf-8"))
        if path.relative_to(ROOT).as_posix() not in ALLOWED.get(name, set())
    ]
    assert found == []


def test_the_scan_reads_the_package_and_its_tests() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    assert {
        "sordino/engine/wire.py",
        "sordino/engine/checkpoint.py",
        "tests/repository/test_no_unsafe_loader.py",
    } <= names
    outside = {name for name, places in ALLOWED.items() if any(place.startswith("sordino/") for place in places)}
    assert outside == {"importlib.import_module"}, "the package's list of exceptions does not grow"


@pytest.mark.parametrize(
    ("snippet", "name"),
    [
        *((f"import {module}", module) for module in sorted(MODULES)),
        *((f"from {module} import load", f"{module}.load") for module in sorted(MODULES)),
        ("import pickle as harmless", "pickle"),
        ("import a, pickle", "pickle"),
        ("from ruamel.yaml import YAML", "ruamel.yaml.YAML"),
        ("def f():\n    try:\n        import dill\n    except ImportError:\n        pass", "dill"),
        ("from pickle import *", "pickle.*"),
        ("import torch\ntorch.load(f)", "torch.load"),
        ("import torch\ntorch.load(f, weights_only=True)", "torch.load"),
        ("import torch as t\nf = t.load", "torch.load"),
        ("from torch import load", "torch.load"),
        ("from torch import load as read\nread(f)", "torch.load"),
        ("from torch import serialization as s\ns.load(f)", "torch.serialization.load"),
        ("import torch.serialization\ntorch.serialization.load(f)", "torch.serialization.load"),
        ("import torch\ntorch.jit.load(f)", "torch.jit.load"),
        ("import torch.hub\ntorch.hub.load('a/b', 'c')", "torch.hub.load"),
        ("import torch.package", "torch.package"),
        ("import numpy as np\nnp.load(f)", "numpy.load"),
        ("import numpy\nnumpy.load(f, allow_pickle=False)", "numpy.load"),
        ("from numpy import load as l", "numpy.load"),
        ("import numpy as np\nnp.lib.format.read_array(f)", "numpy.lib.format.read_array"),
        ("import pandas as pd\npd.read_pickle(f)", "pandas.read_pickle"),
        ("eval('1')", "eval"),
        ("map(eval, texts)", "eval"),
        ("exec('1')", "exec"),
        ("__import__('os')", "__import__"),
        ("import builtins as b\nb.exec('1')", "builtins.exec"),
        ("from builtins import eval as e", "builtins.eval"),
        ("import importlib\nimportlib.import_module('os')", "importlib.import_module"),
        ("from importlib import import_module", "importlib.import_module"),
        (
            "import importlib.util as u\nu.spec_from_file_location('a', 'b')",
            "importlib.util.spec_from_file_location",
        ),
    ],
)
def test_the_scan_finds_each_banned_construct(snippet: str, name: str) -> None:
    assert name in {found for _, found in unsafe(snippet)}


@pytest.mark.parametrize(
    "snippet",
    [
        "model.eval()",
        "import re\nre.compile('exec')",
        "import json\njson.load(f)",
        "from safetensors.torch import load\nload(b'')",
        "import safetensors.torch\nsafetensors.torch.load(b'')",
        "import importlib.metadata\nimportlib.metadata.version('torch')",
        "from sordino.engine.checkpoint import load\nload(d, t)",
        "import torch\ntorch.save_nothing = 1\n'torch.load'",
        "from .pickle_jar import load",
        "import numpy as np\nnp.loadtxt(f)",
        "def load(): ...\nload()",
    ],
)
def test_the_scan_lets_harmless_code_pass(snippet: str) -> None:
    assert list(unsafe(snippet)) == []


def test_wire_and_checkpoint_work_with_pickle_poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(*_: object, **__: object) -> Any:
        raise AssertionError("pickle was reached")

    for module in ("pickle", "_pickle"):
        for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
            monkeypatch.setattr(sys.modules[module], name, poison)
    record = logging.makeLogRecord({})
    with pytest.raises(AssertionError, match="pickle was reached"):  # the control: a library that uses pickle
        logging.handlers.SocketHandler("", 0).makePickle(record)

    server = {"w": torch.randn(3, 2)}
    trees: dict[str, Tree] = {"server": server, "clients/1": (torch.arange(4),)}
    checkpoint.save(tmp_path, 1, trees, {"seed": 3})
    loaded = checkpoint.load(tmp_path, trees.__getitem__)
    assert loaded is not None
    assert checkpoint.digest_trees(loaded.trees) == checkpoint.digest_trees(trees)
    about = wire.Header("run-1", "ab" * 32, 0, 1, "up")
    found, received = wire.decode(wire.encode(about, server), about, server)
    assert found == about
    assert torch.equal(received["w"], server["w"])
