"""Run the rows of an experiment folder and write its table: python experiments/table.py experiments/client_noise
[--jobs 2].

Finished runs are kept in results.jsonl, so an interrupted table goes on where it stopped. The headline is the final
round and the mean of the last ten, never the best round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def one(base: Path, row: dict[str, Any], seed: int, last: int, targets: Sequence[float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "sordino",
            "run",
            str(base),
            *row["set"],
            "--seed",
            str(seed),
            "--out",
            f"{place}/run",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{row['name']} seed {seed} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    accuracy = [m["accuracy"] for m in found["metrics"] if "accuracy" in m]
    stated = strongest(found["privacy"]["guarantees"])
    losses = [m["loss"] for m in found["metrics"] if "loss" in m]
    return {
        "name": row["name"],
        "seed": seed,
        "final": 100 * accuracy[-1],
        "last": 100 * statistics.mean(accuracy[-last:]),
        "loss": statistics.mean(losses[-last:]),
        "epsilon": stated["epsilon"],
        "status": stated["status"],
        "subject": f"{stated['unit']}, {stated['adversary']}",
        "groups": (found["privacy"]["budget"] or {}).get("groups", []),
        "bytes_up": sum(m["bytes_up"] for m in found["metrics"]),
        "slot_gib": sum(m["payload"] for m in found["metrics"]) / 2**30,
        "curve": [[m["round"], round(100 * m["accuracy"], 3)] for m in found["metrics"] if "accuracy" in m],
        "norm": [m["model_norm"] for m in found["metrics"] if "model_norm" in m][-1],
        "also": beside(found["metrics"], last),
        "before": sum(m["bytes_up"] + m["bytes_down"] for m in found["preparation"]),
        "flops": sum(m.get("device_flops", 0) for m in (*found["preparation"], *found["metrics"])),
        "reached": [waited(found, target) for target in targets],
    }


def waited(found: dict[str, Any], target: float) -> list[int] | None:
    """The first evaluated round that reached it, and the bytes sent by then, those before round 1 with them; None if
    none did.
    """
    sent = sum(m["bytes_up"] + m["bytes_down"] for m in found["preparation"])
    for m in found["metrics"]:
        sent += m["bytes_up"] + m["bytes_down"]
        if m.get("accuracy", 0) >= target:
            return [m["round"], sent]
    return None


def beside(metrics: list[dict[str, Any]], last: int) -> dict[str, float]:
    """Of the other models and ways that were evaluated: the mean of their last rounds."""
    rows = [m["also"] for m in metrics if "also" in m][-last:]
    return {name: 100 * statistics.mean(row[name]["accuracy"] for row in rows) for name in (rows[0] if rows else {})}


def strongest(guarantees: list[dict[str, Any]]) -> dict[str, Any]:
    """The finite row about the largest unit and the strongest adversary; a row of the server's where none is finite."""
    order = [(unit, adversary) for unit in ("client", "example") for adversary in ("server", "participants", "public")]
    by = {(g["unit"], g["adversary"]): g for g in guarantees}
    return next((by[key] for key in order if key in by and by[key]["epsilon"] != "inf"), guarantees[0])


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def costs(mine: list[dict[str, Any]], targets: Sequence[float]) -> list[str]:
    """MB before round 1, device TFLOP of all rounds, and per target its round and the MB sent by then, means over the
    seeds that reached it.
    """
    cells = [
        f"{statistics.mean(r['before'] for r in mine) / 1e6:.1f}",
        f"{statistics.mean(r['flops'] for r in mine) / 1e12:.3f}",
    ]
    for i in range(len(targets)):
        hits = [r["reached"][i] for r in mine if r["reached"][i] is not None]
        missed = f" ({len(hits)} of {len(mine)})" if len(hits) < len(mine) else ""
        told = (
            f"{statistics.mean(h[0] for h in hits):.1f}, {statistics.mean(h[1] for h in hits) / 1e6:.1f} MB{missed}"
            if hits
            else "not reached"
        )
        cells.append(told)
    return cells


def table(
    rows: list[dict[str, Any]], results: list[dict[str, Any]], last: int, traffic: bool, targets: Sequence[float] = ()
) -> str:
    heads = [
        "row",
        "n",
        "final accuracy",
        f"mean of last {last}",
        "loss",
        "yardstick",
        "epsilon",
        "of one, against",
        "status",
    ]
    heads += ["beside it", "model norm", "GiB up per slot", "published"] if traffic else []
    heads += (
        ["MB before round 1", "device TFLOP", *(f"{t:.0%} at round, sent by then" for t in targets)] if targets else []
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        mine = [r for r in results if r["name"] == row["name"]]
        if not mine:
            continue
        yard = " / ".join(f"{v:.2f}" for v in row["yardstick"]) if "yardstick" in row else "-"
        loss = spread([r["loss"] for r in mine]) if "loss" in mine[0] else "-"
        epsilon = mine[0]["epsilon"] if isinstance(mine[0]["epsilon"], str) else f"{mine[0]['epsilon']:.3f}"
        final, recent = spread([r["final"] for r in mine]), spread([r["last"] for r in mine])
        facts = (row["name"], len(mine), final, recent, loss, yard, epsilon, mine[0]["subject"], mine[0]["status"])
        if traffic:
            also = "; ".join(f"{name} {value:.2f}" for name, value in mine[0].get("also", {}).items()) or "-"
            norm = spread([r["norm"] for r in mine]) if "norm" in mine[0] else "-"
            facts += (also, norm, f"{statistics.mean(r['slot_gib'] for r in mine):.4f}", row.get("slot_gib", "-"))
        facts += tuple(costs(mine, targets)) if targets else ()
        lines.append(f"| {' | '.join(map(str, facts))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    given = tomllib.loads((arguments.folder / "rows.toml").read_text())
    rows, last = given["row"], given.get("last", 10)
    targets = given.get("targets", [])  # accuracies that somebody waits for: their rounds and bytes are told
    shown = given.get("traffic", False), targets
    base = next(path for path in arguments.folder.glob("*.toml") if path.name != "rows.toml")
    store = arguments.folder / "results.jsonl"
    results = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {(r["name"], r["seed"]) for r in results}
    most = max(row["seeds"] for row in rows)  # every row has its first seed before one has its second
    todo = [(r, seed) for seed in range(most) for r in rows if seed < r["seeds"] and (r["name"], seed) not in done]
    with ThreadPoolExecutor(arguments.jobs) as pool, open(store, "a") as file:
        for found in pool.map(lambda job: one(base, *job, last, targets), todo):
            results.append(found)
            file.write(json.dumps(found) + "\n")
            file.flush()
            (arguments.folder / "table.md").write_text(table(rows, results, last, *shown))
            print(f"{found['name']:40s} seed {found['seed']}  {found['final']:.2f}", flush=True)
    (arguments.folder / "table.md").write_text(table(rows, results, last, *shown))


if __name__ == "__main__":
    main()
