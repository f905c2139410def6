"""Membership inference from losses: members of the training data have lower ones. One class for each paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attacked_run import AttackedRun, MemberView
from sordino.attacks.member_inference import MemberInference, losses


@dataclass(frozen=True)
class LossThreshold(MemberInference, name="loss_threshold"):
    """Classifies an example as a member if the released model has a low loss on it.

    Yeom, Giacomelli, Fredrikson and Jha, CSF 2018.

    Deviations: none.
    """

    def score(self, view: MemberView) -> Tensor:
        return -losses(view.task, view.model, view.asked)


@dataclass(frozen=True)
class LikelihoodRatio(MemberInference, name="lira"):
    """Compares an example's loss with its losses under shadow models that were trained without it (LiRA).

    Carlini, Chien, Nasr, Song, Terzis and Tramèr, S&P 2022, the offline attack.

    Deviations: few shadow models, so that one deviation serves all examples; shadows are whole federated runs.
    """

    costly = True

    def unfit(self, run: AttackedRun) -> str:
        return run.without_classes or super().unfit(run)

    def score(self, view: MemberView) -> Tensor:
        told, inside = [], []
        for i in range(view.shadows):
            model, had = view.shadow(i)
            told.append(losses(view.task, model, view.asked))
            inside.append(had)
        return above(losses(view.task, view.model, view.asked), torch.stack(told), torch.stack(inside))


def above(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Standard deviations by which an example's confidence [n] exceeds the mean confidence of models trained without
    it. `shadows` [models, n] are losses, `inside` marks the models trained on the example; an example in all of them
    scores 0.
    """
    one, many, without = confidence(target), confidence(shadows), (~inside.bool()).double()
    known = without.sum(0)
    mean = (many * without).sum(0) / known.clamp_min(1)
    spread = (((many - mean) ** 2 * without).sum() / (known - 1).clamp_min(0).sum().clamp_min(1)).sqrt().clamp_min(1e-9)
    return torch.where(known > 0, (one - mean) / spread, torch.zeros_like(mean))


def confidence(loss: Tensor) -> Tensor:
    """Log odds of the true class, which are nearly normally distributed over models."""
    loss = loss.double().clamp_min(1e-12)
    return -loss - torch.log(-torch.expm1(-loss))
