"""The job, for two sites in NVFlare's simulator: python job.py PLACE client|server|sealed. What makes it private stands
between the two lines."""

from __future__ import annotations

import sys

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv

place, private = sys.argv[1:]

# ----------------------------------------------------------------------------------------------------------------------
from sordino.adapters.nvflare import PrivateAggregator, PrivateFilter  # noqa: E402

model = {"numpy_key": [[2, 2], "float32"]}
terms = {"model": model, "epsilon": 12.0, "delta": 1e-5, "clip": 1.0, "rounds": 3}
noise = PrivateFilter(f"{place}/{{site}}", **terms)
aggregator = PrivateAggregator(f"{place}/server", **terms, clients=2, asked=2) if private != "client" else None
# ----------------------------------------------------------------------------------------------------------------------

recipe = NumpyFedAvgRecipe(
    name="hello",
    model=[[0.0, 0.0], [0.0, 0.0]],
    min_clients=2,
    num_rounds=2,
    train_script="client.py",
    params_transfer_type=TransferType.DIFF,
    aggregator=aggregator,
)
if private == "client":
    recipe.add_client_output_filter(noise, tasks=["train"])
if private == "sealed":
    from tests.adapters.nvflare_app.sealing import Sealing

    recipe.add_client_output_filter(Sealing(), tasks=["train"])
recipe.execute(SimEnv(num_clients=2, workspace_root=f"{place}/work"))
