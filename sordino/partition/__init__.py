"""Divide a data set among clients.

Schemes that divide a data set among clients, and descriptions of the result.
"""

from __future__ import annotations

from sordino.partition.row_numbers import summary, table
from sordino.partition.schemes import SCHEMES, Scheme, match_test

__all__ = ["SCHEMES", "Scheme", "match_test", "summary", "table"]
