"""What installing sordino's core puts beside torch: packages and megabytes, in a fresh environment: python
benchmarks/install_size.py.

Counted is whatever sordino reaches without going through torch, so a package that torch needs as well is counted too.
Megabytes are the files the packages ship; the bytecode that Python or pip compiles from them is shown apart. Exits 1
above 30 packages or 250 MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES, MEGABYTES = 30, 250
LOOK = """
import json
from importlib.metadata import distributions
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name as plain
found = {}
for made in distributions():
    sizes = {True: 0, False: 0}
    for file in made.files or []:
        path = made.locate_file(file)
        sizes[path.suffix == ".pyc"] += path.stat().st_size if path.is_file() else 0
    wanted = map(Requirement, made.requires or [])
    needs = [plain(w.name) for w in wanted if w.marker is None or w.marker.evaluate({"extra": ""})]
    name = plain(made.metadata["Name"])
    found[name] = {"version": made.version, "needs": needs, "shipped": sizes[False], "compiled": sizes[True]}
print(json.dumps(found))
"""


def main() -> int:
    found = installed()
    counted = sorted(reached(found, "sordino", without="torch"), key=lambda name: -found[name]["shipped"])
    print(f"{'package':<22}{'version':<12}{'MB':>8}{'  + bytecode':>12}")
    for name in counted:
        one = found[name]
        print(f"{name:<22}{one['version']:<12}{one['shipped'] / 1e6:8.1f}{one['compiled'] / 1e6:12.1f}")
    shipped, compiled = (sum(found[name][kind] for name in counted) / 1e6 for kind in ("shipped", "compiled"))
    print(
        f"{len(counted)} packages (limit {PACKAGES}), {shipped:.0f} MB (limit {MEGABYTES}), bytecode {compiled:.0f} MB"
    )
    holds = len(counted) <= PACKAGES and shipped <= MEGABYTES
    print("within the limits" if holds else "ABOVE THE LIMITS")
    return 0 if holds else 1


def installed() -> dict[str, dict[str, Any]]:
    """Of a fresh environment with sordino's core and nothing else: name -> version, needs, bytes."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = [str(Path(folder) / "bin" / "python")]
        install = [*python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*install, str(ROOT)], check=True)
        said = subprocess.run([*python, "-c", LOOK], check=True, capture_output=True, text=True)
    made: dict[str, dict[str, Any]] = json.loads(said.stdout)
    return made


def reached(found: Mapping[str, Mapping[str, Any]], start: str, without: str) -> set[str]:
    """Everything `start` needs, directly or not, on ways that do not lead through `without`."""
    seen, waiting = set(), [start]
    while waiting:
        for need in found[waiting.pop()]["needs"]:
            if need != without and need in found and need not in seen:
                seen.add(need)
                waiting.append(need)
    return seen


if __name__ == "__main__":
    sys.exit(main())
