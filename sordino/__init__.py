"""sordino: private federated learning with honest guarantees.

import sordino
result = sordino.run("experiment.toml", "rounds=10")     # or sordino.run() for the default on real digits
result.metrics[-1], result.receipt["guarantees"]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sordino.version import __version__

if TYPE_CHECKING:
    from sordino.training import Result

__all__ = ["__version__", "resume", "run"]


def run(experiment: str | Path | None = None, *overrides: str, out: str | Path | None = None) -> Result:
    """Run an experiment file (or the default) with `key=value` overrides; everything it leaves is in `result.folder`."""
    from sordino import config
    from sordino.training import fresh_folder, start

    made = config.load(None if experiment is None else Path(experiment), overrides)
    return start(made, fresh_folder(made.name) if out is None else Path(out))


def resume(folder: str | Path) -> Result:
    """Continue a run that was stopped or killed."""
    from sordino.training import resume as continue_

    return continue_(Path(folder))
