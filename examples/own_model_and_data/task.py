"""Your own model: a torch.nn.Module whose layers do not mix examples (so no BatchNorm), named in the experiment as
task:Net. Data comes from a file, so there is no load_data here.
"""

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x: Tensor) -> Tensor:  # a batch of rows, every range scaled to [-1, 1]
        out: Tensor = self.layers(x)
        return out  # one score per class
