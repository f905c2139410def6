"""`sordino new`: a project with one commented experiment and a model of one's own."""

from __future__ import annotations

from pathlib import Path

from sordino.errors import RunError

EXPERIMENT = """\
# Run it from this folder:  sordino run experiment.toml
# Change anything:          sordino run experiment.toml rounds=5
rounds = 30
seed = 0                        # of everything random in a simulation

[data]
source = "digits"               # real 8x8 images that ship with sordino; or:
# source = "tabular"            # path = "table.csv", label = "column", group = "column that names the client",
#                             # schema = "table.schema.toml" (`sordino data schema table.csv --label column` drafts it)
# source = "images"             # path = a folder of parquet files in the Hugging Face image format

[partition]
scheme = "dirichlet"            # iid, dirichlet, shards, classes, active, quantity, long_tail, power_law,
                                # natural (by data.group)
clients = 20
alpha = 0.5                     # smaller: clients differ more

[model]
name = "task:Net"               # class Net in task.py; or logistic, mlp, cnn, cnn_norm, cnn_wide, vgg16

[cohort]
name = "everyone"               # or {name = "round_robin", size = 5}, "random", "poisson" (rate = 0.1)

[algorithm]
name = "gaussian_gdp"           # `sordino algorithms` lists all with their parameters
clip = 1.0                      # largest norm of one example's gradient
lr = 1.0

[privacy]
epsilon = 8.0                   # of one example of one client, over the whole run; leave it out with
                                # fedavg, fedprox, scaffold
delta = 1e-5                    # below 1 / number of examples
noise = "counter"               # a seeded simulation; "system" draws real noise
"""

TASK = '''\
"""The model. Any torch.nn.Module will do; use GroupNorm where you would use BatchNorm.

If you come from Flower: Net is as you know it. load_data is [data] and [partition] in experiment.toml, train is
[algorithm], and test is done for you, on all test examples and client by client; so a task.py of yours works here, and
its other functions are not called.
"""

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:  # images arrive as [batch, channels, height, width], normalised
        return self.layers(x)
'''


def write(folder: Path) -> list[Path]:
    """Refuses to touch what is there."""
    files = {folder / "experiment.toml": EXPERIMENT, folder / "task.py": TASK}
    for path in files:
        if path.exists():
            raise RunError(
                f"{path} already exists",
                why="sordino does not overwrite a file that may be yours",
                fix="choose another folder",
                code="file-exists",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"cannot write {folder}",
            why=error.strerror or str(error),
            fix="choose a folder that you may write to",
            code="not-writable",
        ) from None
    return list(files)
