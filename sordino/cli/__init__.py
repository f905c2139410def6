"""Command line: the commands and their output.

Importing it loads neither torch nor scipy, and no command.
"""

from __future__ import annotations

import gc


def main() -> None:
    """The entry point of the program."""
    gc.set_threshold(50_000)  # modules and parsed files stay: collecting among them takes a tenth of a short command
    from sordino.cli.program import main as play

    try:
        play()
    finally:
        gc.freeze()  # else the interpreter, at its end, looks at all that was loaded: a quarter of what torch costs
