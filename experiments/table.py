"""Run the rows of an experiment folder and write its table: python experiments/table.py experiments/client_noise [--jobs 2].

Finished runs are kept in results.jsonl, so an interrupted table goes on where it stopped. The headline is the final round and the mean of the
last ten, never the best round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def one(base: Path, row: dict[str, Any], seed: int) -> dict[str, Any]:
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
    server = [g for g in found["privacy"]["guarantees"] if g["unit"] == "example" and g["adversary"] == "server"]
    return {
        "name": row["name"],
        "seed": seed,
        "final": 100 * accuracy[-1],
        "last10": 100 * statistics.mean(accuracy[-10:]),
        "epsilon": server[0]["epsilon"],
        "status": server[0]["status"],
        "bytes_up": sum(m["bytes_up"] for m in found["metrics"]),
    }


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def table(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> str:
    lines = [
        "| row | n | final accuracy | mean of last 10 | yardstick final / last 10 | epsilon of one example against the server | status |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mine = [r for r in results if r["name"] == row["name"]]
        if not mine:
            continue
        yard = " / ".join(f"{v:.2f}" for v in row["yardstick"]) if "yardstick" in row else "-"
        epsilon = mine[0]["epsilon"] if isinstance(mine[0]["epsilon"], str) else f"{mine[0]['epsilon']:.3f}"
        final, last = spread([r["final"] for r in mine]), spread([r["last10"] for r in mine])
        lines.append(f"| {row['name']} | {len(mine)} | {final} | {last} | {yard} | {epsilon} | {mine[0]['status']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    rows = tomllib.loads((arguments.folder / "rows.toml").read_text())["row"]
    base = next(path for path in arguments.folder.glob("*.toml") if path.name != "rows.toml")
    store = arguments.folder / "results.jsonl"
    results = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {(r["name"], r["seed"]) for r in results}
    todo = [(row, seed) for row in rows for seed in range(row["seeds"]) if (row["name"], seed) not in done]
    with ThreadPoolExecutor(arguments.jobs) as pool, open(store, "a") as file:
        for found in pool.map(lambda job: one(base, *job), todo):
            results.append(found)
            file.write(json.dumps(found) + "\n")
            file.flush()
            (arguments.folder / "table.md").write_text(table(rows, results))
            print(f"{found['name']:40s} seed {found['seed']}  {found['final']:.2f}", flush=True)
    (arguments.folder / "table.md").write_text(table(rows, results))


if __name__ == "__main__":
    main()
