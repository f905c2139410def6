"""Membership of a site in a run: its folder, ledger and clients, and the policy by which it answers the server's
messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import safetensors.torch
from safetensors import SafetensorError

from sordino.engine import checkpoint, wire
from sordino.engine.client_states import shape_of
from sordino.engine.commands import Accepted, Answer, Begin, Done, Encrypt, End, Round, Store
from sordino.engine.site import Site
from sordino.errors import (
    KeyMismatch,
    LedgerError,
    MalformedCiphertext,
    RoundMismatch,
    RunError,
    SecAggAborted,
    SordinoError,
    WireError,
)
from sordino.ledger.files import append_line, atomic_write
from sordino.metrics import RoundRow
from sordino.planning import Agreement
from sordino.privacy.uplink.channels import PublicKey
from sordino.privacy.uplink.secure_stages import Encrypted, SecureStage
from sordino.receipts import Receipt
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import write_receipt
from sordino.runs import bundle
from sordino.runs.declared_data import DeclaredData
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import clients_of, secret_of
from sordino.sites.connecting import Responder
from sordino.sites.key_holder import pinned
from sordino.sites.site_accounts import SignedHead, SiteAccounts
from sordino.transport.message import Signer
from sordino.transport.request_handler import Operation, ReplyStore, RequestHandler, RequestPolicy
from sordino.transport.run_events import RunEvent
from sordino.types import Examples

# errors in messages of the server or of other clients: they do not depend on rows
OF_MESSAGES = (WireError, LedgerError, SecAggAborted, RoundMismatch, MalformedCiphertext, KeyMismatch)
FAILED = "failed-at-site"


@dataclass
class Membership(Responder, RequestPolicy):
    """Site in a run, with its state in a folder."""

    ended: ClassVar[str] = "replies/over"

    trained: Mapping[int, Examples]  # rows of its own clients
    tested: Mapping[int, Examples]
    signer: Signer
    key_digest: str = ""  # digest of the key holder's public key, from the holder itself
    moved: bool = False  # true: this folder has taken the place of the one that joined
    note: Callable[[RunEvent], None] = lambda event: None
    _logged: set[tuple[str, int]] = field(default_factory=set, init=False)  # rounds that are already in metrics.jsonl

    def __post_init__(self) -> None:
        files = self._mine
        self._logged = {(row.phase, row.round) for row in (*files.metrics(), *files.prepared())}
        self.accounts.reserve_all()

    @property
    def _mine(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def accounts(self) -> SiteAccounts:
        dataset, clients = Agreement.read(self.folder).dataset, sorted(self.trained)
        ledger, run = self._mine.own_ledger, self.signer.run
        return SiteAccounts(self.whole, clients, ledger, dataset, run, self.shares_scores, self.moved)

    @cached_property
    def shares_scores(self) -> bool:
        return bool(self._mine.environment.shares_scores)

    @cached_property
    def head(self) -> SignedHead:
        return SignedHead(self.signer, lambda: self.accounts.place, self.accounts.check_returned)

    @cached_property
    def replies(self) -> ReplyStore:
        return ReplyStore(self.folder / "replies")

    @cached_property
    def handler(self) -> RequestHandler:
        return RequestHandler(self.signer, self._site, self, self.replies)

    def answer(self, data: bytes | memoryview) -> bytes:
        return self.handler.answer(data)

    def _site(self, stage: int) -> Site:
        """Clients of this site, with the states that they had after the last stored answer."""
        setup: PhaseSetup = self.whole.phases[stage]
        before = self.whole.phases[Operation.stage_of(self.replies.last)]  # whose clients left the last states
        start = before.algorithm.init_client(before.task)
        # phases of a preparation pass client states on to each other; the training starts with new ones
        goes_on = before.prepares == setup.prepares
        left = self.replies.states(lambda name: shape_of(name, start)) if goes_on else {}
        states = setup.states(self.folder, left)
        file = self._mine.tensors_file
        given = checkpoint.tensors(file) if not setup.prepares and file.exists() else None
        return clients_of(setup, self.signer.run, self.trained, self.tested, states, secret_of(self.folder), given)

    # what it is asked -------------------------------------------------------------------------------------------------

    def admit(self, asked: Operation) -> None:
        if not isinstance(asked.command, Encrypt):  # a public key costs nothing
            self.accounts.admit(asked)

    def pay(self, asked: Operation, command: Round) -> Round:
        self.head.require()
        return self.accounts.pay(asked, command)

    def declined(self, error: SordinoError) -> None:
        """Reports a refusal to the owner, for instance of a forged plan or over a full disk."""
        if error.code != FAILED and not self.head.puts_right(error):  # the owner has already seen that error in full
            self.note(RunEvent(event="declined", why=f"{error.what} {error.why}".strip()))

    def failed(self, error: SordinoError) -> SordinoError:
        """Error that the server receives. Its text, which may repeat a row, is withheld unless a message was at
        fault."""
        if isinstance(error, OF_MESSAGES):
            return error
        self.note(RunEvent(event="failed", why=f"{error.what} {error.why}".strip()))
        return RunError(
            "the work failed at this site",
            why="the error may quote the site's data, so only the site itself sees it",
            fix="ask the site for the error in its own terminal and events.jsonl",
            code=FAILED,
        )

    def secure(self, stage: int) -> SecureStage | None:
        phases = self.whole.phases
        return phases[stage].algorithm.uplink.secure if 0 <= stage < len(phases) else None

    def key(self, stage: int) -> PublicKey:
        secure = self.secure(stage)
        assert isinstance(secure, Encrypted)
        return secure.sums.public_key(secure, pinned(self._key_file.read_bytes(), self.key_digest))

    @property
    def _key_file(self) -> Path:
        return self.folder / "holder.key"

    def does(self, asked: Operation) -> Answer | None:
        if isinstance(asked.command, Begin):
            self.head.begin(asked.messages)
            return Accepted(sorted(self.trained), self.shares_scores)
        if isinstance(asked.command, Store):
            given = bytes(asked.messages[0])
            self._keep_tensors(given)
            return Done()
        if isinstance(asked.command, Encrypt):
            atomic_write(self._key_file, pinned(bytes(asked.messages[0]), self.key_digest))
            return Done()
        if isinstance(asked.command, End):
            if asked.messages:
                self._keep_model(asked.messages[0])
            self.end()
            return Done()
        return None

    @property
    def place(self) -> str:
        return self.accounts.place

    def release(self, asked: Operation, bodies: Sequence[bytes]) -> None:
        self.accounts.release(asked)
        assert isinstance(asked.command, Round)
        setup, many, t = self.whole.phases[asked.stage], len(asked.command.terms), asked.command.t + 1
        self.note(RunEvent(event="answered", phase=setup.phase, round=t))
        if (setup.phase, t) not in self._logged:
            self._logged.add((setup.phase, t))
            down = setup.algorithm.broadcast(setup.state("server"))
            row = RoundRow(
                phase=setup.phase,
                round=t,
                active=many,
                answered=many,
                bytes_down=sum(map(len, asked.messages)),
                bytes_up=sum(map(len, bodies)),
                payload=wire.payload_bytes(wire.schema(setup.algorithm.zero(setup.task, down))),
            )
            append_line(self._rows_of(setup), json.dumps(row.to_json()))

    def _rows_of(self, setup: PhaseSetup) -> Path:
        """File for the metrics of this site's rounds. With a hidden cohort under real noise it is private: it tells who
        was drawn."""
        if setup.prepares:
            return self._mine.preparation_file
        hidden = setup.policy.secret_cohort
        return RunFolder(self._mine.private).metrics_file if hidden else self._mine.metrics_file

    def _keep_tensors(self, given: bytes) -> None:
        """Store the tensors that clients receive before the first round; refuse different ones later."""
        file = self._mine.tensors_file
        if file.exists() and file.read_bytes() != given:
            raise LedgerError(
                "the server sends other tensors than before",
                why="the rounds until now used those that it sent first",
                fix="ask the operator of the server to continue from the checkpoint of these rounds",
                code="other-content",
            )
        try:
            safetensors.torch.load(given)
        except (SafetensorError, ValueError, KeyError) as error:  # the last for a dtype that torch has not
            raise WireError(
                "the server's file does not hold tensors", why=str(error)[:200], code="no-tensors"
            ) from None
        if not file.exists():
            atomic_write(file, given)

    def _keep_model(self, message: memoryview) -> None:
        setup = self.whole.phases[-1]
        model = next(iter(setup.algorithm.models(setup.state("server")).values()))
        _, found = wire.decode(message, setup.header(self.signer.run)(setup.rounds, -1), model)
        declared = DeclaredData(setup.experiment).schema
        bundle.write(self.folder, setup, found, declared.features if declared is not None else {})

    def receipt(self) -> Receipt:
        """Write and seal the receipt of what this site has spent so far."""
        return write_receipt(self.folder, self.whole.phases[-1], self.accounts.training)

    def close(self) -> None:
        self.accounts.close()
