"""Command line: the commands and their output.

Importing it loads neither torch nor scipy, and no command.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the program."""
    from sordino.cli.program import main as play

    play()
