"""A run that prepared, made once."""

from __future__ import annotations

from sordino.metrics import RoundRow

LEAST = 12  # images that a prototype needs: some device declines


SETTINGS = [
    "name=tiny", "rounds=3", "data={source='digits', probe=5}", "candidates={source='procedural', per_class=20}", "model=cnn_norm",
    "partition={scheme='dirichlet', clients=6, alpha=0.3}", "cohort={name='random', size=3}",
    f"algorithm={{name='slaug_fl', keep=8, local_epochs=1, prepare_epochs=2, gan_epochs=2, least={LEAST}}}",
]  # fmt: skip


def run(*accuracies: float | None) -> list[RoundRow]:
    sent = RoundRow(round=0, bytes_down=10, bytes_up=7, device_flops=2.0, active=1, answered=1)
    return [
        sent.beside(round=t) if a is None else sent.beside(round=t, accuracy=a, loss=1.0)
        for t, a in enumerate(accuracies, 1)
    ]
