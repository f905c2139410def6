"""A whole sordino experiment as a job for sites in NVFlare's simulator: python study.py PLACE WORK SITES."""

from __future__ import annotations

import sys

from nvflare.job_config.api import FedJob

from sordino.adapters.nvflare import RunController, SiteExecutor

place, work, many = sys.argv[1:]
job = FedJob(name="study", min_clients=int(many))
job.to_server(
    RunController(
        {
            "experiment": f"{place}/experiment.toml",
            "agreement": f"{place}/agreement.toml",
            "identity": f"{place}/server",
            "sites": f"{place}/sites.toml",
            "folder": f"{place}/run",
            "rehearsal": True,
        }
    )
)
job.to_clients(
    SiteExecutor(
        {
            "experiment": f"{place}/experiment.toml",
            "server_key": f"{place}/server.pub",
            "data": f"{place}/{{site}}-data",
            "identity": f"{place}/{{site}}",
            "folder": f"{place}/{{site}}-run",
            "rehearsal": True,
        }
    )
)
job.simulator_run(work, clients=[f"site-{k}" for k in range(int(many))], threads=int(many))
