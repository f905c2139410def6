"""The examples run as their first lines say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_clinics(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    shutil.copytree(EXAMPLES / "clinics", folder, ignore=shutil.ignore_patterns("visits.csv", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    command = [sys.executable, "-m", "sordino", "run", "clinics.toml", "--out", "run", "--json"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["privacy"]["simulated"] is False  # the example asks for real noise
    assert found["metrics"][-1]["accuracy"] > 0.8  # the majority class alone is 0.63
    server = next(
        row for row in found["privacy"]["guarantees"] if (row["unit"], row["adversary"]) == ("example", "server")
    )
    assert server["status"] == "proved"
    assert 3.99 < server["epsilon"] <= 4.0
    verify = subprocess.run([sys.executable, "-m", "sordino", "privacy", "verify", "run"], cwd=folder, check=False)
    assert verify.returncode == 0
