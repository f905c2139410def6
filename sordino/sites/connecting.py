"""The way of a site or a key holder to its server: outward, with certificates where the server is another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.sites.client_line import Says, Standing, attend
from sordino.sites.grpc_line import claim
from sordino.sites.invitation import Invitation
from sordino.sites.remote_sites import PARTING
from sordino.transport.tls import of_site


@dataclass
class Leave:
    """When somebody who attends a server goes: when that has the last answer, or is gone. Whoever was told the end
    before it was started again stays a moment for a server that does not know it, if that can be reached at all.
    """

    over: Callable[[], bool]  # has the server said so?
    stop: Callable[[], bool]  # does somebody want to stop?
    say: Says
    told: bool = False  # was it told before it was started?
    _gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + PARTING if self.told else math.inf

    def heard(self, standing: Standing, why: str) -> None:
        """How it stands with the server."""
        if standing == "late":
            self.say(standing, why)
            return
        cut_off = standing not in ("working", "waiting")
        self._gone = (self.over() and standing != "working") or (self.told and cut_off)
        self.say(standing, why)

    def __call__(self) -> bool:
        return self._gone or self.stop() or (time.monotonic() > self._until and not self.over())


class Reaches(Protocol):
    """Address, key and certificates for a server."""

    @property
    def identity(self) -> Ed25519PrivateKey: ...
    @property
    def address(self) -> str: ...
    @property
    def certificates(self) -> Path | None: ...


def attend_for(
    invitation: Invitation,
    name: str,
    own: Reaches,
    answer: Callable[[bytes], bytes],
    leave: Leave,
    most: int,
) -> None:
    """Answers the letters of a server until it is time to leave. `most`: the longest letter that is taken in, in
    bytes.
    """
    tls = None if own.certificates is None else of_site(own.certificates, name)
    run = invitation.told.run
    address = own.address or invitation.told.server
    attend(address, name, answer, leave, tls, most, lambda it: own.identity.sign(claim(run, name, it)), leave.heard)
