"""What a site is shown before it joins is the most that it can lose, whatever the server asks for, to whomever."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sordino.accounting.statement import SCORES, TEST_EXAMPLES
from sordino.config import Experiment
from sordino.engine.commands import Answered
from sordino.errors import UnsoundGuarantee
from sordino.privacy.uplink.rules import SERVER_COINS, SERVER_NOISE
from sordino.receipts import Receipt
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import LATE
from sordino.receipts.verify import examine, verify
from sordino.report.run_facts import gather
from sordino.sites.agreement_file import invite
from sordino.sites.join import JoinOptions, Proposed, plan
from tests.helpers.between_sites import SERVER, Federated
from tests.helpers.forged_messages import Server
from tests.laws.cases import BY_NAME

OFTEN = {"rounds": 12, "cohort": {"name": "random", "size": 2}}
BOTH = BY_NAME["gaussian_gdp"].experiment(
    **OFTEN,
    uplink={"client": [{"name": "clip", "radius": 1.0}, {"name": "noise", "multiplier": 1.3}]},
)
EXPERIMENTS: dict[str, Experiment] = {
    "drawn by a public seed": BY_NAME["gaussian_gdp"].experiment(**OFTEN),
    "typed noise": BY_NAME["gaussian_gdp"].experiment(
        **OFTEN,
        algorithm={"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5, "multiplier": 4.0},
        privacy={"epsilon": None},
    ),
    "laplace, less and less": BY_NAME["laplace"].experiment(**OFTEN),
    "adaptive": BY_NAME["gaussian_gdp_adaptive"].experiment(rounds=6),
    "central": BY_NAME["central_visible"].experiment(rounds=8),
    "hidden": BY_NAME["dp_prox"].experiment(),
    "at both gates": BOTH,
}

SHARES = BY_NAME["fedavg"].experiment(
    partition={"scheme": "iid", "clients": 10},
    cohort={"name": "everyone"},
    uplink={"client": [{"name": "clip", "radius": 0.5}, {"name": "noise_share", "survivors": 8}, {"name": "secagg"}]},
    privacy={"epsilon": 8.0, "delta": 1e-3},
)


def shown(between: Federated, **changes: Any) -> Proposed:
    key = between.keys[SERVER]
    invitation = invite("run", "localhost:9", key, between.experiment, between.agreed)
    options = JoinOptions(
        invitation=Path("-"),
        identity=between.keys["site-0"],
        folder=between.place / "own",
        rehearsal=True,
        data=between.place,
        name="c0",
    )
    return Proposed(replace(options, **changes), invitation)


def words(asked: Proposed) -> str:
    console = Console(file=io.StringIO(), width=400)
    plan(console, asked)
    return console.file.getvalue()  # type: ignore[attr-defined]


def asked_in_every_round(between: Federated, stalled: bool = False) -> Receipt:
    """The receipt of a site whose server takes all that it can get."""
    server, answered = Server(between), 0
    try:
        for t in range(server.phase.rounds):
            number = min(answered, server.member.accounts.training.plan.participations[server.own] - 1)
            answer, _ = server.says(replace(server.planned(number, stalled), t=t))
            answered += isinstance(answer, Answered)
        assert answered
        return server.member.receipt()
    finally:
        server.member.close()


@pytest.mark.one_fast
@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("stalled", [False, True])
def test_a_server_that_asks_in_every_round_costs_no_more_than_was_shown(
    name: str, stalled: bool, tmp_path: Path
) -> None:
    between = Federated(EXPERIMENTS[name], tmp_path)
    proposed = shown(between)
    most = {row.subject: row.epsilon for row in proposed.at_stake}
    spent = asked_in_every_round(between, stalled).guarantees
    assert any(row.finite for row in spent)
    judged = [row for row in spent if row.unit in {row.unit for row in proposed.at_stake}]
    assert judged
    for row in judged:
        assert row.epsilon <= most[row.subject] * (1 + 1e-9), row.subject
        assert row.epsilon <= proposed.epsilon * (1 + 1e-9)


def test_the_rounds_that_a_seed_draws_are_fewer_than_can_be_paid(tmp_path: Path) -> None:
    """The control: what follows from the public order alone is below what a hostile server gets."""
    between = Federated(EXPERIMENTS["drawn by a public seed"], tmp_path)
    drawn = between.simulation.setup.federation(between.simulation.home, "", ":memory:", "drawn")
    with drawn.ledger:
        seen = sum(0 in drawn.draw(drawn.open(t)) for t in range(12))
        assert seen < drawn.plan.participations[0]
    assert asked_in_every_round(between).rounds > seen


@pytest.mark.slow
def test_a_cap_is_for_every_adversary(tmp_path: Path) -> None:
    """The server of central noise sees raw uploads: no cap allows that, as none allows a method without noise."""
    for name in ("dp_prox", "central_visible"):
        between = Federated(BY_NAME[name].experiment(), tmp_path / name)
        assert any(row.finite for row in shown(between).at_stake)
        for most in (4.0, 1e9):
            with pytest.raises(UnsoundGuarantee) as caught:
                shown(between, max_epsilon=most).check()
            assert caught.value.code == "above-own-cap"
            assert "against the server" in caught.value.why
        shown(between).check()
    local = Federated(BY_NAME["whole_update"].experiment(), tmp_path / "local")
    shown(local, max_epsilon=4.0).check()


def test_a_cap_is_for_every_unit_that_noise_protects(tmp_path: Path) -> None:
    """A budget for examples, and typed noise on uploads, which costs a client far more: both are capped."""
    between = Federated(BOTH, tmp_path)
    most = {row.unit: row.epsilon for row in shown(between).at_stake if row.adversary == "server"}
    assert most.keys() == {"example", "client"}
    assert most["example"] < 9 < most["client"] < math.inf
    with pytest.raises(UnsoundGuarantee) as caught:
        shown(between, max_epsilon=most["client"] * 0.999).check()
    assert caught.value.code == "above-own-cap"
    assert "per client" in caught.value.why
    shown(between, max_epsilon=most["client"]).check()
    assert f"ε {most['client']:.3g} per client" in words(shown(between))


@pytest.mark.slow
def test_an_invitation_prints_no_other_plan_than_its_own(tmp_path: Path) -> None:
    """Characters that clear a screen, hide text or turn it round, and spaces beside which a second key would stand."""
    between = Federated(EXPERIMENTS["laplace, less and less"], tmp_path)
    forged = "evil:9\x1b[2J\x1b[H\n\u202esafe:9 with\x9b8m"
    invitation = shown(between).invitation
    asked = replace(shown(between), invitation=replace(invitation, fields=invitation.fields.beside(server=forged)))
    said = words(asked)
    assert not [one for one in said if not (one.isprintable() or one == "\n")]
    assert "evil:9?[2J?[H?safe:9with?8m, with the key" in said


def test_noise_without_a_price_is_not_called_none(tmp_path: Path) -> None:
    read = {"name": "responses", "of": "image", "epsilon": 2.0, "delta": 1e-6, "label_epsilon": 2.0}
    answers, plain = (BY_NAME["fedavg"].experiment(rounds=2, **more) for more in ({"read": read}, {}))
    cost = "would cost this client {}: no noise that a budget pays for covers it."
    assert cost.format("what its table says") in words(shown(Federated(answers, tmp_path / "answers")))
    assert cost.format("more than any epsilon says") in words(shown(Federated(plain, tmp_path / "plain")))


def test_what_rests_on_the_server_is_conditional_in_a_sites_books(tmp_path: Path) -> None:
    """Its noise and its coins. The server's own receipt speaks of a program that has added the noise."""
    for name, because in (("central_visible", {SERVER_NOISE}), ("central", {SERVER_NOISE, SERVER_COINS})):
        between = Federated(BY_NAME[name].experiment(), tmp_path / name)
        said = words(shown(between))
        assert "this is conditional" in said
        assert all(reason in said for reason in because)
        assert (LATE in said) == (SERVER_COINS in because)  # told before anybody consents
        ended = between.play()
        assert {row.status for row in ended.receipt.guarantees if row.finite} == {"proved"}
        assert (LATE in ended.receipt.assumptions) == (SERVER_COINS in because)
        member = between.member("site-0")
        rows = [row for row in member.receipt().guarantees if row.finite]
        between.stop("site-0")
        assert verify(between.place / "site-0") == []
        assert {row.adversary for row in rows} == {"participants", "public"}
        for row in rows:
            assert row.status == "conditional"
            assert set(row.because) >= because
        asked = {row.subject: row.status for row in shown(between).guarantees}
        assert all(asked[row.subject] == "conditional" for row in rows)


