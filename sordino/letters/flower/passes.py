"""Who may ask: every request carries a signature over the run, the site, the time, the path and the body. It is checked
from the headers, before any of the body is read, and it holds for one request only.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.errors import SordinoError
from sordino.letters.flower.pinned import refuse_stock

DOMAIN = "sordino request 1"  # a signature of a request is a signature of nothing else
SITE, TIME, DIGEST, SIGNATURE = "sordino-site", "sordino-time", "sordino-digest", "sordino-signature"
SERVER = "sordino-server"  # on every answer: the run that is served
WINDOW = 300.0  # seconds by which the clocks of site and server may differ


@dataclass(frozen=True)
class Pass:
    """Signs the requests of a site; it is given to Flower's client, which hands it every request."""

    run: str
    site: str
    key: Ed25519PrivateKey = field(repr=False)

    def headers(self, path: str, body: bytes) -> dict[str, str]:
        now, digest = str(time.time_ns()), hashlib.sha256(body).hexdigest()
        signature = self.key.sign(_signed(self.run, self.site, now, path, digest))
        return {SITE: self.site, TIME: now, DIGEST: digest, SIGNATURE: signature.hex()}

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """The name that Flower's client calls."""
        request = context.request
        request.headers.update(self.headers(request.url.path, request.content))
        response = call_next(context)
        if SERVER not in response.headers and response.status_code < 500:  # what a proxy says of itself is no server
            raise refuse_stock(str(request.url.netloc, "ascii"))
        return response


class Passes:
    """Believes the sites on a list, and each thing that they sign once."""

    def __init__(self, run: str, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._run, self._keys = run, keys
        self._used: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def key_of(self, site: str) -> Ed25519PublicKey | None:
        """The key of a site that is on the list at this moment."""
        with suppress(SordinoError):  # a list that cannot be read allows nobody
            return self._keys.get(site)
        return None

    def site(self, path: str, headers: Mapping[str, str]) -> str | None:
        """The site that signed these headers for this path; None where nobody on the list did, just now."""
        site, now, digest, signature = (headers.get(name, "") for name in (SITE, TIME, DIGEST, SIGNATURE))
        key = self.key_of(site)
        if key is None or len(now) > 20 or not (now.isascii() and now.isdecimal()):
            return None
        if abs(int(now) / 1e9 - time.time()) > WINDOW:
            return None
        said = _signed(self._run, site, now, path, digest)
        try:
            key.verify(bytes.fromhex(signature), said)
        except (InvalidSignature, ValueError):
            return None
        return site if self._first(hashlib.sha256(said).digest()) else None

    def _first(self, said: bytes) -> bool:
        """Whether it is said for the first time; one signature can be written in many ways."""
        with self._lock:
            now = time.monotonic()
            for old, when in list(self._used.items()):  # oldest first
                if when > now - 2 * WINDOW:
                    break
                del self._used[old]
            if said in self._used:
                return False
            self._used[said] = now
            return True


def _signed(*said: str) -> bytes:
    return "\n".join((DOMAIN, *said)).encode()
