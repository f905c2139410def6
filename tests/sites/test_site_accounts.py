"""A site pays for what it has accepted, and for nothing else, whatever the server says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from sordino import tree
from sordino.engine.commands import Answered, Command, Keep, Refused, Restore, Round, Score, Store
from sordino.engine.site import Site
from sordino.ledger.ledger import Entry, Ledger, State
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink.compression import LayerByLayer
from sordino.receipts.folder import RunFolder
from sordino.sites.site_accounts import SiteAccounts
from sordino.transport.run_events import RunEvent
from sordino.types import Bound, Grant, Terms
from tests.helpers.between_sites import Federated
from tests.helpers.forged_messages import Server, serving
from tests.laws.cases import BY_NAME

Forge = Callable[[Round], Command]


def terms(**changes: Any) -> Forge:
    def forge(planned: Round) -> Round:
        return replace(planned, terms={k: replace(each, **changes) for k, each in planned.terms.items()})

    return forge


def louder(factor: float) -> Forge:
    def forge(planned: Round) -> Round:
        changed = {k: replace(each, multiplier=(each.multiplier or 1) * factor) for k, each in planned.terms.items()}
        return replace(planned, terms=changed)

    return forge


FORGED: dict[str, Forge] = {
    "half the noise": louder(0.5),
    "a little less noise": louder(1 - 1e-5),
    "no noise": louder(0.0),
    "noise turned round": louder(-1.0),
    "noise that is no number": louder(float("nan")),
    "noise that nobody planned": terms(multiplier=None),
    "a larger largest client": terms(largest=10**6),
    "a smaller largest client": terms(largest=1),
    "a longer clip": terms(reach=1.5),
    "a louder voice": terms(precision=2.0),
    "no work": terms(epochs=0),
    "less than no work": terms(part=-0.5),
    "more than all work": terms(part=1.5),
    "work without an end": terms(epochs=10**9),
    "noise without an end": louder(1e300),
    "somebody else's client": lambda planned: Round(planned.t, {k + 1: each for k, each in planned.terms.items()}),
    "somebody else beside it": lambda planned: Round(planned.t, {**planned.terms, 4: Terms()}),
    "nobody": lambda planned: Round(planned.t, {}),
    "a round more": lambda planned: replace(planned, t=4),
    "a round before the first": lambda planned: replace(planned, t=-1),
}


@pytest.mark.parametrize(
    "name",
    ["gaussian_gdp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("dp_prox", "whole_update", "scaffold"))],
)
def test_a_forged_round_is_refused_and_costs_nothing(name: str, tmp_path: Path) -> None:
    with serving(name, tmp_path) as server:
        before, refused, told = server.spent(), 0, list[RunEvent]()
        plan, server.member.note = server.planned(), told.append
        for what, forge in FORGED.items():
            forged = forge(plan)
            if forged == plan or (
                name == "scaffold" and "noise" in what and forged.terms[server.own].multiplier is None
            ):
                continue
            answer, bodies = server.says(forged)
            assert isinstance(answer, Refused), what
            assert not bodies, what
            refused += 1
        assert refused >= 15
        assert [event.event for event in told] == ["declined"] * refused  # its owner is told, and not the forger alone
        assert all(len(event.why) > 20 for event in told)
        assert server.spent() == before
        answer, bodies = server.says(plan)  # the control: what is planned is done
        assert isinstance(answer, Answered), answer
        assert len(bodies) == 1


@pytest.mark.parametrize("kind", ["block_sum", "sensing"])
def test_a_rate_that_the_bound_is_not_for_is_refused_and_costs_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates come with the model. In the twin a site believes them, and adds up whole layers under the same noise."""
    clip, noise = {"name": "clip", "radius": 1.0}, {"name": "noise", "multiplier": 4.0}
    compressed = {"name": kind, "rate": "dynamic", **({"block": 32} if kind == "sensing" else {})}
    tables: dict[str, Any] = {"uplink": [clip, compressed, noise], "privacy": {"delta": 1e-5}}
    with serving("fedavg", tmp_path, **tables) as server:
        plan = server.planned()
        down = server.phase.algorithm.broadcast(server.phase.state("server"))
        (stage,) = (stage for stage in server.phase.algorithm.uplink.client if isinstance(stage, LayerByLayer))

        def says(tenths: int) -> Any:
            public = tuple(torch.full_like(one, tenths) if torch.is_tensor(one) else one for one in down.public)
            return server.says(plan, down=down._replace(public=public))[0]

        for tenths in (0, 1, 6, 10, 255):
            answer = says(tenths)
            assert isinstance(answer, Refused), tenths
            assert answer.code == "learned-beyond-plan"
        assert server.spent() == 0
        with pytest.MonkeyPatch.context() as twin:
            twin.setattr(
                type(stage), "at", lambda self, t, told: replace(self, _each=tuple(one / 10 for one in told.tolist()))
            )
            layer = {"w": torch.ones(650, dtype=torch.float64) / 650**0.5}
            believed = stage.at(0, torch.tensor([0])).encode(layer, Bound(), Grant(0, 1, 1, Counter(0)))
            moved = float(tree.norm(believed))
            if kind == "block_sum":  # one sum over a whole layer, where the noise is sized for runs of ten
                assert moved > 7 * stage.bound(Bound(l1=99.0, l2=1.0), 650).l2
            assert isinstance(says(0), Answered)
        assert server.spent() == 1


