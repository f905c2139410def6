"""The script of a site, as it was: it adds one to each number, and tells a loss."""

import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: one + 1 for name, one in model.params.items()}
    meta = {"NUM_STEPS_CURRENT_ROUND": 7}
    flare.send(flare.FLModel(params=params, params_type=flare.ParamsType.FULL, metrics={"loss": 0.5}, meta=meta))
