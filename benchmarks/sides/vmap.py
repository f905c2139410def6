"""torch.func: the clients of a round stacked and trained together; with privacy, the examples of a client stacked, one
client after another.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.meter import Meter
from benchmarks.workloads import floats, network

Params = dict[str, Tensor]


def main() -> None:
    meter = Meter()
    w, net = meter.w, network(meter.w)
    x, y = floats(meter.data.x), meter.data.y
    turn = iter(range(10**9))

    def loss(p: Params, batch: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, p, (batch,)), labels)

    of_clients = vmap(grad(loss))
    of_examples = vmap(grad(lambda p, one, label: loss(p, one[None], label[None])), in_dims=(None, 0, 0))

    def stacked(start: Params, clients: list[int]) -> Params:
        params = {name: value.expand(w.cohort, *value.shape).clone() for name, value in start.items()}
        first = torch.tensor([client * w.examples for client in clients], device=w.device)[:, None]
        for rows in zip(*(list(w.batches(w.examples)) for _ in clients), strict=True):
            chosen = first + torch.stack(rows)
            grads = of_clients(params, x[chosen], y[chosen])
            for name, value in params.items():
                value.sub_(grads[name], alpha=w.lr)
        return {name: value.mean(0) for name, value in params.items()}

    def one_by_one(start: Params, clients: list[int]) -> Params:
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in clients:
            params = {name: value.clone() for name, value in start.items()}
            for _ in range(w.steps):
                grads = of_examples(params, x[w.rows(client)], y[w.rows(client)])
                norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
                factor = (w.clip / norms).clamp(max=1)
                for name, value in params.items():
                    total = torch.einsum("n,n...->...", factor, grads[name]) + w.noise * torch.randn_like(value)
                    value.sub_(total, alpha=w.lr / w.examples)
            for name, value in params.items():
                mean[name] += value / w.cohort
        return mean

    train = stacked if w.clip is None else one_by_one

    def step() -> None:
        params = {name: value.detach() for name, value in net.named_parameters()}
        with torch.no_grad():
            net.load_state_dict(train(params, w.cohort_of(next(turn))))

    meter.drive(step, lambda: list(net.parameters()), f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
