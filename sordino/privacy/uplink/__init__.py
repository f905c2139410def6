"""Gate 2: what the server may see of uploads."""

from sordino.privacy.uplink.uplink import Summed, Uplink, single_uploads

__all__ = ["Summed", "Uplink", "single_uploads"]
