"""Connection of a site or key holder to its server: always opened from here, with certificates unless the server is on
the same machine.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.ledger.files import atomic_write
from sordino.runs.setup import Whole
from sordino.sites.client_line import Says, Standing, attend
from sordino.sites.grpc_line import claim
from sordino.sites.invitation import Invitation
from sordino.sites.remote_sites import PARTING
from sordino.sites.site_accounts import SignedHead
from sordino.transport.tls import of_site


@dataclass
class Leave:
    """Decides when to leave a server: after the end of the run and the last answer, or when the server is gone. A
    process begun after the end stays a moment, as the server may not know that this side has learned of the end."""

    over: Callable[[], bool]  # true where the server has said that the run is over
    stop: Callable[[], bool]  # true where somebody wants to stop
    say: Says
    told: bool = False  # true where an earlier process was told the end of the run
    _gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + PARTING if self.told else math.inf

    def heard(self, standing: Standing, why: str) -> None:
        """Records a change of the connection to the server."""
        if standing == "late":
            self.say(standing, why)
            return
        cut_off = standing not in ("working", "waiting")
        self._gone = (self.over() and standing != "working") or (self.told and cut_off)
        self.say(standing, why)

    def __call__(self) -> bool:
        return self._gone or self.stop() or (time.monotonic() > self._until and not self.over())


@dataclass(frozen=True, kw_only=True)
class InvitedOptions:
    """Start options of a side that is invited to a run: a site, or its key holder."""

    invitation: Path
    identity: Ed25519PrivateKey = field(repr=False)
    folder: Path | None = None
    address: str = ""  # of the server; empty: as the invitation says
    certificates: Path | None = None  # the folder of this end
    with_code: bool = False  # true: classes that the invitation names may run here
    rehearsal: bool = False  # a trial with noise from a seed, which protects nobody

    def folder_in(self, run: str, name: str) -> Path:
        return self.folder or Path("runs") / f"{run}-{name}"


@dataclass
class Responder(ABC):
    """Party that answers the server's messages, a site or the key holder, with its state in a folder."""

    folder: Path
    whole: Whole
    over: bool = field(default=False, init=False)  # true where the server has told this process the end of the run
    ended: ClassVar[str] = "over"  # file that marks the end

    @cached_property
    @abstractmethod
    def head(self) -> SignedHead:
        """Newest ledger head that this party has signed."""

    @abstractmethod
    def answer(self, data: bytes | memoryview) -> bytes:
        """Answer to a message; it may be a refusal."""

    @property
    def was_over(self) -> bool:
        """True where the server has announced the end of the run to this process or an earlier one."""
        return (self.folder / self.ended).exists()

    def end(self) -> None:
        """Records that the run is over."""
        atomic_write(self.folder / self.ended, b"")
        self.over = True


def attend_for(
    attendant: Responder,
    invitation: Invitation,
    name: str,
    options: InvitedOptions,
    stop: Callable[[], bool],
    say: Says,
    most: int,
) -> None:
    """Answers the messages of a server until it is time to leave; raises an error where the folder here is an older
    copy, behind a ledger head that this side has signed. `most`: longest message that is accepted, in bytes."""
    head, run = attendant.head, invitation.told.run
    leave = Leave(lambda: attendant.over, lambda: stop() or head.behind is not None, say, attendant.was_over)
    tls = None if options.certificates is None else of_site(options.certificates, name)
    address = options.address or invitation.told.server
    sign = lambda ticket: options.identity.sign(claim(run, name, ticket))  # noqa: E731
    attend(address, name, attendant.answer, leave, tls, most, sign, leave.heard)
    if head.behind is not None:
        raise head.behind
