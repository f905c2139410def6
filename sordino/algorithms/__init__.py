"""How: one paper per file.

The name here is the name on the command line; the callable's parameters are the paper's hyper-parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sordino.algorithms.client_noise import (
    convex_stable,
    gaussian_gdp,
    gaussian_sampled,
    gaussian_simple,
    laplace,
    noisy_steps,
    whole_update,
)
from sordino.algorithms.cuag_pfl import cuag_pfl
from sordino.algorithms.dp_prox import dp_fedavg, dp_prox, dp_sgd
from sordino.algorithms.dp_scaffold import dp_scaffold
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.fedavg_prototypes import FedAvgPrototypes
from sordino.algorithms.fedgen import FedGen
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.lc_fl import cdp_fl, lattice_fl, lc_fl, ldp_fl, paillier_fl, secagg_fl
from sordino.algorithms.moon import Moon
from sordino.algorithms.pdp_prox import pdp_prox
from sordino.algorithms.pfl_dyn import PFLDyn
from sordino.algorithms.prifedsync import prifedsync
from sordino.algorithms.scaffold import Scaffold
from sordino.algorithms.slaug.slaug_fl import slaug_fl
from sordino.algorithms.udp import udp
from sordino.algorithms.vhl import VHL

ALGORITHMS: dict[str, Callable[..., Any]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "laplace": laplace,
    "gaussian_simple": gaussian_simple,
    "gaussian_gdp": gaussian_gdp,
    "gaussian_sampled": gaussian_sampled,
    "whole_update": whole_update,
    "noisy_steps": noisy_steps,
    "convex_stable": convex_stable,
    "dp_sgd": dp_sgd,
    "dp_fedavg": dp_fedavg,
    "dp_prox": dp_prox,
    "pdp_prox": pdp_prox,
    "pfl_dyn": PFLDyn,
    "cuag_pfl": cuag_pfl,
    "prifedsync": prifedsync,
    "udp": udp,
    "dp_scaffold": dp_scaffold,
    "lc_fl": lc_fl,
    "ldp_fl": ldp_fl,
    "cdp_fl": cdp_fl,
    "paillier_fl": paillier_fl,
    "lattice_fl": lattice_fl,
    "secagg_fl": secagg_fl,
    "slaug_fl": slaug_fl,
    "fedavg_prototypes": FedAvgPrototypes,
    "moon": Moon,
    "vhl": VHL,
    "fedgen": FedGen,
}
