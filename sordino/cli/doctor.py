"""`sordino doctor`: measure this machine, and name all that would slow a run down or stop it.

`measure` collects facts, `judge` turns them into findings, `engine` into the [engine] table. Nothing is sent anywhere,
nothing stays behind.
"""

from __future__ import annotations

import importlib.metadata
import locale
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.markup import escape

from sordino.branches import loading
from sordino.cli import Json, Screen, say
from sordino.errors import SordinoError

GB = 1e9
STYLES = {"ok": "green", "slow": "yellow", "broken": "bold red"}
SLOW_WRITE = 20.0  # ms: a local disk takes 0.1 to 10
SPOKEN = "ε ∞ ·"  # signs in tables


@dataclass(frozen=True)
class MachineFacts:
    """Properties of this machine and its libraries that decide how fast a run is."""

    python: str
    torch: str
    torch_threads: int
    cores: float  # that this process may use
    memory: float  # bytes that are free for it
    processor: str
    bf16: bool  # true where the processor has fast instructions for it
    accelerator: str
    place: str  # where runs/ would lie
    disk_free: float
    write_ms: float | None  # median of small durable writes; None where nothing can be written
    write_error: str
    extras: Mapping[str, list[str]]  # packages that are missing, by extra
    noise_error: str  # of the noise that protects people
    encoding: str
    terminal: bool


class Finding(NamedTuple):
    """Verdict of `sordino doctor` on one property of this machine."""

    what: str
    state: Literal["ok", "slow", "broken"]
    says: str
    fix: str = ""


