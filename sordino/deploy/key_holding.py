"""`sordino hold-key`: the program of the key holder of a run between sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.deploy import invitation as invitations
from sordino.deploy.attending import attend_for
from sordino.deploy.key_holder import KeyHolder
from sordino.deploy.serving import SERVER, longest, settled
from sordino.letters.attending import Says, Standing
from sordino.letters.encrypted_sites import HOLDER
from sordino.letters.letter import Letterhead
from sordino.runs.setup import Whole


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


def hold(asked: KeyHolding, stop: Callable[[], bool], say: Says, note: Callable[[str], None]) -> None:
    """Opens the sums of a run until it is over or somebody stops it."""
    invitation = invitations.read(asked.invitation, asked.with_code)
    agreed, told = invitation.agreement, invitation.told
    experiment, done = settled(invitation.experiment, asked.rehearsal), False
    whole, folder = Whole(experiment, agreed.public), asked.folder or Path("runs") / f"{told.run}-{HOLDER}"
    known = {SERVER: invitation.server_key}
    letterhead = Letterhead(HOLDER, told.run, experiment.digest(), agreed.digest, asked.identity, known)
    holder = KeyHolder(folder, whole, letterhead)
    note(f"tell every site, and not through the server: --key-digest {holder.digest}")

    def heard(standing: Standing, why: str) -> None:
        nonlocal done
        done = holder.over and standing != "working"
        say(standing, why)

    most = longest(whole, agreed)
    attend_for(invitation, HOLDER, asked, folder, holder.answer, lambda: done or stop(), most, heard)
