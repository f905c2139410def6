"""`sordino hold-key`: the program of the key holder of a run between sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.receipts.folder import RunFolder
from sordino.runs.setup import Whole
from sordino.sites import invitation as invitations
from sordino.sites.client_line import Says
from sordino.sites.connecting import Leave, attend_for
from sordino.sites.encrypted_sites import HOLDER
from sordino.sites.key_holder import KeyHolder
from sordino.sites.serve import SERVER, longest, settled
from sordino.transport.message import Letterhead


@dataclass(frozen=True)
class KeyHolding:
    """What a key holder is started with."""

    invitation: Path
    identity: Ed25519PrivateKey = field(repr=False)
    folder: Path | None = None
    address: str = ""  # of the server; nothing: as the invitation says
    certificates: Path | None = None
    rehearsal: bool = False
    with_code: bool = False  # may classes that the invitation names run here?


def hold(asked: KeyHolding, stop: Callable[[], bool], say: Says, note: Callable[[str], None]) -> bool:
    """Opens the sums of a run until it is over or somebody stops it. Is it over?"""
    invitation = invitations.read(asked.invitation, asked.with_code)
    agreed, told = invitation.agreement, invitation.told
    experiment = settled(invitation.experiment, asked.rehearsal)
    whole = Whole(experiment, agreed.public(experiment, invitation.declared))
    folder = asked.folder or Path("runs") / f"{told.run}-{HOLDER}"
    known = {SERVER: invitation.server_key}
    letterhead = Letterhead(HOLDER, told.run, experiment.digest(), agreed.digest, asked.identity, known)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with RunFolder(folder).locked():  # two of them would open two sums of one round
        holder = KeyHolder(folder, whole, letterhead, note)
        note(f"tell every site, and not through the server: --key-digest {holder.digest}")
        leave = Leave(lambda: holder.over, lambda: stop() or bool(holder.head.behind), say, holder.was_over)
        attend_for(invitation, HOLDER, asked, holder.answer, leave, longest(whole, agreed))
        if holder.head.behind is not None:
            raise holder.head.behind
        return holder.was_over
