"""Attacks on a run: one file for each family, one class for each paper."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from sordino.attacks.attack import Attack


def _listed() -> dict[str, type[Attack]]:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted((name, made) for name, made in Attack.names.items() if made.__module__.startswith(__name__)))


ATTACKS = _listed()
