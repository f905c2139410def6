"""The laws of the house that a reader cannot see at a glance: who may draw, who may build what, how long a module may
be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino.checks.halves import DRAWS, calls

PACKAGE = Path(__file__).parents[2] / "sordino"
FORBIDDEN_NAMES = {"utils", "helpers", "common", "base", "manager"}


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@pytest.mark.parametrize("path", modules(PACKAGE / "algorithms"), ids=lambda p: p.name)
def test_algorithms_draw_nothing(path: Path) -> None:
    assert not calls(path.read_text()) & DRAWS


def test_the_scan_sees_draws() -> None:
    sneaky = (
        "import torch\ndef local(self, y, source):\n"
        "    return source.noisy(law, y + torch.randn(3) + torch.distributions.Laplace(0, 1).sample(), 1.0)"
    )
    assert calls(sneaky) & DRAWS == {"noisy", "randn", "Laplace"}


def callers(name: str) -> list[str]:
    """The modules that call something of this name; most do not even mention it."""
    texts = ((path, path.read_text()) for path in modules())
    return [path.relative_to(PACKAGE).as_posix() for path, text in texts if name in text and name in calls(text)]


def test_only_the_uplink_lets_the_server_see() -> None:
    builders = callers("Received")
    assert builders == ["privacy/uplink/__init__.py"]


@pytest.mark.slow
def test_only_readers_open_examples() -> None:
    # raw rows are held by readers, by the client that owns them (one or a stack), and by the evaluator of a simulation
    openers = set(callers("Examples"))
    allowed = {
        "privacy/readers/__init__.py",
        # public images: drawn by a generator, noise, and candidates
        "synthesis/slaug/training.py",
        "synthesis/vhl.py",
        "synthesis/fedavg_prototypes.py",
        "privacy/readers/noisy_gradient.py",
        "privacy/readers/responses.py",
        "privacy/readers/episodes.py",
        "privacy/readers/function_reader.py",
        "privacy/readers/median_clip.py",
        "tasks/personalise.py",
        "privacy/readers/per_example_gradients.py",
        "runs/backend.py",
        "runs/simulation.py",
        "engine/client_states.py",
        "tasks/supervised.py",
    }
    allowed |= {"sites/own_data.py", "sites/serve.py"}  # a site's own rows, and the server's
    allowed |= {"algorithms/clean_process.py"}  # what `handed` has sent there
    allowed |= {"cli/bench.py", "checks/models.py", "checks/parts.py"}  # made-up rows
    allowed |= {"engine/stack.py", "metrics/evaluation.py"}  # parts of what they were given
    allowed |= {"audits/records.py", "audits/canary_replays.py"}  # made-up rows
    allowed |= {"results/prediction.py"}  # new rows, of whoever predicts
    assert openers <= allowed


def test_modules_are_short_and_named() -> None:
    for path in modules() + modules(PACKAGE.parent / "tests"):
        assert len(path.read_text().splitlines()) <= 400, path
        assert path.stem not in FORBIDDEN_NAMES, path


def test_the_map_fits_on_a_screen() -> None:
    assert len((PACKAGE / "round.py").read_text().splitlines()) < 90
