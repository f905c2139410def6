"""Parts that adapters add: none; their user imports them into another program."""

PARTS: dict[str, dict[str, str]] = {}
