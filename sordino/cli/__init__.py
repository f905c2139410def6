"""Command line: the verbs and what they print.

Importing it loads neither torch nor scipy.
"""

from sordino.cli.main import main

__all__ = ["main"]
