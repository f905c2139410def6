"""Parts that this optional subpackage registers: the command `sordino attack`."""

PARTS = {"verbs of experiments": {"attack": "sordino.attacks.command:attack"}}
