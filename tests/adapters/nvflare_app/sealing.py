"""A filter that encrypts a site's result, as far as a server can tell: bytes in place of arrays, and a mark in meta."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.filter import Filter


class Sealing(Filter):  # type: ignore[misc]
    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        result = from_shareable(shareable)
        result.data = dict.fromkeys(result.data, b"sealed")
        result.set_meta_prop(MetaKey.PROCESSED_ALGORITHM, "HE_CKKS")
        return result.update_shareable(shareable)
