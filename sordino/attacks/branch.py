"""Registration of this branch: the command `sordino attack`."""

PARTS = {"verbs of experiments": {"attack": "sordino.attacks.command:attack"}}
