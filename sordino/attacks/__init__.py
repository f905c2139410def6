"""Attacks on a run: reconstruction, membership and property inference, poisoning."""

PARTS = {"verbs of experiments": {"attack": "sordino.attacks.command:attack"}}