def test_what_a_site_does_itself_is_proved(tmp_path: Path) -> None:
    """The control: noise that it draws needs nobody."""
    between = Federated(BY_NAME["gaussian_gdp"].experiment(), tmp_path)
    assert {row.status for row in shown(between).guarantees if row.finite} == {"proved"}
    assert "this is conditional" not in words(shown(between))


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedavg", "as it was computed: no noise covers it"),
        ("ldp_fl", "computed from examples that were randomised here, but labels are used as they are"),
        ("cdp_fl", "the server adds noise to the sum of all clients"),
        (
            "lc_fl",
            "computed from examples that were randomised here, but labels are used as they are; "
            "the server adds noise to the sum of all clients where a flag asks for it",
        ),
        ("udp", "with noise that is drawn here, whose published size proves nothing"),
        (
            "dp_scaffold_published",
            "computed from answers to which noise was added here, whose published size proves nothing",
        ),
        ("gaussian_gdp", "computed from answers to which noise was added here"),
        ("gaussian_sampled_published", "computed from answers to which noise was added here"),  # and it proves nothing
        ("whole_update", "cut to a bounded length, with noise that is drawn here"),
        ("central_visible", "cut to a bounded length here; the server adds noise to the sum of all clients"),
        ("secagg_fl", "masked or encrypted, so that the server reads nothing but the sum"),
        (
            "shares",
            "cut to a bounded length, with a share of noise that is drawn here; only the sum has all of it; "
            "masked or encrypted, so that the server reads nothing but the sum",
        ),
    ],
)
def test_a_site_is_told_how_its_message_is_protected_and_no_more(name: str, said: str, tmp_path: Path) -> None:
    asked_for = SHARES if name == "shares" else BY_NAME[name].experiment()
    told = words(shown(Federated(asked_for, tmp_path))).splitlines()
    (line,) = (line for line in told if "a message of" in line)
    assert line.partition("a message of ")[2].partition(", ")[2] == said


