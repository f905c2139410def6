"""Privacy accounts of a site: they decide which requests of a server the site answers, and pay from the site's own
ledger before anything is computed.

It recomputes the plan from the experiment and the agreement that this site has accepted, and trusts no number of the
server's: less noise than planned, a round more than planned, a client of another site, another experiment, or a server
that has forgotten what it spent, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sordino.budget.plan import Price
from sordino.engine.commands import BEGIN_FIRST, Begin, End, Round, Score, Store
from sordino.engine.server import FederatedServer
from sordino.engine.site import broadcasts
from sordino.errors import LedgerError, PrivacyError, SordinoError, UnsoundGuarantee
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import LedgerPosition, State, of_run
from sordino.metrics.evaluation import check_shared
from sordino.planning.accounts import OpenRound
from sordino.runs.backend import ServerData
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.runs.witness import Witness, needed
from sordino.transport.message import Signer
from sordino.transport.request_handler import Operation
from sordino.types import Terms

ROUNDING = 1e-6  # relative, of noise multipliers: site and server divide the rest of a budget in floating point
MOST = 1e9  # largest noise multiplier: with larger ones floats overflow
ASKS = "the server asks for"
ANSWERED = (State.STORED, State.PUBLISHED)
PLAN = "this site has accepted another plan"
KEEP_TO = "the server must keep to the experiment and the agreement of the invitation"


class SignedHead:
    """Newest ledger head (number and hash of the last record) that this side has signed. The server keeps it and has to
    return it to each new process before it asks for anything that costs budget: the folder here may be an older copy.
    """

    def __init__(self, signer: Signer, place: Callable[[], str], check: Callable[[str], None]) -> None:
        """`place`: returns the current head of this side's ledger, as its messages state it. `check`: raises an error
        where the ledger is older than the head it is called with, which this side has signed.
        """
        self._signer, self._place, self._check = signer, place, check
        self._shown, self._unshown = False, 0
        self.behind: LedgerError | None = None  # why this folder may not go on

    def begin(self, returned: Sequence[bytes | memoryview]) -> None:
        """Checks this side's ledger against the heads that it once signed and the server now returns: a ledger behind
        one of them is an older copy. A server that returns none is sent the newest with the answer, and has to begin
        again."""
        try:
            for signed in returned:
                self._check(self._signer.own(bytes(signed)).ledger)
        except LedgerError as error:
            self.behind = error  # nothing that is done from here on could be right
            raise
        self._shown = self._shown or bool(returned) or not self._place()
        self._unshown += not self._shown

    def require(self) -> None:
        """Refuses commands that cost budget until the server has returned the newest ledger head that this side signed,
        which shows whether the folder here is an older copy that would spend the same budget twice.
        """
        if not self._shown or self.behind is not None:
            raise LedgerError(
                "this side was restarted, and has not received `begin` yet",
                why="its folder may be an older copy, and only the server knows its last round",
                fix="send `begin` with the newest head that it has signed, then repeat the request",
                code=BEGIN_FIRST,
            )

    def puts_right(self, error: SordinoError) -> bool:
        """True for a refusal that ends once the server returns the newest ledger head that this side signed; False once
        it has repeatedly returned none.
        """
        return error.code == BEGIN_FIRST and self._unshown < 2


class SiteAccounts:
    """Privacy accounts of one site in one run."""

    def __init__(
        self,
        whole: RunSetup,
        clients: Sequence[int],
        ledger: Path,
        dataset: str,
        run: str,
        shares_scores: bool = False,
        moved: bool = False,
    ) -> None:
        """`dataset`: digest of this site's data, for which its ledger was created. `shares_scores`: this site answers
        requests for scores. `moved`: this folder has taken the place of the one that joined.
        """
        self.lost: Collection[str] = ()  # rounds missing in this folder's ledger, an older copy
        self._whole, self._clients, self._run, self._shares_scores = whole, tuple(clients), run, shares_scores
        self._books = [
            phase.federation(ServerData(whole), dataset, ledger, run, self._clients) for phase in whole.phases
        ]
        own_eyes = ledger.parent / "replies"
        own_eyes.mkdir(exist_ok=True, mode=0o700)
        self._seen = own_eyes / "server-ledger"  # last reported head of the server's ledger
        self._rounds = own_eyes / "answered"  # answered rounds: of hidden cohorts, and those missing in an older copy
        self._noted = set(self._rounds.read_text(encoding="utf-8").split()) if self._rounds.exists() else set[str]()
        self._answered = {e.op for e in of_run(self.training.ledger, run) if e.state in ANSWERED} | self._noted
        self._witness = self._witnessed(ledger.parent, moved) if needed(whole.phases[-1]) else None

    def _witnessed(self, folder: Path, moved: bool) -> Witness:
        """Record, in the user's state folder, of the answers that have left this site; the ledger is compared with it.
        `moved`: a ledger that lacks some gets them again, as spent.
        """
        found, ledger = Witness.of(folder, lambda ledger, op: op in self._answered), self.training.ledger
        self.lost = found.check(ledger, moved)
        if self.lost:
            self._note_answered(self.lost)
        found.begin(ledger)
        return found

    def _note_answered(self, ops: Collection[str]) -> None:
        self._noted.update(ops)
        self._answered.update(ops)
        atomic_write(self._rounds, "\n".join(sorted(self._noted)).encode(), private=True)

    @property
    def place(self) -> str:
        """Number of rounds whose answers have left this site, and the ledger head at the last one."""
        if self._witness is None or not self._answered:
            return ""
        newest = self._witness.newest or self.training.ledger.place()
        return str(LedgerPosition(len(self._answered), newest.head))

    def check_returned(self, position: str) -> None:
        """Refuses to go on with a folder that is an older copy, behind a ledger head that this site has signed and the
        server has kept.
        """
        if self._witness is None or not position:
            return
        signed = LedgerPosition.parse(position)
        answered = len(self._answered)
        knows = self.training.ledger.descends_from(signed.head) or self._witness.has_seen(signed.head)
        if signed.length > answered or not knows:
            raise LedgerError(
                f"this site has answered {signed.length} rounds of this run, and its folder knows of {answered}",
                why="its own signature says so: this folder is an older copy, or not the one that joined, and budget "
                "that was spent since would be spent again",
                fix="put the newest folder of this site back, with its ledger; if it is lost, this site can take no "
                "further part in this run",
                code="site-rolled-back",
            )

    def close(self) -> None:
        for books in self._books:
            books.ledger.close()

    @property
    def training(self) -> FederatedServer:
        return self._books[-1]

    def reserve_all(self) -> None:
        """Reserves, before the first round, the budget of all rounds of each phase in which clients are sampled in
        secret: there a client pays for every round, drawn or not.
        """
        for phase, books in zip(self._whole.phases, self._books, strict=True):
            if books.plan.everyone_pays:
                books.replay()
                for t in range(phase.rounds):
                    if books.ledger.state(books.op(t)) is None:
                        books.reserve(books.open(t), {})

    def admit(self, asked: Operation) -> None:
        """Admit commands that cost no budget; refuse all others."""
        self._check_server(asked.ledger)
        command = asked.command
        if isinstance(command, Score):
            if not self._shares_scores:
                raise PrivacyError(
                    "this site shares no scores",
                    why="no noise covers the scores of a model on its examples",
                    fix="evaluate on the server's own examples, or ask the site to join with --share-scores",
                    code="scores-not-shared",
                )
            self._check_scores(asked.stage, command)
        elif not isinstance(command, Begin | Store | End):
            raise UnsoundGuarantee(
                f"a site is asked to {command.do}",
                why="it keeps and restores its states by itself",
                fix="server and sites must run the same version of sordino",
                code="not-for-sites",
            )

    def _check_scores(self, stage: int, command: Score) -> None:
        check_shared(command.ways)
        phase, _ = self._phase(stage)
        planned = max(1, len(phase.experiment.evaluation.models))
        if command.models > planned:
            raise UnsoundGuarantee(
                f"{ASKS} scores of {command.models} models",
                why=f"{PLAN}, with {planned}",
                fix=KEEP_TO,
                code="scores-beyond-plan",
            )

    def release(self, asked: Operation) -> None:
        """Records that the answer to a round leaves this site; no round has a second answer."""
        assert isinstance(asked.command, Round)
        books, t = self._books[asked.stage], asked.command.t
        if not books.plan.everyone_pays:
            # the digest of the request: others read the ledger, and the digest of an upload to which the server has
            # not added noise yet would let them test guesses of it
            books.publish(t, bytes.fromhex(asked.digest))
            self._answered.add(books.op(t))
        elif books.op(t) not in self._answered:
            # not in the ledger, which others read: it must not show in which rounds this site was drawn
            self._note_answered([books.op(t)])
        if self._witness is not None:  # before the answer is sent
            self._witness(books.ledger, books.op(t))

    # paying -----------------------------------------------------------------------------------------------------------

    def pay(self, asked: Operation, command: Round) -> Round:
        """Pay for a round, durably, and return it with no less noise than was paid for."""
        self._check_server(asked.ledger)
        phase, books = self._phase(asked.stage)
        who, t = sorted(command.terms), command.t
        if not who or not set(who) <= set(self._clients):
            raise UnsoundGuarantee(
                f"{ASKS} clients {who} of a site that has {list(self._clients)}",
                why=PLAN,
                fix=KEEP_TO,
                code="other-clients",
            )
        if t < 0 or (t >= phase.rounds and not phase.prepares):
            raise UnsoundGuarantee(
                f"{ASKS} round {t + 1} of a run with {phase.rounds} rounds",
                why=PLAN,
                fix=KEEP_TO,
                code="round-beyond-plan",
            )
        if books.op(t) in self._answered:
            raise LedgerError(
                f"round {t + 1} was answered before, and its answer is no longer kept",
                why="a second answer would need fresh noise, which is not paid for",
                fix="the server must continue from its newest checkpoint",
                code="answered-before",
            )
        self._check_learned(phase, command, asked.messages)
        books.replay(t)
        # a preparation may need extra rounds, and a server may ask one site in place of another, but no client more
        # often than the accepted plan allows
        if not all(map(books.may_be_asked, who)):
            raise _too_often(min(books.plan.participations[k] for k in who))
        now = books.open(t)
        prices = self._prices(books, now, who, command.terms)
        if not set(who) <= prices.keys() or not set(who) <= set(books.reserve(now, prices).granted):
            raise _too_often(t)
        if not books.plan.everyone_pays:
            books.ledger.drawn(books.op(t))
        return replace(command, terms={k: _as_paid(terms, prices[k]) for k, terms in command.terms.items()})

    def _check_learned(self, phase: PhaseSetup, command: Round, messages: Sequence[bytes | memoryview]) -> None:
        """Refuses a round, before it is paid for, whose public values (such as adaptive clip radii) are outside the
        bounds of its uplink."""
        if phase.algorithm.uplink.learns:
            for _, down in broadcasts(phase.algorithm, phase.task, phase.header(self._run), command, messages):
                phase.algorithm.uplink.at(command.t, down)

    def _phase(self, stage: int) -> tuple[PhaseSetup, FederatedServer]:
        if not 0 <= stage < len(self._books):
            raise UnsoundGuarantee(
                f"{ASKS} phase {stage} of a run with {len(self._books)} phases",
                why=PLAN,
                fix=KEEP_TO,
                code="phase-beyond-plan",
            )
        return self._whole.phases[stage], self._books[stage]

    def _prices(
        self, books: FederatedServer, now: OpenRound, who: Sequence[int], terms: Mapping[int, Terms]
    ) -> Mapping[int, Price | None]:
        """Prices of this round by the plan; refused unless the server asks for the planned noise. A client that missed
        rounds pays for this one alone."""
        for _ in books.skipping(who, 0 if books.plan.everyone_pays else now.t):
            for stalled in (False, True):  # only the server knows whether training stalled
                prices = books.prices(now, who, stalled)
                most = books.algorithm.work.epochs or 0
                if all(k not in prices or _same(books.terms(k, prices[k]), terms[k], most) for k in who):
                    return prices
        raise UnsoundGuarantee(
            f"{ASKS} less noise, another clip or another effort than planned",
            why=PLAN,
            fix=KEEP_TO,
            code="terms-beyond-plan",
        )

    def _check_server(self, position: str) -> None:
        """Refuses a server whose ledger was replaced by an older copy. `position`: number and hash of its last record.
        A ledger only grows: no smaller number than before may come, and no other hash at the same number."""
        try:
            now = LedgerPosition.parse(position)
        except ValueError:
            raise UnsoundGuarantee(
                "the server does not state the head of its ledger",
                why="a site must check that the ledger only grows",
                fix=KEEP_TO,
                code="no-ledger-place",
            ) from None
        before = LedgerPosition.parse(self._seen.read_text(encoding="utf-8") if self._seen.exists() else "0:")
        if now.length < before.length or (now.length == before.length and now != before):
            raise LedgerError(
                "the server's ledger went back",
                why=f"it had {before.length} records, now {now.length}: what was spent since would be forgotten",
                fix="put the server's newest ledger back in its place",
                code="server-rolled-back",
            )
        if now != before:
            atomic_write(self._seen, str(now).encode(), private=True)


def _too_often(planned: int) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"{ASKS} more rounds than the {planned} that this site's budget is for",
        why=PLAN,
        fix=KEEP_TO,
        code="more-rounds-than-planned",
    )


def _as_paid(asked: Terms, price: Price | None) -> Terms:
    """Terms as asked, with at least the noise that was paid for: the server's number may be smaller by a rounding."""
    if price is None or asked.multiplier is None or asked.multiplier >= price.multiplier:
        return asked
    return replace(asked, multiplier=price.multiplier)


def _same(planned: Terms, asked: Terms, epochs: int) -> bool:
    """True where the server asks for the planned terms, for more noise, or for less work than all `epochs`. Noise that
    all clients share may not be smaller than the noise that this client pays for.
    """
    if asked.epochs is not None and not 1 <= asked.epochs <= epochs:
        return False
    if asked.part is not None and not 0 < asked.part <= 1:
        return False
    if (planned.multiplier is None) != (asked.multiplier is None):
        return False
    least = (planned.multiplier or 0.0) * (1 - ROUNDING)
    if asked.multiplier is not None and not least <= asked.multiplier <= MOST:
        return False
    return replace(asked, epochs=None, part=None, multiplier=None) == replace(planned, multiplier=None)