def test_a_ledger_that_is_shown_does_not_tell_what_was_sent_without_noise(tmp_path: Path) -> None:
    """Where the server adds the noise, an upload follows from the rows and public seeds: by its digest in the books
    whoever knows all rows but one found the last one."""
    told, sent = set[str | None](), set[bytes]()
    for number in range(2):
        with serving("central_visible", tmp_path / str(number)) as server:
            rows = server.member.trained[server.own]
            server.member.trained = {server.own: rows._replace(x=rows.x if number else rows.x.flip(0))}
            answer, bodies = server.says(server.planned())
            assert isinstance(answer, Answered), answer
            (entry,) = server.member.accounts.training.ledger.entries()
            told, sent = told | {entry.digest}, sent | set(bodies)
    assert len(told) == 1
    assert len(sent) == 2


def test_a_budget_that_is_spent_buys_no_further_round(tmp_path: Path) -> None:
    with serving("gaussian_gdp", tmp_path) as server:
        plan, codes = server.planned(), []
        for t in range(server.phase.rounds):
            answer, _ = server.says(replace(plan, t=t))
            codes.append(answer.code if isinstance(answer, Refused) else "")
        assert codes == [
            "",
            "",
            "more-rounds-than-planned",
            "more-rounds-than-planned",
        ]  # two of the four rounds are its own
        assert server.spent() == 2


def test_a_typed_noise_is_for_as_many_rounds_as_the_plan_showed(tmp_path: Path) -> None:
    """A server may ask one site in another's place."""
    typed = {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5, "multiplier": 4.0}
    with serving("gaussian_gdp", tmp_path, algorithm=typed, privacy={"epsilon": None}) as server:
        often = server.member.accounts.training.plan.participations[server.own]
        assert 0 < often < server.phase.rounds
        plan, refused = server.planned(), []
        for t in range(server.phase.rounds):
            answer, _ = server.says(replace(plan, t=t))
            refused.append(answer.code if isinstance(answer, Refused) else "")
        assert refused == [""] * often + ["more-rounds-than-planned"] * (server.phase.rounds - often)
        assert server.spent() == often


def test_a_plan_that_counts_too_many_participations_is_stopped_by_the_budget(tmp_path: Path) -> None:
    """The twin of the test above, with a plan that would let four rounds through."""
    with serving("gaussian_gdp", tmp_path) as server:
        plan, codes, books = server.planned(), [], server.member.accounts.training
        many = [4 * times for times in books.plan.participations]
        for t in range(server.phase.rounds):
            with pytest.MonkeyPatch.context() as patch:
                if t >= 2:  # the rounds before were priced by the true plan
                    patch.setattr(books, "plan", replace(books.plan, participations=many))
                answer, _ = server.says(replace(plan, t=t))
            codes.append(answer.code if isinstance(answer, Refused) else "")
        assert codes == ["", "", "terms-beyond-plan", "terms-beyond-plan"]
        assert server.spent() == 2


@pytest.mark.slow
def test_no_phase_is_asked_for_more_often_than_planned(tmp_path: Path) -> None:
    with serving("slaug_fl_rigorous_b", tmp_path) as server:
        server.phase = server.whole.phases[0]
        plan = server.planned()
        assert isinstance(server.says(plan)[0], Answered)
        answer, _ = server.says(replace(plan, t=1))
        assert isinstance(answer, Refused)
        assert answer.code == "more-rounds-than-planned"
        answer, _ = server.says(plan, stage=7)
        assert isinstance(answer, Refused)
        assert answer.code == "phase-beyond-plan"


