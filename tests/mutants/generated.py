"""The share of random mutants that the tests kill, and those that survive: `python -m tests.mutants.generated --help`.

A mutant is one small change of one line that tests run: a comparison, an operator, a number, a condition, an argument,
a statement. Lines are drawn at random, from a seed; of each line one change. The tests that run the line are tried on
it, nearest first, until one fails. A survivor is the same program in other words, or shows a test that is missing.

It needs `pip install coverage`, which says which test runs which line. Lines that only an import runs are not drawn.
Nothing that child processes run is seen.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mutants.mutant import ROOT, planted, run, warm_process

PAIRS = ["Lt LtE", "Gt GtE", "Eq NotEq", "In NotIn", "Is IsNot", "And Or", "Add Sub", "Mult Div", "UAdd USub"]
SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
for one, other in (map(vars(ast).__getitem__, pair.split()) for pair in PAIRS):
    SWAPS |= {one: other, other: one}
NAMES = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any", "sum": "max"}


class Change(NamedTuple):
    line: int
    begin: int  # bytes of the module
    end: int
    old: str
    new: str

    def made(self, source: bytes) -> str:
        return (source[: self.begin] + self.new.encode() + source[self.end :]).decode()


def swapped(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions in place of this one."""

    def like(**fields: Any) -> ast.AST:
        return type(node)(**dict(ast.iter_fields(node)) | fields)

    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right) if any(
            isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in (left, right)
        ):
            return  # words
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.UnaryOp(op=op) if type(op) in SWAPS:
            yield like(op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                yield like(ops=[*ops[:index], SWAPS[type(op)](), *ops[index + 1 :]])
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.IfExp(body=body, orelse=orelse):
            yield like(body=orelse, orelse=body)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield like(func=ast.Name(NAMES[name]))
        case ast.Call(args=args, keywords=keywords):
            for index in range(len(keywords)):
                yield like(keywords=[*keywords[:index], *keywords[index + 1 :]])
            if args and not isinstance(args[-1], ast.Starred):
                yield like(args=args[:-1])


def changes(source: bytes) -> Iterator[Change]:
    """Every change of a module, each of one place."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: Any, new: str) -> Change:
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Change(node.lineno, begin, end, source[begin:end].decode(), new)

    def below(node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.JoinedStr() | ast.Assert() | ast.Pass():  # Python 3.11 does not know where an f-string's parts lie
                return
            case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield change(node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield change(node, "return None")
            case ast.If(test=test) | ast.While(test=test):
                yield change(test, f"(not ({ast.unparse(test)}))")
            case ast.comprehension(ifs=ifs):
                yield from (change(test, f"(not ({ast.unparse(test)}))") for test in ifs)
            case ast.expr():
                for new in swapped(node):
                    yield change(node, f"({ast.unparse(new)})")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "exc"):  # a refusal's words are its own
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from below(child)

    return below(ast.parse(source))


# what tests run -------------------------------------------------------------------------------------------------------


class Watch:
    """A plugin of pytest: coverage is told which test runs; seconds of tests that passed."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def watch(marked: str) -> None:
    """Run the tests of the copy that is the working folder, and note which lines each of them runs."""
    from coverage import Coverage

    coverage = Coverage(data_file="../covered", branch=True, source=["sordino"])
    coverage.start()
    seen = Watch(coverage)
    pytest.main(["-n0", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-m", marked, "tests"], plugins=[seen])
    coverage.stop()
    coverage.save()
    passed = {test: seconds for test, seconds in seen.seconds.items() if test not in seen.failed}
    Path("../passed.json").write_text(json.dumps(passed))
    print("not counted, for they failed or were skipped:", *sorted(seen.failed), sep="\n  ")
    coverage.report(file=sys.stdout, skip_empty=True, precision=2)


def prepared(folder: Path, marked: str) -> None:
    """A copy of what the repository holds, and what its tests run there."""
    copy = folder / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for mine in Path(__file__).parent.glob("*.py"):  # also where they are not in the repository
        shutil.copy2(mine, copy / "tests" / "mutants")
    command = [sys.executable, "-m", "tests.mutants.generated", str(folder), "--watch", "--marked", marked]
    subprocess.run(command, cwd=copy, check=True, env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"})


# mutants --------------------------------------------------------------------------------------------------------------


def nearest(file: str, tests: set[str], seconds: dict[str, float], limit: float) -> list[str]:
    """Tests of the module, of its room, of others; of each the quickest first, as many as fit into the limit."""
    room, stem = Path(file).parts[1], Path(file).stem

    def far(test: str) -> tuple[bool, bool, float]:
        path = Path(test.partition("::")[0])
        return stem not in path.stem, room not in path.parts, seconds[test]

    chosen = []
    for test in sorted(tests, key=far):
        limit -= seconds[test]
        if limit < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def drawn(folder: Path, number: int, seed: int) -> list[tuple[str, Change, set[str]]]:
    """Lines that tests run, drawn at random, each with one of its changes and the tests."""
    from coverage import CoverageData

    data = CoverageData(str(folder / "covered"))
    data.read()
    passed = json.loads((folder / "passed.json").read_text())
    places: list[tuple[str, list[Change], set[str]]] = []
    for path in sorted(data.measured_files()):
        file = str(Path(path).relative_to(folder / "copy"))
        contexts = data.contexts_by_lineno(path)
        lines: dict[int, list[Change]] = defaultdict(list)
        for change in changes(Path(path).read_bytes()):
            lines[change.line].append(change)
        for line, choices in sorted(lines.items()):
            if tests := {test for test in contexts.get(line, ()) if test in passed}:
                places.append((file, choices, tests))
    print(f"{len(places)} lines that tests run and a change is known for; seed {seed}")
    chance = random.Random(seed)
    return [(file, chance.choice(choices), tests) for file, choices, tests in chance.sample(places, number)]


def tried(folder: Path, number: int, seed: int, limit: float) -> None:
    """The share that is killed, and the survivors."""
    copy = folder / "copy"
    seconds = json.loads((folder / "passed.json").read_text())
    survivors, killers = [], set()
    with warm_process() as warm:
        for file, change, tests in drawn(folder, number, seed):
            chosen = nearest(file, tests, seconds, limit)
            began, code, killer = time.monotonic(), None, ""
            with planted(copy / file, change.made((copy / file).read_bytes())):
                for some in filter(None, (chosen[:20], chosen[20:])):
                    code, printed = run(warm, copy, *some, timeout=4 * limit + 30)
                    killer = next(iter(re.findall(r"^FAILED (.*?)(?: - .*)?$", printed, re.MULTILINE)), "")
                    if code != 0:
                        break
            told = f"{file}:{change.line}: {change.old!r} -> {change.new!r}"
            outcome = "survived" if code == 0 else f"killed by {killer or code}:"
            print(
                f"{time.monotonic() - began:3.0f} s, {len(chosen)} of {len(tests)} tests: {outcome} {told}", flush=True
            )
            if code == 0:
                survivors.append(told)
            elif killer:
                killers.add(killer)
        code, printed = run(warm, copy, *sorted(killers), timeout=1800) if killers else (0, "")
        print(f"without a mutant those that killed pass: {code == 0}", "" if code == 0 else printed[-2000:])
    killed = number - len(survivors)
    share, z = killed / number, 1.96
    middle, wide = share + z * z / (2 * number), z * math.sqrt(share * (1 - share) / number + (z / number / 2) ** 2)
    low, high = ((middle + sign * wide) / (1 + z * z / number) for sign in (-1, 1))
    print(
        f"\n{killed} of {number} killed: {share:.1%} (95%: {low:.1%} to {high:.1%}). Survivors:",
        *survivors,
        sep="\n  ",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Random mutants: the share that the tests kill.")
    parser.add_argument("folder", type=Path, help="where the copy, what its tests run and nothing else lies")
    parser.add_argument("--number", type=int, default=200, help="of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=20, help="seconds of tests for a mutant, in the copy without it")
    parser.add_argument("--marked", default="not slow", help="tests, as for pytest -m")
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        watch(given.marked)
    else:
        if not (given.folder / "passed.json").exists():
            prepared(given.folder.resolve(), given.marked)
        tried(given.folder.resolve(), given.number, given.seed, given.limit)
