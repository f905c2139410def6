"""Clean process (`python -m sordino.algorithms.clean_process LINE`), in whose forks a user's training function runs.

It has only imported torch and this library. A request names the function and the network's architecture, as an
experiment does, and holds the weights and the rows of one client, which only the fork reads.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import torch
from safetensors.torch import load

from sordino.algorithms.trainer import function_named, trained_by
from sordino.privacy.readers.function_reader import forking
from sordino.tasks.architecture import Architecture
from sordino.tasks.nets import keyed_dropout
from sordino.tasks.network import handed_out
from sordino.types import Examples, Params


def computed(request: bytes) -> Params:
    head, _, tensors = request.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    parts: dict[str, Params] = {"state": {}, "given": {}, "rows": {}}
    for name, value in load(tensors).items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    net = Architecture.model_validate(header["architecture"], strict=False).built(0)
    keyed_dropout(net)
    given = {name: parts["given"][name] for name in header["names"]}
    rows = Examples(**parts["rows"])
    return trained_by(
        function_named(header["of"]), handed_out(net, parts["state"]), given, rows, header["round"], header["seed"]
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    forking(socket.socket(fileno=int(sys.argv[1])), computed)
