"""Key holder of a run between sites: it decrypts one sum in each round, of at least a minimum number of uploads, and
nothing else. It has no data, and it must be run by somebody who is neither the server nor works together with it.

What is protected, from a server that follows the protocol: single uploads. The sites encrypt under a key whose digest
they have from the holder itself, so the server cannot substitute a key of its own.

What is not protected: the holder cannot see how many clients are in a sum, and relies on the server's number. A server
that lies can add a single upload to encrypted zeros and have it opened as a sum. Server and holder together read every
upload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from sordino import tree
from sordino.engine.commands import Accepted, Answer, Begin, Done, End, OpenSum, Publish, Refused, read_command
from sordino.errors import LedgerError, RunError, SordinoError, UnsoundGuarantee, WireError
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import LedgerPosition
from sordino.privacy.uplink.channels import SecretKey
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import state
from sordino.runs.setup import RunSetup
from sordino.sites import agreement_file
from sordino.sites.connecting import InvitedOptions, Responder, Says, attend_for
from sordino.sites.secure_sums import HOLDER, INTEGERS, held
from sordino.sites.serve import longest, settled
from sordino.sites.site_accounts import SignedHead
from sordino.transport.message import Message, Signer, digest_of


@dataclass
class KeyHolder(Responder):
    """Key holder of a run; its folder has the key and a record of the sums it decrypted."""

    signer: Signer
    note: Callable[[str], None] = lambda text: None
    _declined: str = field(default="", init=False)  # why something was refused last

    def __post_init__(self) -> None:
        if all(held(self.whole, stage) is None for stage in range(len(self.whole.phases))):
            raise RunError(
                "this run needs no key holder",
                why='no uplink in it encrypts uploads with keys = "authority"',
                fix="leave the key holder out",
                code="no-key-needed",
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def digest(self) -> str:
        """Digest of the public key, which sites must get over another channel than the server."""
        return hashlib.sha256(self._secret.public.pack()).hexdigest()

    def answer(self, data: bytes | memoryview) -> bytes:
        """Answer to a message; it may be a refusal."""
        message: Message | None = None
        try:
            message = self.signer.read(data)
            answer, bodies = self._answered(message)
        except SordinoError as error:
            answer, bodies = Refused.of(error), []
            if not self.head.puts_right(error):
                self._decline(f"{error.what} {error.why}".strip())
        head = None if message is None else message.head
        to, stage = ("", 0) if head is None else (head.sender, head.stage)
        return self.signer.write(to, stage, asdict(answer), bodies, self.place)

    @property
    def place(self) -> str:
        """Number of sums that were decrypted, and the digest of the newest; empty before the first one."""
        return str(LedgerPosition(len(self._opened), [*self._opened.values()][-1])) if self._opened else ""

    @cached_property
    def head(self) -> SignedHead:
        return SignedHead(self.signer, lambda: self.place, self._check_returned)

    def _check_returned(self, position: str) -> None:
        """Refuses to go on where this key holder has signed a ledger head that names a sum unknown to its folder, which
        is then an older copy.
        """
        if not position:
            return
        signed = LedgerPosition.parse(position)
        if signed.length > len(self._opened) or signed.head not in self._opened.values():
            raise LedgerError(
                f"this key holder has opened {signed.length} sums of this run, and its folder knows of "
                f"{len(self._opened)}",
                why="its own signature says so: this folder is an older copy, and would open a second sum of a round, "
                "whose difference from the first can be a single upload",
                fix="put the newest folder of the key holder back; if it is lost, no further sum of this run is opened",
                code="key-holder-rolled-back",
            )

    def _decline(self, why: str) -> None:
        """Reports a refusal to the owner; of repeated refusals for the same reason only the first."""
        if why != self._declined:
            self._declined = why
            self.note(f"warning: this key holder does not do what the server asks: {why}")

    def _answered(self, message: Message) -> tuple[Answer, list[bytes]]:
        command = read_command(message.head.said)
        if len(message.bodies) != command.messages:
            raise WireError("another number of messages came", fix="ignore it", code="other-messages")
        if isinstance(command, Begin):
            self.head.begin(message.bodies)
            return Accepted([]), []
        if isinstance(command, Publish):
            return Done(), [self._secret.public.pack()]
        if isinstance(command, OpenSum):
            self.head.require()
            return Done(), [self._sum(message, command)]
        if isinstance(command, End):
            self.end()
            return Done(), []
        raise UnsoundGuarantee(
            f"a key holder is asked to {command.do}",
            why="it decrypts sums, and does nothing else",
            fix="server and key holder must run the same version of sordino",
            code="not-for-key-holders",
        )

    def _sum(self, message: Message, command: OpenSum) -> bytes:
        stage = message.head.stage
        secure = held(self.whole, stage)
        if secure is None or not 0 <= command.t < self.whole.phases[stage].rounds:
            raise UnsoundGuarantee(
                f"a sum of phase {stage}, round {command.t + 1}",
                why="the experiment has no such encrypted round",
                fix="the server must keep to the experiment that the key holder has accepted",
                code="no-such-sum",
            )
        setup = self.whole.phases[stage]
        algorithm, grid = setup.algorithm, setup.algorithm.uplink.grid
        assert grid is not None
        uplink, zero = algorithm.uplink, algorithm.zero(setup.task, algorithm.broadcast(setup.state("server")))
        largest = tree.size(uplink.shape(zero))  # at the highest rates
        size = command.size if uplink.learns and 0 < command.size <= largest else largest
        expected = self._secret.public.header(command.t, size, grid.layout)
        total = secure.sums.unpack(bytes(message.bodies[0]), expected)
        if (least := secure.least(0)) > command.clients or command.clients > total.header.count:
            raise UnsoundGuarantee(
                f"the sum of {command.clients} uploads, in a message of {total.header.count}",
                why=f"a sum of fewer than {least} uploads is never opened",
                fix="wait for more clients",
                code="sum-of-too-few",
            )
        self._once(f"{stage}/{command.t}", digest_of(message.bodies))
        return self._secret.open(total).astype(INTEGERS).tobytes()

    def _once(self, name: str, digest: str) -> None:
        """Refuse a second sum of a round: the difference of two can be a single upload. The sum's digest is recorded
        durably before it is decrypted, beside the key and in the user's state folder: where one record is an older
        copy, the other holds.
        """
        if self._opened.get(name, digest) != digest:
            raise LedgerError(
                f"another sum of {name} was opened before",
                why="the difference of two sums of one round can be a single upload",
                fix="the server must continue with the next round",
                code="opened-before",
            )
        opened = {**self._opened, name: digest}
        for log in self._logs:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(log, json.dumps(opened).encode(), private=True)
        self._opened[name] = digest  # not before it is durable: `place` is signed, and must not be ahead of the folder

    @cached_property
    def _secret(self) -> SecretKey:
        """Key of the run, generated once."""
        secure = next(s for s in (held(self.whole, i) for i in range(len(self.whole.phases))) if s is not None)
        file = self.folder / "secret.key"
        if not file.exists():
            made = secure.sums.GENERATE[secure.scheme](secure)
            atomic_write(file, made.pack(), private=True)
        return secure.sums.secret_key(secure, file.read_bytes())

    @cached_property
    def _opened(self) -> dict[str, str]:
        """Digests of the sums decrypted so far, by round."""
        return {name: was for log in self._logs if log.exists() for name, was in json.loads(log.read_bytes()).items()}

    @property
    def _logs(self) -> tuple[Path, Path]:
        return self.folder / "opened.json", state() / "keys" / f"{self.digest[:32]}.json"


def hold(options: InvitedOptions, stop: Callable[[], bool], say: Says, note: Callable[[str], None]) -> bool:
    """`sordino hold-key`: decrypt the sums of a run until it is stopped (False) or the run is over (True)."""
    invitation = agreement_file.read_invitation(options.invitation, options.with_code)
    agreed = invitation.agreement
    experiment = settled(invitation.experiment, options.rehearsal)
    whole = RunSetup(experiment, agreed.public(experiment, invitation.declared))
    folder = options.folder_in(invitation.fields.run, HOLDER)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with RunFolder(folder).locked():  # two of them would open two sums of one round
        holder = KeyHolder(folder, whole, invitation.signer(HOLDER, experiment.digest(), options.identity), note)
        note(f"tell every site, and not through the server: --key-digest {holder.digest}")
        attend_for(holder, invitation, HOLDER, options, stop, say, longest(whole, agreed))
        return holder.was_over


def pinned(key: bytes, digest: str) -> bytes:
    """The public key that the server sent; refused unless it has the digest that the key holder gave to this site."""
    if hashlib.sha256(key).hexdigest() != digest:  # which is no secret
        raise UnsoundGuarantee(
            "the server sends another public key than that of the key holder"
            if digest
            else "this site joined without the digest of the key holder's key",
            why="with a key of its own, the server would read every upload",
            fix=f"ask the {HOLDER} for the digest of its key, by another way than through the server",
            code="other-public-key",
        )
    return key
