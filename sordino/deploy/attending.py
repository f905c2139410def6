"""How a site or a key holder reaches its server: outward, through whatever the invitation says carries the letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.deploy.certificates import of_site
from sordino.deploy.invitation import Invitation
from sordino.deploy.serving import HOME, with_certificates
from sordino.letters.attending import Says, attend


class Reaches(Protocol):
    """Who one is, and where the server is."""

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
    folder: Path,
    answer: Callable[[bytes], bytes],
    stop: Callable[[], bool],
    most: int,
    say: Says,
) -> None:
    """Answers the letters of a server until it is told to stop. `most`: the longest letter that is taken in, in
    bytes.
    """
    told = invitation.told
    address, tls = own.address or told.server, None if own.certificates is None else of_site(own.certificates, name)
    if told.carrier == "grpc":
        attend(address, name, answer, stop, tls, most, say)
        return
    from sordino.letters.flower.pinned import check_installed

    check_installed()
    from sordino.letters.flower.node import attend as attend_through_flower
    from sordino.letters.flower.passes import Pass

    signs = Pass(told.run, name, own.identity)
    attend_through_flower(address, signs, answer, stop, with_certificates(tls), most, folder / HOME, say)
