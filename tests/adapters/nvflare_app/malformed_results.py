"""A thousand results that are not one change of the declared model, and what a filter and an aggregator make of them:
python malformed_results.py PLACE MANY. It prints how many were refused, and the kinds of what was not."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from sordino.adapters.nvflare import PrivateAggregator, PrivateFilter
from sordino.errors import SordinoError, UnsoundGuarantee
from tests.adapters.malformed import MODEL

place, many = sys.argv[1], int(sys.argv[2])
declared = {name: [list(one.shape), str(one.dtype)] for name, one in MODEL.items()}
terms: Any = {"model": declared, "epsilon": 4.0, "delta": 1e-5, "clip": 2.0, "rounds": 3}
private = PrivateFilter(f"{place}/{{site}}", **terms)
server = PrivateAggregator(f"{place}/server", **terms, clients=2, asked=2)
server.reset(None)
context: Any = SimpleNamespace(get_identity_name=lambda: "site")
SECRET = "patient 4711"


def wrong(rng: np.random.Generator) -> Shareable:
    name = str(rng.choice([*MODEL]))
    data: dict[str, Any] = dict(MODEL)
    kinds = [
        kind for kind in vars(DataKind).values() if isinstance(kind, str) and kind not in ("WEIGHT_DIFF", __name__)
    ]
    bare = Shareable()
    bare[SECRET] = data
    other = rng.choice(["<f8", "<f2", ">f4", "<i4", "<c8"])
    ways = [
        DXO(str(rng.choice(kinds)), data=data).to_shareable(),
        DXO("COLLECTION", data={"a": DXO("WEIGHT_DIFF", data=data)}).to_shareable(),
        DXO("WEIGHT_DIFF", data={key: one for key, one in data.items() if key != name}).to_shareable(),
        DXO("WEIGHT_DIFF", data={**data, f"more{rng.integers(99)}": data[name]}).to_shareable(),
        DXO("WEIGHT_DIFF", data={**data, name: data[name].astype(other)}).to_shareable(),
        DXO("WEIGHT_DIFF", data={**data, name: np.zeros(rng.integers(0, 4, 3), np.float32)}).to_shareable(),
        DXO("WEIGHT_DIFF", data={**data, name: data[name].tolist()}).to_shareable(),
        DXO("WEIGHT_DIFF", data={**data, name: None}).to_shareable(),
        bare,
        Shareable(),
    ]
    return ways[int(rng.integers(len(ways)))]


def passed(result: Shareable) -> str:
    """What left of a result: nothing where it was refused."""
    try:
        return json.dumps(sorted(map(str, private.process(result, context))))
    except Exception as error:
        return SECRET if SECRET in str(error) else ""


rng = np.random.default_rng(0)
results = [wrong(rng) for _ in range(many)]
left = [passed(one) for one in results]
accepted = sum(server.accept(one, None) for one in results)
encrypted = DXO("WEIGHT_DIFF", data={**MODEL, "w": SECRET.encode()}, meta={MetaKey.PROCESSED_ALGORITHM: "HE_CKKS"})
try:
    private.process(encrypted.to_shareable(), context)
    code = ""
except UnsoundGuarantee as error:
    code = error.code


def ends(result: Shareable) -> str:
    """The code with which a round at the server ends that this result alone has come for."""
    server.reset(None)
    server.accept(result, None)
    try:
        return str(server.aggregate(None).get_return_code())
    except SordinoError as error:
        return error.code


failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
failed["rows"] = SECRET
strange = make_reply(SECRET)
bare = [private.process(one, context) for one in (failed, strange)]
told = {
    "encrypted": [code, ends(encrypted.to_shareable())],
    "accepted": accepted,
    "good": ends(DXO("WEIGHT_DIFF", data=dict(MODEL)).to_shareable()),
    "refused": sum(not one for one in left),
    "failures": [[one.get_return_code(), SECRET in str(one)] for one in bare],
    "control": sorted(private.process(DXO("WEIGHT_DIFF", data=dict(MODEL), meta={"loss": 1}).to_shareable(), context)),
}
print(json.dumps(told))
