"""Bagdasaryan, Veit, Hua, Estrin and Shmatikov, AISTATS 2020, equation 3: the plain mean becomes a model that the
attackers chose.

Deviations: the chosen model is one that has learned nothing, drawn from the attackers' key.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.optional import Estimates
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import LiarsView
from sordino.attacks.poisoning import NO_SINGLE, Poisoning
from sordino.tree import Tree


@dataclass(frozen=True)
class ModelReplacement(Poisoning, name="model_replacement"):
    """Sends the way from the server's model to another one, boosted, so that a plain mean ends there."""

    def unfit(self, run: AttackedRun) -> str:
        algorithm, task = run.setup.algorithm, run.setup.task
        zero = algorithm.zero(task, algorithm.broadcast(algorithm.init(task, 0)))
        told = Estimates.of(algorithm).change(zero) is not None
        encoded = [leaf.shape for leaf in tree.leaves(algorithm.uplink.shape(zero))]
        same = encoded == [leaf.shape for leaf in tree.leaves(zero)]
        return super().unfit(run) or ("" if told and same else NO_SINGLE)

    def sent(self, upload: Tree, moment: LiarsView, run: AttackedRun) -> Tree:
        target = run.setup.task.init(keys.word(keys.fold(run.key, "replacement")))
        way = tree.scale(moment.boost * moment.weight, tree.sub(target, moment.model))
        change = moment.change(upload)
        assert change is not None
        places: dict[int, Tensor] = {id(leaf): way[name] for name, leaf in change.items()}

        def replaced(leaf: Tensor) -> Tensor:
            return places.get(id(leaf), leaf)

        return tree.map(replaced, upload)
