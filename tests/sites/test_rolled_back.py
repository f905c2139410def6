"""A site whose folder is an older copy, a second one or lost answers no round again, and gets no fresh budget: what left
it is known to its user's state folder, and what it has signed to the server.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino.config import Experiment
from sordino.engine.commands import Accepted, Answered, Begin, Refused
from sordino.engine.server import FederatedServer
from sordino.errors import LedgerError
from sordino.receipts.folder import RunFolder
from sordino.receipts.signature import private_key
from sordino.receipts.verify import verify
from sordino.runs.witness import MISSING, Witness
from sordino.sites import agreement_file
from sordino.sites.agreement_file import invite
from sordino.sites.join import JoinOptions, Proposed, membership
from sordino.sites.site_accounts import SiteAccounts
from sordino.transport.message import LENGTH, SIGNATURE
from sordino.transport.request_handler import ReplyStore
from sordino.transport.sites import Patience
from tests.helpers.between_sites import Federated
from tests.helpers.forged_messages import Server
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME
from tests.laws.traces import Killed, put_back

HIDDEN = "dp_prox"


def real(name: str = "gaussian_gdp", **more: Any) -> Experiment:
    case = BY_NAME[name]
    seen = {} if name == HIDDEN else {"cohort": {"name": "everyone"}}
    return case.experiment(privacy=case.privacy | {"noise": "system"}, **(seen | more))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def answers(server: Server, t: int) -> bytes | str:
    """The bytes of the answer to a round, or the code of a refusal."""
    answer, bodies = server.says(server.planned(t))
    return answer.code if isinstance(answer, Refused) else b"".join(bodies)


def answered(server: Server, t: int) -> bytes:
    found = answers(server, t)
    assert isinstance(found, bytes), found
    return found


def restarted(server: Server, moved: bool = False) -> None:
    server.between.moved = moved
    server.restart()


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["gaussian_gdp", HIDDEN])
def test_an_older_copy_of_a_site_answers_nothing_again(name: str, tmp_path: Path) -> None:
    """Also of a hidden cohort, whose ledger says nothing of the rounds that were answered."""
    server = Server(Federated(real(name), tmp_path))
    folder, copy = server.member.folder, tmp_path / "copy"
    assert answered(server, 0) != answered(server, 1)
    shutil.copytree(folder, copy)
    answered(server, 2)
    server.member.close()
    put_back(copy, folder)
    text = (folder / "experiment.toml").read_text()
    for edited in (text, text.replace("[privacy]\n", '[privacy]\nledger = "shared"\n')):  # its notes are where they are
        (folder / "experiment.toml").write_text(edited)
        with pytest.raises(LedgerError) as refusal:
            restarted(server)
        assert refusal.value.code == "ledger-rolled-back"
    (folder / "experiment.toml").write_text(text)
    restarted(server, moved=True)
    assert len(server.member.accounts.lost) == 1
    assert answers(server, 2) == "answered-before"
    answered(server, 3)
    assert server.spent() == 4
    assert server.member.receipt().rounds == 4
    server.member.close()
    assert verify(folder) == []


def test_a_site_without_its_notes_says_so_before_its_first_answer_too(tmp_path: Path) -> None:
    server = Server(Federated(real(), tmp_path))
    assert MISSING not in server.member.receipt().assumptions
    server.member.close()
    shutil.rmtree(tmp_path / "state")
    restarted(server)
    assert MISSING in server.member.receipt().assumptions
    server.member.close()


def test_a_copy_from_between_paying_and_answering_answers_nothing_again(tmp_path: Path) -> None:
    """It has paid, so its ledger knows the round; what it does not know is that it was answered."""
    server = Server(Federated(real(), tmp_path))
    folder, copy = server.member.folder, tmp_path / "copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplyStore, "put", lambda *given: dies())
        with pytest.raises(Killed):
            answers(server, 0)
    server.member.close()
    shutil.copytree(folder, copy)
    restarted(server)
    answered(server, 0)  # nothing had left: it is computed, and paid once
    server.member.close()
    put_back(copy, folder)
    with pytest.raises(LedgerError):
        restarted(server)
    restarted(server, moved=True)
    assert answers(server, 0) == "answered-before"
    server.member.close()


def dies() -> None:
    raise Killed


@pytest.mark.parametrize("after", [True, False])
def test_a_site_that_dies_as_it_notes_an_answer_gives_that_one(after: bool, tmp_path: Path) -> None:
    server = Server(Federated(real(), tmp_path))
    whole: Callable[..., None] = Witness.__call__

    def dying(self: Witness, *given: Any) -> None:
        if after:
            whole(self, *given)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Witness, "__call__", dying)
        with pytest.raises(Killed):
            answers(server, 0)
    kept = ReplyStore(server.member.folder / "replies").last
    server.member.close()
    restarted(server)
    assert kept == "0/round/0"
    assert answered(server, 0) == answered(server, 0)
    assert server.member.accounts.place.startswith("1:")
    server.member.close()


# what the server gives back -------------------------------------------------------------------------------------------


def signed(server: Server, t: int) -> bytes:
    """The head of the site's answer to a round, as a server keeps it."""
    messages: list[bytes] = []
    whole = server.member.handler.answer

    def answer(data: bytes) -> bytes:
        messages.append(whole(data))
        return messages[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.member.handler, "answer", answer)
        assert isinstance(server.says(server.planned(t))[0], Answered)
    (length,) = LENGTH.unpack_from(messages[0])
    return messages[0][: LENGTH.size + length + SIGNATURE]


