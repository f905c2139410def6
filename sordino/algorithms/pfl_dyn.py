"""PFLDyn with prototypes. Acar et al., "Debiasing model updates for improving personalized federated training", ICML
2021, as run by Li, Xiao and Chen, Chinese Journal of Computers 2024, algorithm 1 without compression and noise.

Training learns a feature extractor; a client classifies by the nearest mean of its own classes. Client n's state g_n
removes the bias of its local objective and never leaves the client.

Deviations: `scaled`, the default, changes g by -alpha (|Q|/N) times the mean update, as the objective wants, so that g
is the mean of all g_n; `literal` is the line as printed, N/|Q| times too much; `leaky` forgets a part of g per round,
which noise needs. `oracle` sends the exact change of g_n beside the update, as the authors' simulation does: it leaks
exact client state and serves diagnosis only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch

from sordino import tree
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import ChecksServer, Home, OtherReads, OwnLoss
from sordino.errors import BELOW_ONE, POSITIVE, ConfigError, check_range
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.tasks.personalise import OwnModels, episode_loss
from sordino.types import Params, Received, Shard, Task, Tensor

ServerState = Literal["scaled", "literal", "leaky", "oracle"]
# of presets: published noise counts steps, and the shift by g has no step size of the server
BY_STEPS = ("local_epochs", "server_lr")


class Server(NamedTuple):
    """The server's state: the model, and its own g, a mean over the clients' states."""

    x: Params
    g: Params
    round: Tensor


class Down(NamedTuple):
    """Broadcast: the model, and the number of rounds done."""

    x: Params
    round: Tensor


class Client(NamedTuple):
    """A client's state g (that of FedDyn), and how often it took part."""

    g: Params
    participations: Tensor
    failures: Tensor  # rounds whose update was no number


class Up(NamedTuple):
    """Upload: the change of the local model."""

    delta: Params


class OracleUp(NamedTuple):
    """The upload with `server_state = "oracle"`: the update, and the exact change of the client's state g_n."""

    delta: Params
    g: Params


@dataclass(frozen=True)
class PFLDyn(
    LocalSgd[Server, Client, Down, Up | OracleUp], OwnModels, OwnLoss, OtherReads, ChecksServer, name="pfl_dyn"
):
    batch_size: int | Literal["full"] = 50  # of the support, and of the query
    local_steps: int | None = 25
    alpha: float = 0.1
    server_state: ServerState = "scaled"
    keep: float = 0.9  # of g per round, with `leaky`
    weight_decay: float = 1e-3
    most_grad: float | None = 10.0
    lr_decay: float = 0.997
    uplink: Uplink = Uplink(client=())  # uniform weights
    own_way = "proto"
    wants = "episodes"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, POSITIVE, "out-of-range")
        check_range("keep", self.keep, BELOW_ONE, "out-of-range")
        if self.server_lr != 1:
            raise ConfigError(
                f"server_lr is {self.server_lr}",
                why="in this algorithm the server shifts the model by g, and no learning rate enters this step",
                fix="leave server_lr out; alpha decides how far g shifts the model",
                code="no-server-step",
            )

    def check(self, home: Home) -> None:
        if not home.task.learns_features:
            raise ConfigError(
                f"the model {home.task.name!r} has nothing to train before its last layer",
                why="this method trains the input of the last layer. Here that is the example itself, so it would "
                "learn nothing, and the result would be the same at any noise",
                fix="choose a network with layers before the last one, such as model=mlp, or model=cnn_norm for images",
                code="no-features-to-learn",
            )

    def init(self, task: Task, key: Key) -> Server:
        x = task.init(key)
        return Server(x, tree.zeros_like(x), torch.tensor(0))

    def init_client(self, task: Task) -> Client:
        return Client(tree.zeros_like(task.init(0)), torch.tensor(0), torch.tensor(0))

    def broadcast(self, s: Server) -> Down:
        return Down(s.x, s.round)

    def zero(self, task: Task, down: Down) -> Up | OracleUp:
        nothing = tree.zeros_like(down.x)
        return OracleUp(nothing, nothing) if self.server_state == "oracle" else Up(nothing)

    def local(self, task: Task, down: Down, c: Client, shard: Shard, key: Key) -> tuple[Up | OracleUp, Client]:
        walk, loss = self.walk(down.x, self.rate(down.round, c.participations)), partial(episode_loss, task)
        pull = tree.axpy(self.alpha, down.x, c.g)  # alpha w + g_n
        for episode in shard.episodes(self.work, key):
            g = episode.grad(loss, walk.y)
            walk(tree.sub(tree.axpy(self.alpha, walk.y, g), pull))  # grad - g_n + alpha (w_n - w)
        delta, good = tree.sub(walk.y, down.x), tree.finite(walk.y)
        delta = delta if good else tree.zeros_like(down.x)
        g_n = tree.axpy(-self.alpha, delta, c.g)
        up = OracleUp(delta, tree.sub(g_n, c.g)) if self.server_state == "oracle" else Up(delta)
        return up, Client(g_n, c.participations + 1, c.failures + (not good))

    def change(self, upload: Up | OracleUp) -> Params | None:
        return upload.delta

    def update(self, s: Server, r: Received[Up | OracleUp], home: Home) -> Server:
        delta = r.mean.delta
        if isinstance(r.mean, OracleUp):
            g = tree.axpy(r.participation, r.mean.g, s.g)
        else:
            share = 1.0 if self.server_state == "literal" else r.participation
            old = tree.scale(self.keep, s.g) if self.server_state == "leaky" else s.g
            g = tree.axpy(-self.alpha * share, delta, old)
        return Server(tree.axpy(-1 / self.alpha, g, tree.add(s.x, delta)), g, s.round + 1)

    def models(self, s: Server) -> Mapping[str, Params]:
        """The models "global" and "aggregate"; "aggregate" is the model before the shift by g."""
        return {"global": s.x, "aggregate": tree.axpy(1 / self.alpha, s.g, s.x)}