def doctor(
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure the speed of this machine, too: about ten seconds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: abilities, slow parts, broken parts (then the exit code is 2)."""
    facts = measure(Path("runs"))
    findings = [*judge(facts), *(benched(facts) if bench else ())]
    if as_json:
        listed = [finding._asdict() for finding in findings]
        say({"facts": asdict(facts), "findings": listed, "engine": engine(facts, 20)})
    else:
        from rich.table import Table

        table = Table("what", "", "found", "to do")
        for f in findings:
            table.add_row(f.what, f"[{STYLES[f.state]}]{f.state}[/]", escape(f.says), escape(f.fix))
        Screen().print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(2)


def measure(place: Path) -> MachineFacts:
    with loading():
        import torch

    from sordino.fast import bf16_instructions

    while not place.exists():
        place = place.parent
    write_ms, write_error = _durable_write(place)
    return MachineFacts(
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
        cores=_cores(),
        memory=_memory(),
        processor=platform.machine(),
        bf16=bf16_instructions(),
        accelerator=_accelerator(),
        place=str(place.resolve()),
        disk_free=float(shutil.disk_usage(place).free),
        write_ms=write_ms,
        write_error=write_error,
        extras=_extras(),
        noise_error=_noise(),
        encoding=sys.stdout.encoding or locale.getpreferredencoding(),
        terminal=sys.stdout.isatty(),
    )


def judge(facts: MachineFacts) -> Iterator[Finding]:
    version = tuple(int(part) for part in facts.python.split(".")[:2])
    old = Finding("Python", "broken", f"{facts.python} is too old", "use Python 3.11 or newer")
    yield Finding("Python", "ok", facts.python) if version >= (3, 11) else old
    yield Finding("torch", "ok", f"{facts.torch}, {facts.torch_threads} threads by default; a run uses engine.threads")
    single = "client processes gain nothing here: leave engine.executor alone"
    cores = f"{facts.cores:g} ({facts.processor})"
    yield Finding("cores", "ok", cores) if facts.cores >= 2 else Finding("cores", "slow", cores, single)
    free, little = f"{facts.memory / GB:.1f} GB free", "close other programs; torch takes about 0.5 GB"
    yield Finding("memory", "ok", free) if facts.memory >= 2 * GB else Finding("memory", "slow", free, little)
    says = "the processor multiplies it: training may use it" if facts.bf16 else "fp32 is faster here, and used"
    yield Finding("bf16", "ok", says)
    yield Finding("accelerator", "ok", facts.accelerator or "none; runs are computed on the processor")
    yield _disk(facts)
    unsafe = 'noise = "system" cannot protect anyone here: find out why first'
    works = Finding("noise", "ok", "the operating system's random source works")
    yield Finding("noise", "broken", facts.noise_error, unsafe) if facts.noise_error else works
    yield _terminal(facts)
    for name, missing in facts.extras.items():
        hint = f"pip install 'sordino[{name}]'"
        says = "installed" if not missing else f"not installed: {', '.join(missing)}"
        yield Finding(f"extra {name}", "ok", says, hint if missing else "")


def engine(facts: MachineFacts, clients: int) -> dict[str, Any]:
    """The [engine] table for this machine. `auto` computes clients of one process in shared forward and backward passes
    wherever their method allows it."""
    return {
        "executor": "auto",
        "precision": "bf16" if facts.bf16 else "fp32",
        "workers": max(1, min(int(facts.cores), clients)),
        "threads": 1,
    }


def benched(facts: MachineFacts) -> Iterator[Finding]:
    """Compare the choices of `auto` with measurements on this machine."""
    from sordino.cli.bench import measure as race
    from sordino.fast import leaves_vectors_aside

    chosen = engine(facts, 20)
    auto = {"bf16": chosen["precision"] == "bf16", "oneDNN": leaves_vectors_aside(), "pooled": True, "stack": True}
    for row in race():
        times = " against ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in (row.first, row.second))
        winner = row.second[0] if row.ratio > 1 else row.first[0]
        taken = row.second[0] if auto[row.second[0]] else row.first[0]
        says = f"{row.what}: {times}, {row.ratio:.1f}x; auto takes {taken}"
        key = {"bf16": "precision", "oneDNN": "library"}.get(row.second[0], "executor")
        better = {"alone": "loop"}.get(winner, winner)
        fix = f'set engine.{key} = "{better}" for such work'
        if key == "library":
            fix = "nothing has to be done; report it with the name of the processor, by which the library is chosen"
        yield Finding(f"auto {key}", "ok", says) if winner == taken else Finding(f"auto {key}", "slow", says, fix)


def _disk(facts: MachineFacts) -> Finding:
    if facts.write_ms is None:
        return Finding(
            "disk",
            "broken",
            f"{facts.place} cannot be written: {facts.write_error}",
            "start in a folder on a local disk that is yours, or give --out",
        )
    says = f"{facts.write_ms:.1f} ms for a durable write, {facts.disk_free / GB:.0f} GB free in {facts.place}"
    if facts.disk_free < 0.1 * GB:
        return Finding("disk", "broken", says, "free some space: a run keeps three checkpoints and a ledger")
    if facts.write_ms > SLOW_WRITE:
        fix = "every round waits for several such writes: put runs on a local disk with --out"
        return Finding("disk", "slow", says, fix)
    return Finding("disk", "ok", says)


def _terminal(facts: MachineFacts) -> Finding:
    try:
        SPOKEN.encode(facts.encoding)
    except (UnicodeEncodeError, LookupError):
        return Finding(
            "terminal", "broken", f"{facts.encoding} cannot show an epsilon", "export PYTHONUTF8=1, or a UTF-8 locale"
        )
    return Finding(
        "terminal", "ok", f"{facts.encoding}, " + ("live progress" if facts.terminal else "plain lines: not a terminal")
    )


# looking --------------------------------------------------------------------------------------------------------------


def _cores() -> float:
    from sordino.engine.executor import cores

    held = cores()
    quota = _words(Path("/sys/fs/cgroup/cpu.max"))  # of a container: "200000 100000" is two cores
    return min(held, int(quota[0]) / int(quota[1])) if len(quota) == 2 and quota[0] != "max" else held


def _memory() -> float:
    lines = _words(Path("/proc/meminfo"))
    if "MemAvailable:" in lines:
        free = 1024.0 * int(lines[lines.index("MemAvailable:") + 1])
    else:
        free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, used = (_words(Path(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    return min(free, int(limit[0]) - int(used[0])) if limit and used and limit[0] != "max" else free


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _accelerator() -> str:
    import torch

    found = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    if found:
        ways = "" if len(found) == 1 else ", and each client process, or rank of torchrun, on one of its own"
        return f'{", ".join(found)}; engine.device = "cuda" computes on it{ways}'
    return "Apple GPU, without the 64-bit numbers that sums are taken in" if torch.backends.mps.is_available() else ""


def _durable_write(place: Path) -> tuple[float | None, str]:
    from sordino.accounting.claims import ZCDP
    from sordino.ledger.files import atomic_write
    from sordino.ledger.ledger import Ledger, LedgerScope

    times = []
    try:
        with tempfile.TemporaryDirectory(prefix=".sordino-doctor-", dir=place) as folder:
            Ledger.open(Path(folder) / "ledger.sqlite", LedgerScope("00" * 32, None, 1e-5, ZCDP)).close()
            for _ in range(9):
                begun = time.perf_counter()
                atomic_write(Path(folder) / "written", os.urandom(4096))
                times.append(1000 * (time.perf_counter() - begun))
    except OSError as error:
        return None, error.strerror or str(error)
    except SordinoError as error:
        return None, f"{error.what}; {error.why}"
    return statistics.median(times), ""


def _extras() -> dict[str, list[str]]:
    """Extras of the installed package, each with its missing packages."""
    missing: dict[str, list[str]] = {}
    try:
        lines = importlib.metadata.requires("sordino") or []
    except importlib.metadata.PackageNotFoundError:  # started from a clone that is not installed
        return {}
    for line in lines:
        if found := re.fullmatch(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"].*", line):
            lacking = missing.setdefault(found[2], [])
            try:
                importlib.metadata.version(found[1])
            except importlib.metadata.PackageNotFoundError:
                lacking.append(found[1])
    return missing


def _noise() -> str:
    import torch

    from sordino.privacy.noise import GaussianNoise
    from sordino.privacy.noise.sources import SystemNoise

    try:
        drawn, again = (SystemNoise().noisy(GaussianNoise(), torch.zeros(10_000), 1.0) for _ in range(2))
    except OSError as error:
        return str(error)
    if torch.equal(drawn, again):
        return "the random source repeats itself"
    # standard errors are 0.01 and 0.007: an honest source fails once in 10^23
    plausible = abs(float(drawn.mean())) < 0.1 and abs(float(drawn.std()) - 1) < 0.1
    return "" if plausible else "the noise has the wrong size"