def begins(server: Server, head: bytes) -> str:
    answer, _ = server.says(Begin(answered=True), messages=[head])
    assert isinstance(answer, Refused | Accepted)
    return answer.code if isinstance(answer, Refused) else ""


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["gaussian_gdp", HIDDEN])
def test_a_site_stops_where_it_is_behind_what_it_has_signed(name: str, tmp_path: Path) -> None:
    """On a machine that knows nothing of it: an older folder, and one that is new."""
    server = Server(Federated(real(name), tmp_path))
    folder, copy = server.member.folder, tmp_path / "copy"
    heads = [signed(server, 0)]
    server.member.close()
    shutil.copytree(folder, copy)
    restarted(server)
    heads += [signed(server, 1), signed(server, 2)]
    assert [begins(server, head) for head in heads] == ["", "", ""]
    server.member.close()
    for lost in (False, True):
        shutil.rmtree(tmp_path / "state")
        if lost:
            shutil.rmtree(folder)
        else:
            put_back(copy, folder)
        restarted(server)
        assert begins(server, heads[0]) == ("site-rolled-back" if lost else "")
        assert server.member.head.behind is None or lost
        assert begins(server, heads[2]) == "site-rolled-back"
        assert server.member.head.behind is not None
        server.member.close()


def test_what_was_spent_again_on_this_machine_is_no_rollback(tmp_path: Path) -> None:
    """The site has noted what it signed: as spent it goes on."""
    server = Server(Federated(real(), tmp_path))
    folder, copy = server.member.folder, tmp_path / "copy"
    answers(server, 0)
    server.member.close()
    shutil.copytree(folder, copy)
    restarted(server)
    newest = signed(server, 1)
    server.member.close()
    put_back(copy, folder)
    restarted(server, moved=True)
    assert begins(server, newest) == ""
    assert begins(server, signed(server, 2)) == ""
    server.member.close()


def test_a_site_that_has_signed_begins_with_no_server_that_shows_it_nothing(tmp_path: Path) -> None:
    """And its owner is told. The control: a process that the server has shown it once goes on."""
    server = Server(Federated(real(), tmp_path))
    head = signed(server, 0)
    assert server.says(Begin()) == (Accepted([0], False), [])
    assert isinstance(answers(server, 1), bytes)
    server.member.close()
    server.member = server.between.member(server.site)
    told = list[str]()
    server.member.note = lambda event: told.append(event.event)
    assert answers(server, 2) == "begin-first"
    for many in (0, 1):
        server.says(Begin())
        assert answers(server, 2) == "begin-first"
        assert told.count("declined") == many
    assert begins(server, head) == ""
    assert isinstance(answers(server, 2), bytes)
    server.member.close()


@pytest.mark.slow
def test_a_server_that_has_lost_what_it_was_signed_is_told_again(tmp_path: Path) -> None:
    """It stops after two rounds, its file of signed heads goes, and both sides are started again."""
    between, publish = Federated(real(), tmp_path, patience=Patience(5.0, 5)), FederatedServer.publish

    def published(self: FederatedServer, t: int, digest: bytes) -> None:
        publish(self, t, digest)
        if self.only is None and t == 1:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "publish", published)
        with pytest.raises(Killed):
            between.play()
    RunFolder(RunFolder(between.folder).private).sites_file.unlink()
    ended = between.play()
    assert [row.answered for row in ended.metrics][-2:] == [5, 5]
    assert {note[1:] for note in between.notes} == {" of 5 sites are there"}
    assert verify(between.folder) == []


def test_a_head_that_the_site_did_not_sign_is_refused(tmp_path: Path) -> None:
    server = Server(Federated(real(), tmp_path / "one"))
    other = Server(Federated(real(), tmp_path / "other"))
    head = signed(server, 0)
    assert begins(server, signed(other, 0)) == "wrong-signature"
    assert begins(server, head.replace(b'"ledger": "1:', b'"ledger": "0:')) == "wrong-signature"
    assert begins(server, b"") == "no-message"
    assert begins(server, head) == ""
    for each in (server, other):
        each.member.close()


