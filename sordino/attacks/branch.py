"""Registration of the attacks: their verb."""

PARTS = {"verbs of experiments": {"attack": "sordino.attacks.command:attack"}}