def test_scores_of_own_models_are_not_shared(tmp_path: Path) -> None:
    """They are computed from training rows, exactly, as often as a server asks: refused before anybody consents."""
    for name, ways in (("gaussian_gdp", ["finetune", "plain"]), ("gaussian_gdp", ["proto"]), ("ditto", [])):
        between = Federated(BY_NAME[name].experiment(evaluation={"personal": ways}), tmp_path / f"{name}{len(ways)}")
        with pytest.raises(UnsoundGuarantee) as caught:
            shown(between, shares_scores=True).check()
        assert caught.value.code == "scores-of-own-models"
        shown(between).check()
    plain = Federated(BY_NAME["gaussian_gdp"].experiment(evaluation={"personal": ["plain"]}), tmp_path / "plain")
    shown(plain, shares_scores=True).check()


@pytest.mark.slow
def test_shared_scores_leave_nothing_of_test_examples_nor_of_a_client(tmp_path: Path) -> None:
    between = Federated(BY_NAME["whole_update"].experiment(), tmp_path, shares_scores=True)
    asked = shown(between, shares_scores=True)
    assert "against the server" in asked.at_most
    assert asked.epsilon == float("inf")
    between.play()
    receipt = between.member("site-0").receipt()
    between.stop("site-0")
    told = {row.subject: (row.epsilon, row.because) for row in receipt.guarantees}
    assert told[TEST_EXAMPLES] == (float("inf"), (SCORES,))
    assert told[TEST_EXAMPLES.beside(unit="client")] == (float("inf"), (SCORES,))
    assert told[TEST_EXAMPLES.beside(unit="client", adversary="public")][0] <= 4.0
    assert asked.guarantees[-1].subject == TEST_EXAMPLES
    folder = between.place / "site-0"
    assert verify(folder) == []
    assert examine(folder).wrong == []
    drawn = {(line.unit, line.adversary) for line in gather(folder).epsilon}
    assert ("client", "participants") in drawn  # and the public, in one line
    assert ("client", "server") not in drawn
    file = RunFolder(folder).environment_file
    file.write_text(json.dumps({**json.loads(file.read_text()), "shares_scores": False}))
    assert verify(folder)


@pytest.mark.slow
def test_beside_shared_scores_no_personal_budget_was_kept_against_the_server(tmp_path: Path) -> None:
    """As it was, beside a row that promises nothing stood "spent 2.0, proved" of the same subject."""
    between = Federated(BY_NAME["pdp_prox_local"].experiment(), tmp_path, shares_scores=True)
    between.play()
    budget, folder = between.member("site-0").receipt().budget, between.place / "site-0"
    between.stop("site-0")
    assert budget is not None
    assert budget.subject == TEST_EXAMPLES.beside(unit="client", neighbours="replace")
    asked = {(group.spent, group.status) for group in budget.groups if group.participations.max}
    assert asked == {(float("inf"), "none")}
    assert verify(folder) == []