@pytest.mark.slow
def test_a_server_gives_back_what_it_was_signed(tmp_path: Path) -> None:
    """A run that was stopped after two rounds goes on; one site has come back with an older folder, on a machine that
    knows nothing of it. It takes no part, everybody is told, and the others go on.
    """
    between = Federated(real(), tmp_path, patience=Patience(0.05, 4))
    release, copy = SiteAccounts.release, tmp_path / "copy"

    def released(self: SiteAccounts, asked: Any) -> None:
        release(self, asked)
        if asked.command.t == 0 and not copy.exists() and 2 in asked.command.terms:
            shutil.copytree(between.place / "site-2", copy)
        if asked.command.t == 2:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteAccounts, "release", released)
        with pytest.raises(Killed):
            between.play()
    kept = RunFolder(RunFolder(between.folder).private).sites_file
    assert kept.stat().st_mode & 0o077 == 0
    shutil.rmtree(tmp_path / "state")
    put_back(copy, between.place / "site-2")
    ended = between.play()
    assert any("site-2" in note and "has answered 2 rounds" in note for note in between.notes)
    assert [row.answered for row in ended.metrics][2:] == [4, 4]
    assert verify(between.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["between two rounds", "while a round waits for it"])
def test_a_running_server_gives_back_what_it_was_signed(asked: bool, tmp_path: Path) -> None:
    """A site is put back to where it stood after one round of two, with the state folder of its user, and is started
    again while the server runs on. It takes no further part; the others do.
    """
    between = Federated(real(), tmp_path, patience=Patience(60.0, 4))
    site, copy, publish, pay = between.place / "site-2", tmp_path / "copy", FederatedServer.publish, SiteAccounts.pay
    notes, put = tmp_path / "notes", list[int]()

    def noted() -> Path:
        witness = between.members["site-2"].accounts._witness
        assert witness is not None
        return witness.place

    def puts_back() -> None:
        put.append(len(between.members["site-2"].accounts._answered))
        place = noted()
        between.stop("site-2")
        put_back(copy, site)
        shutil.copy(notes, place)
        between.member("site-2")

    def published(self: FederatedServer, t: int, digest: bytes) -> None:
        publish(self, t, digest)
        if self.only is None and t == 0:
            shutil.copytree(site, copy)
            shutil.copy(noted(), notes)
        if self.only is None and t == 1 and not asked:
            puts_back()

    def paid(self: SiteAccounts, message: Any, command: Any) -> Any:
        found = pay(self, message, command)
        if asked and command.t == 2 and 0 in command.terms:  # the message to the third site has been written
            puts_back()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "publish", published)
        patch.setattr(SiteAccounts, "pay", paid)
        ended = between.play()
    assert put == [2]
    assert any("site-2" in note and "has answered 2 rounds" in note for note in between.notes)
    assert not any("has not received `begin`" in note for note in between.notes)
    assert [row.answered for row in ended.metrics] == [5, 5, 4, 4]
    assert verify(between.folder) == []


def test_without_the_signed_head_an_older_copy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: the program as it was. A round is answered twice, with other bytes, and paid once."""
    monkeypatch.setattr(Witness, "check", lambda self, ledger, moved: set())
    monkeypatch.setattr(SiteAccounts, "check_returned", lambda self, told: None)
    server = Server(Federated(real(), tmp_path))
    folder, copy = server.member.folder, tmp_path / "copy"
    shutil.copytree(folder, copy)
    head = signed(server, 0)
    first = answered(server, 0)
    server.member.close()
    put_back(copy, folder)
    restarted(server)
    assert begins(server, head) == ""
    assert answered(server, 0) != first
    assert server.spent() == 1
    server.member.close()


@pytest.mark.parametrize("moved", [False, True])
def test_another_folder_for_a_run_draws_no_second_answers(moved: bool, tmp_path: Path) -> None:
    """What is randomised once in a run is paid once, and a lost folder had the secret that it was drawn from."""
    read = {"name": "responses", "of": "image", "epsilon": 2.0, "delta": 1e-6, "label_epsilon": 2.0}
    table = real("fedavg", rounds=2, read=read).model_dump(mode="json", exclude_none=True)
    trial = Trial(tmp_path / "trial", table, 5, rehearsal=False)
    agreed = agreement_file.read(trial.place / "agreement.toml")

    def first_answers(run: str, out: str) -> torch.Tensor:
        name = trial.name(0)
        options = JoinOptions(
            invitation=Path(),
            identity=private_key(trial.place / name),
            folder=tmp_path / out,
            data=trial.place / f"{name}-data",
            name=name,
            moved=moved,
        )
        server = private_key(trial.place / "server")
        asked = Proposed(options, invite(run, "localhost:9", server, trial.experiment, agreed))
        with membership(asked, lambda found: True) as found:
            assert found is not None
            return found[0]._site(0).shards[asked.client].y.clone()

    own = first_answers("run", "own")
    assert torch.equal(own, first_answers("run", "in-place-of-a-lost-one"))
    assert not torch.equal(
        own, first_answers("another-run", "another")
    )  # the control: what is paid again is drawn anew
