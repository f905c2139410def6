"""The size of the package in numbers: `python docs/house_size.py [RUN]` prints them. With the folder of a run, it also
counts what verifying that run loads.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from house import PACKAGE, nodes, parsed

from sordino.branches import BRANCHES

ROOT = PACKAGE.parent
WORDLESS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
VERIFY = "import sys; from sordino.receipts.verify import examine; examine(__import__('pathlib').Path(sys.argv[1])); \
print(*(m.__file__ for n, m in list(sys.modules.items()) if n.split('.')[0] == 'sordino'), sep='\\n')"


@cache
def code_lines(file: Path) -> int:
    """Lines that hold code: no docstring, no comment, no blank."""
    said = {line for node in nodes(file) for line in _docstring(node)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type not in WORDLESS:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - said)


def _docstring(node: ast.AST) -> Iterable[int]:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return ()
    first = node.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return range(first.lineno, (first.end_lineno or first.lineno) + 1) if text else ()


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def import_lines(file: Path) -> int:
    found = (node for node in nodes(file) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def imported(file: Path) -> Iterator[Path]:
    """The modules of the package that a file names in its imports, wherever they stand."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sordino":
            base = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
            for place in (base, *(base / alias.name for alias in node.names)):
                yield from (p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file())


def importers() -> Counter[Path]:
    return Counter(place for file in modules() for place in set(imported(file)) - {file})


def members(file: Path, name: str) -> int:
    """Public methods, properties and fields of a class."""
    body = next(node.body for node in parsed(file).body if isinstance(node, ast.ClassDef) and node.name == name)
    named = (getattr(part, "name", None) or ast.unparse(getattr(part, "target", ast.Name("_"))) for part in body)
    return len({each for each in named if not each.startswith("_")})


def error_codes() -> set[str]:
    """Constants given as `code=` in calls."""
    return {
        keyword.value.value
        for file in modules()
        for node in nodes(file)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }


def verified(run: Path) -> list[Path]:
    """The modules that verifying a run loads."""
    asked = [sys.executable, "-c", VERIFY, str(run.resolve())]
    printed = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return [Path(line) for line in printed.splitlines() if line.endswith(".py")]


def repository() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split()]


def sizes(run: Path | None) -> Iterator[tuple[str, str]]:
    files, once = modules(), [file for file, count in importers().items() if count == 1]
    total, imports = sum(map(code_lines, files)), sum(map(import_lines, files))
    rooms: Counter[str] = Counter()
    for file in files:
        rooms[file.relative_to(PACKAGE).parts[0].removesuffix(".py")] += code_lines(file)
    yield "lines of code, the package", f"{total:,}"
    yield "lines of code, the trunk", f"{total - sum(rooms[branch] for branch in BRANCHES):,}"
    yield "lines of code, the repository", f"{sum(map(code_lines, repository())):,}"
    yield "modules", f"{len(files)}"
    yield "lines of imports", f"{imports:,} ({imports / total:.1%})"
    yield "modules with one importer", f"{len(once)}, {sum(code_lines(file) < 60 for file in once)} below 60 lines"
    yield "members of Algorithm", f"{members(PACKAGE / 'algorithms' / 'algorithm.py', 'Algorithm')}"
    yield "error codes", f"{len(error_codes())}"
    if run is not None:
        loaded = verified(run)
        yield "loaded by verifying", f"{len(loaded)} modules, {sum(map(code_lines, loaded)):,} lines"
    for room, lines in rooms.most_common():
        yield f"  {room}", f"{lines:,}"


if __name__ == "__main__":
    for name, value in sizes(Path(sys.argv[1]) if sys.argv[1:] else None):
        print(f"{name:<32}{value}")
