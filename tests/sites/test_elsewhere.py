"""Runs between sites whose messages another program carries: here nodes in this process, each behind bytes alone."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Collection, Hashable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from sordino.errors import ConfigError
from sordino.metrics import RoundRow
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import place_for
from sordino.receipts.verify import verify
from sordino.runs.play import Ended
from sordino.sites import elsewhere, remote_sites
from sordino.sites.elsewhere import Nodes, SiteElsewhere, SiteTerms, framed, serve_elsewhere, unframed
from sordino.transport.message import each, peek
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME


class InThisProcess(Nodes):
    """Nodes that answer at once; with `starts_anew` each question meets a site that was just started."""

    def __init__(self, trial: Trial, anew: bool, **terms: Any) -> None:
        self.starts_anew, self.trial, self.terms = anew, trial, terms
        self.asked: list[tuple[Hashable, bytes]] = []
        self.sites: dict[Hashable, SiteElsewhere] = {}
        self.there = set(range(trial.sites))
        self.answered = 0

    def site(self, k: Any) -> SiteElsewhere:
        if k not in self.sites:
            place, name = self.trial.place, self.trial.name(k)
            terms: dict[str, Any] = {
                "experiment": place / "experiment.toml",
                "server_key": place / "server.pub",
                "client": name,
                "data": place / f"{name}-data",
                "identity": place / name,
                "folder": place / f"{name}-run",
                "rehearsal": self.trial.rehearsal,
            }
            self.sites[k] = SiteElsewhere(SiteTerms(**terms | self.terms))
        return self.sites[k]

    def present(self) -> Collection[Hashable]:
        return self.there

    def ask(self, node: Hashable, question: bytes) -> Hashable:
        self.asked.append((node, question))
        return len(self.asked) - 1

    def answers(self, tickets: Collection[Hashable]) -> Mapping[Hashable, bytes]:
        return {ticket: self.answer(*self.asked[int(str(ticket))]) for ticket in tickets}

    def answer(self, node: Hashable, question: bytes) -> bytes:
        self.answered += 1
        try:
            return self.site(node).answer(question)
        finally:
            if self.starts_anew:
                self.sites.pop(node).close()

    def close(self) -> None:
        while self.sites:
            self.sites.popitem()[1].close()


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "LOOK", 0.001)
    monkeypatch.setattr(elsewhere, "AGAIN", 0.05)
    monkeypatch.setattr(remote_sites, "SOON", 0.01)


def served(trial: Trial, nodes: InThisProcess, **settings: Any) -> Ended:
    place = trial.place
    told: dict[str, Any] = {
        "experiment": place / "experiment.toml",
        "agreement": place / "agreement.toml",
        "identity": place / "server",
        "sites": trial.list,
        "folder": trial.folder,
        "rehearsal": trial.rehearsal,
    }
    try:
        return serve_elsewhere(nodes, **told | settings)
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    experiment = BY_NAME["gaussian_gdp"].experiment(partition={"scheme": "iid", "clients": 3}, rounds=3)
    place = tmp_path_factory.mktemp("elsewhere")
    return Trial(place, experiment.model_dump(mode="json", exclude_none=True), 3, tls=False)


@pytest.fixture(scope="module")
def made_real(made: Trial, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """The same run with noise of the operating system, and all clients in each round."""
    table = made.table | {"privacy": made.table["privacy"] | {"noise": "system"}, "cohort": {"name": "everyone"}}
    return Trial(tmp_path_factory.mktemp("real"), table, made.sites, tls=False, rehearsal=False)


def copied(trial: Trial, place: Path) -> Trial:
    again = copy(trial)
    again.place = Path(shutil.copytree(trial.place, place / "trial"))
    return again


@pytest.fixture
def trial(made: Trial, tmp_path: Path) -> Trial:
    return copied(made, tmp_path)


@pytest.fixture
def real(made_real: Trial, tmp_path: Path) -> Trial:
    return copied(made_real, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("anew", [True, False], ids=["a process for each question", "one process"])
def test_it_trains_what_the_simulation_trains(trial: Trial, anew: bool) -> None:
    loop, nodes = trial.simulated(), InThisProcess(trial, anew)
    assert not served(trial, nodes).interrupted
    assert model_of(trial.folder) == model_of(loop)
    assert ledger_of(trial.folder) == ledger_of(loop)
    assert verify(trial.folder) == []
    for k in range(trial.sites):
        own = trial.place / f"site-{k}-run"
        assert verify(own) == []
        assert model_of(own) == model_of(loop)


@pytest.mark.slow
def test_with_real_noise_a_new_process_is_shown_what_it_has_signed(real: Trial) -> None:
    nodes = InThisProcess(real, anew=True)
    served(real, nodes)
    for k in range(real.sites):
        own = real.place / f"site-{k}-run"
        assert verify(own) == []
        assert len([entry for entry in ledger_of(own) if entry.charges]) == 3
    # in front of every message stands the head that the site has signed last: who forgets it is asked in vain
    assert nodes.answered == real.sites * (1 + 1 + 3 + 1)  # who it is, to begin, three rounds, the end


@pytest.mark.slow
def test_a_folder_that_was_put_back_takes_no_further_part(real: Trial) -> None:
    """With every message comes the newest head that a site has signed, which an older copy of its folder lacks."""
    own, older, asked = real.place / "site-1-run", real.place / "copy", list[bytes]()

    class PutBack(InThisProcess):
        def answer(self, node: Hashable, question: bytes) -> bytes:
            if node == 1 and b'"do": "round"' in question:
                asked.append(question)
                kept = place_for(RunFolder(own).environment.run, "site-1")
                if len(asked) == 2:
                    shutil.copytree(own, older)
                    shutil.copy(kept, older / "witness")
                elif len(asked) == 3:
                    shutil.rmtree(own)
                    shutil.copytree(older, own)
                    shutil.copy(older / "witness", kept)  # as on another machine
            return super().answer(node, question)

    served(real, PutBack(real, anew=True, moved=True), minimum=2, deadline_s=1.0)
    assert [row.answered for row in rows(real)] == [3, 3, 2]
    assert len([entry for entry in ledger_of(own) if entry.charges]) == 1


@pytest.mark.slow
def test_a_node_that_is_killed_at_work_answers_with_the_same_bytes(trial: Trial) -> None:
    loop, lost = trial.simulated(), list[Hashable]()

    class Dies(InThisProcess):
        def answer(self, node: Hashable, question: bytes) -> bytes:
            found = super().answer(node, question)
            if b'"do": "round"' in question and node not in lost:
                lost.append(node)
                return b""  # it has computed and paid, and the answer went down with it
            return found

    served(trial, Dies(trial, anew=True))
    assert len(lost) == trial.sites
    assert model_of(trial.folder) == model_of(loop)
    assert ledger_of(trial.folder) == ledger_of(loop)


@pytest.mark.parametrize("breaks", ["other-server", "other-experiment", "code"])
def test_a_site_answers_no_other_server_and_no_other_experiment(
    breaks: str, trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, place = InThisProcess(trial, anew=False), trial.place
    terms = dict(nodes.site(0)._terms.__dict__)
    asked = first_question(trial)
    assert SiteElsewhere(SiteTerms(**terms)).answer(asked) != b""  # the control
    if breaks == "other-server":
        terms["server_key"] = place / "site-1.pub"
    elif breaks == "other-experiment":
        (place / "mine.toml").write_text((place / "experiment.toml").read_text().replace("rounds = 3", "rounds = 2"))
        terms["experiment"] = place / "mine.toml"
    else:
        asked = asked.replace(b"gaussian_gdp", b"this:here_is")  # of the same length
    assert SiteElsewhere(SiteTerms(**terms)).answer(asked) == b""
    assert {"other-server": "another server", "other-experiment": "another experiment", "code": "names code"}[
        breaks
    ] in caplog.text
    assert "this" not in sys.modules
    assert not (place / "site-0-run").exists()


@pytest.mark.slow
def test_malformed_questions_are_refused(trial: Trial) -> None:
    """Each is one byte or more away from a question that a site has answered, or from its form; nothing is paid."""

    class Keeps(InThisProcess):
        def answer(self, node: Hashable, question: bytes) -> bytes:
            if node == 0 and b'"do": "round"' in question:
                kept[:] = [question]
            return super().answer(node, question)

    kept, nodes, rng = [b""], Keeps(trial, anew=True), random.Random(0)
    served(trial, nodes)
    own, site = trial.place / "site-0-run", nodes.site(0)
    before, (invitation, _, messages) = ledger_of(own), unframed(kept[0], 3)
    begin, message = map(bytes, each(messages))
    assert refused(site.answer(kept[0])) is None  # the control: the answer that was kept

    def malformed() -> bytes:
        at, length = rng.randrange(len(message)), rng.randrange(1, 9)
        changed = (
            message[:at]
            + bytes(one ^ rng.randrange(1, 256) for one in message[at : at + length])
            + message[at + length :]
        )
        return rng.choice(
            [
                framed([invitation, b"", begin + changed]),
                framed([invitation, b"", begin + message[:at]]),
                framed([invitation, b"", messages + rng.randbytes(length)]),
                framed([invitation, b""]),
                kept[0][: rng.randrange(len(kept[0]))],
                kept[0] + rng.randbytes(length),
                rng.randbytes(rng.randrange(200)),
            ]
        )

    told = [refused(site.answer(malformed())) for _ in range(1000)]
    site.close()
    assert None not in told
    assert 100 < told.count("nothing") < 900
    assert ledger_of(own) == before


@pytest.mark.slow
def test_a_node_without_the_key_on_the_list_is_sent_no_message(real: Trial) -> None:
    nodes = InThisProcess(real, anew=False)
    nodes.site(0)
    imposter = dict(nodes.sites[0]._terms.__dict__) | {"identity": real.place / "site-1"}
    nodes.sites[0] = SiteElsewhere(SiteTerms(**imposter))
    served(real, nodes, minimum=2, deadline_s=0.5)
    assert all(unframed(question, 3)[2] == b"" for node, question in nodes.asked if node == 0)
    assert not (real.place / "site-0-run").exists()
    assert [row.answered for row in rows(real)] == [2, 2, 2]


def test_a_secure_sum_and_a_relative_folder_are_refused(trial: Trial, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        served(trial, InThisProcess(trial, anew=False), folder="runs/study")
    assert error.value.code == "budget-needs-absolute-path"
    masked = Trial.of(BY_NAME["secagg_fl"], tmp_path / "masked")
    with pytest.raises(ConfigError) as error:
        served(masked, InThisProcess(masked, anew=False))
    assert error.value.code == "secure-sum-elsewhere"
    assert not masked.folder.exists()


def refused(answer: bytes) -> str | None:
    """What a site says in place of an answer: nothing at all, or that it refuses."""
    if not answer:
        return "nothing"
    said = peek(unframed(answer, 1)[0]).said
    return str(said["what"]) if said["do"] == "refused" else None


def rows(trial: Trial) -> list[RoundRow]:
    return RunFolder(trial.folder).metrics()


def first_question(trial: Trial) -> bytes:
    """What a server asks a node that it does not know."""

    class Asked(InThisProcess):
        def ask(self, node: Hashable, question: bytes) -> Hashable:
            self.asked.append((node, question))
            raise KeyboardInterrupt

    nodes = Asked(trial, anew=False)
    assert served(trial, nodes).interrupted
    shutil.rmtree(trial.folder)
    return nodes.asked[0][1]