def test_a_server_that_says_nothing_of_its_ledger_is_refused(tmp_path: Path) -> None:
    with serving("fedavg", tmp_path) as server:
        answer, _ = server.says(server.planned(), ledger="")
        assert isinstance(answer, Refused)
        assert answer.code == "no-ledger-place"


def test_more_noise_and_less_work_than_planned_are_welcome(tmp_path: Path) -> None:
    with serving("gaussian_gdp", tmp_path) as server:
        answer, _ = server.says(terms(part=0.5)(louder(1.5)(server.planned())))
        assert isinstance(answer, Answered)


def test_the_same_round_has_one_answer(tmp_path: Path) -> None:
    """Again the same bytes, also after a restart; another content under its name is refused."""
    with serving("scaffold", tmp_path) as server:
        plan = server.planned()
        first = server.says(plan)
        assert server.says(plan) == first
        server.member.close()
        server.restart()
        assert server.says(plan) == first
        answer, bodies = server.says(terms(part=0.5)(plan))
        assert isinstance(answer, Refused)
        assert answer.code == "other-content"
        assert not bodies
        for t in range(1, 4):
            assert isinstance(server.says(server.planned(t))[0], Answered)
        answer, _ = server.says(plan)  # its answer is no longer kept
        assert isinstance(answer, Refused)
        assert answer.code == "answered-before"
        assert server.spent() == 4


def test_a_round_that_is_asked_twice_at_once_has_one_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may call a site from several threads."""
    both, pay = threading.Barrier(2), SiteAccounts.pay

    def met(self: SiteAccounts, *asked: Any) -> Round:
        with suppress(threading.BrokenBarrierError):
            both.wait(1)
        return pay(self, *asked)

    monkeypatch.setattr(SiteAccounts, "pay", met)
    real = BY_NAME["gaussian_gdp"].privacy | {"noise": "system"}
    with serving("gaussian_gdp", tmp_path, privacy=real) as server, ThreadPoolExecutor(2) as threads:
        handler, sent = server.member.handler, list[bytes]()

        def kept(message: bytes) -> bytes:
            sent.append(message)
            raise InterruptedError

        with pytest.MonkeyPatch.context() as link, suppress(InterruptedError):
            link.setattr(handler, "answer", kept)
            server.says(server.planned())
        one, other = threads.map(handler.answer, sent * 2)
        assert one == other
        assert server.spent() == 1


def test_a_server_that_forgot_what_it_spent_is_refused(tmp_path: Path) -> None:
    """20 rollbacks of the server's ledger, 20 refusals; a ledger of the same length with another head is one, too."""
    with serving("gaussian_gdp", tmp_path) as server:
        assert isinstance(server.says(server.planned(), place=50)[0], Answered)
        for place in range(30, 50):
            answer, _ = server.says(server.planned(1), place=place)
            assert isinstance(answer, Refused)
            assert answer.code == "server-rolled-back"
        assert isinstance(server.says(server.planned(1), place=50)[0], Answered)


@pytest.mark.parametrize("planned", [[], ["finetune", "plain"]])
def test_a_site_scores_no_model_of_its_own_and_no_more_than_is_planned(planned: list[str], tmp_path: Path) -> None:
    """A way in which a client makes a model its own learns from its training examples, whether it is planned or not."""
    with serving("fedavg", tmp_path, shares_scores=True, evaluation={"personal": planned}) as server:
        for forged, code in (
            (Score(0, 1, ["finetune"]), "scores-of-own-models"),
            (Score(0, 1, ["proto"]), "scores-of-own-models"),
            (Score(0, 1, ["plain", "own"]), "scores-of-own-models"),
            (Score(0, 9, ["plain"]), "scores-beyond-plan"),
        ):
            answer, bodies = server.says(forged)
            assert isinstance(answer, Refused)
            assert answer.code == code
            assert not bodies
        assert not isinstance(server.says(Score(0, 1, ["plain"]))[0], Refused)  # the control


