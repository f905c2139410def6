"""Parts that this branch adds."""

PARTS: dict[str, dict[str, str]] = {}
