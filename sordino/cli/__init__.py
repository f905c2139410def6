"""The command line.

Importing it loads neither torch nor scipy.
"""

from sordino.cli.main import main

__all__ = ["main"]