def test_what_is_not_for_sites_is_refused(tmp_path: Path) -> None:
    with serving("fedavg", tmp_path) as server:
        for command, code in (
            (Keep(1), "not-for-sites"),
            (Restore(1, "/"), "not-for-sites"),
            (Score(0, 1, ["plain"]), "scores-not-shared"),
        ):
            answer, bodies = server.says(command)
            assert isinstance(answer, Refused)
            assert answer.code == code
            assert not bodies
        for heading, code in (
            ({"config": "0" * 64}, "other-experiment"),
            ({"agreement": "0" * 64}, "other-agreement"),
            ({"run": "another"}, "other-run"),
            ({"name": "somebody"}, "unknown-sender"),
        ):
            answer, _ = server.says(server.planned(), **heading)
            assert isinstance(answer, Refused)
            assert answer.code == code
        assert server.spent() == 0


def test_a_site_that_shares_scores_does(tmp_path: Path) -> None:
    with serving("fedavg", tmp_path, shares_scores=True) as server:
        _, bodies = server.says(Score(0, 1, ["plain"]))
        assert len(bodies) == 1


def test_where_nobody_may_know_who_is_drawn_all_rounds_are_paid_on_joining(tmp_path: Path) -> None:
    with serving("dp_prox", tmp_path) as server:
        assert server.spent() == server.phase.rounds
        assert isinstance(server.says(server.planned(2))[0], Answered)
        assert server.spent() == server.phase.rounds


def ledger_of_founded(path: Path) -> list[Entry]:
    with Ledger.as_founded(path) as ledger:
        return list(ledger.entries())


@pytest.mark.slow
def test_a_site_tells_nobody_for_which_rounds_it_was_drawn(tmp_path: Path) -> None:
    """Under real noise what it notes of hidden rounds is for its own eyes; where cohorts are seen it is public."""
    for name, hidden in (("dp_prox", True), ("gaussian_gdp", False)):
        case = BY_NAME[name].experiment()
        real = case.model_copy(update={"privacy": case.privacy.model_copy(update={"noise": "system"})})
        server = Server(Federated(real, tmp_path / name))
        try:
            assert isinstance(server.says(server.planned())[0], Answered)
        finally:
            server.member.close()
        mine = RunFolder(server.member.folder)
        assert [row.round for row in mine.metrics()] == [1]
        assert [row.round for row in mine.public_metrics()] == ([] if hidden else [1])
        states = {entry.state for entry in ledger_of_founded(mine.own_ledger)}
        assert states == ({State.RESERVED} if hidden else {State.PUBLISHED})
        shown = [path for path in mine.path.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
        told = [path.name for path in shown if server.place_told in path.read_bytes()]
        assert not told  # nor where the server's ledger stood when it asked


def test_a_client_that_was_cut_off_takes_part_again(tmp_path: Path) -> None:
    """The server has counted rounds that this site never paid for; a rounding in its number takes no noise away."""
    for name in ("gaussian_gdp_adaptive", "gaussian_gdp"):
        everyone = BY_NAME[name].experiment(cohort={"name": "everyone"})
        server = Server(Federated(everyone, tmp_path / name))
        try:
            late = server.planned(2)
            assert isinstance(server.says(late)[0], Answered)
            after = server.planned(3)
            with pytest.MonkeyPatch.context() as patch:
                played: list[Round] = []
                whole = Site.obey

                def obey(self: Site, command: Any, messages: Any, whole: Any = whole, played: Any = played) -> Any:
                    played.append(command)
                    return whole(self, command, messages)

                patch.setattr(Site, "obey", obey)
                assert isinstance(server.says(louder(1 - 1e-9)(after))[0], Answered)
            asked, used = after.terms[server.own].multiplier, played[0].terms[server.own].multiplier
            assert asked is not None
            assert used is not None
            assert used >= asked * (1 - 1e-12)
        finally:
            server.member.close()


def test_what_is_handed_out_does_not_change_in_the_middle_of_a_run(tmp_path: Path) -> None:
    with serving("fedavg", tmp_path) as server:
        first, other = (save({"x": torch.full((2,), value)}) for value in (1.0, 2.0))
        head, codes = b'{"x":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]}}', []
        strange = len(head).to_bytes(8, "little") + head + b"x"  # of a dtype that is no number here: the site crashed
        for given in (b"no tensors", strange, first, first, other):
            answer, _ = server.says(Store(), messages=[given])
            codes.append(answer.code if isinstance(answer, Refused) else "")
        assert codes == ["no-tensors", "no-tensors", "", "", "other-content"]
        assert server.member.folder.joinpath("public.safetensors").read_bytes() == first
