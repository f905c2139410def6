"""Letters over Flower, in locked form: its Fleet API and nothing else of it.

`pinned`      the one version that is used, and why a stock SuperLink is refused
`interfaces`  the only file that imports Flower
`passes`      who may ask: every request is signed
`parcels`     a letter as Flower's objects
`exchange`    letters and answers on their way through Flower's state
`door`        the HTTP server, with the eight paths that a site needs
`fleet`       the server's end
`node`        the site's end

Flower's own server answers three interfaces on one port, and whoever reaches it can start a run whose code runs on
every site. Here the other two do not exist in the process: no request can name code, on the server or at a site.
"""

from __future__ import annotations

import os

# before anything of Flower is imported: it reads these once
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
