"""Settings of property tests over many clients."""

from __future__ import annotations

from hypothesis import settings

quick = settings(derandomize=True, deadline=None, max_examples=60)
