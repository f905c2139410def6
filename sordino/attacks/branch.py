"""Parts that attacks add: their verb."""

PARTS = {"verbs of experiments": {"attack": "sordino.attacks.command:attack"}}
