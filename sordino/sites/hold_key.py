"""`sordino hold-key`: the program of the key holder of a run between sites."""

from __future__ import annotations

from collections.abc import Callable

from sordino.receipts.folder import RunFolder
from sordino.runs.setup import Whole
from sordino.sites import invitation as invitations
from sordino.sites.client_line import Says
from sordino.sites.connecting import InvitedOptions, attend_for
from sordino.sites.encrypted_sites import HOLDER
from sordino.sites.key_holder import KeyHolder
from sordino.sites.serve import longest, settled


def hold(options: InvitedOptions, stop: Callable[[], bool], say: Says, note: Callable[[str], None]) -> bool:
    """Opens the sums of a run until it is over or somebody stops it. Is it over?"""
    invitation = invitations.read(options.invitation, options.with_code)
    agreed = invitation.agreement
    experiment = settled(invitation.experiment, options.rehearsal)
    whole = Whole(experiment, agreed.public(experiment, invitation.declared))
    folder = options.folder_in(invitation.told.run, HOLDER)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with RunFolder(folder).locked():  # two of them would open two sums of one round
        holder = KeyHolder(folder, whole, invitation.letterhead(HOLDER, experiment.digest(), options.identity), note)
        note(f"tell every site, and not through the server: --key-digest {holder.digest}")
        attend_for(holder, invitation, HOLDER, options, stop, say, longest(whole, agreed))
        return holder.was_over
