"""Each question is asked in one place: modules that may ask it are listed here, all others ask what answers it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sordino

PACKAGE = Path(sordino.__file__).parent
sys.path.append(str(PACKAGE.parent / "docs"))
import house  # noqa: E402


def compared(*words: str) -> Callable[[ast.AST], bool]:
    """A comparison with one of these words, or with a tuple of them."""

    def asks(node: ast.AST) -> bool:
        if not isinstance(node, ast.Compare):
            return False
        return any(isinstance(each, ast.Constant) and each.value in words for each in ast.walk(node))

    return asks


def of_noise(node: ast.AST) -> bool:
    """A comparison of where noise comes from, with a word or with a name for one."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    return compared("system", "counter")(node) or any(
        isinstance(side, ast.Attribute) and side.attr == "noise" for side in sides
    )


def of_a_cohort(node: ast.AST) -> bool:
    """`cohort.hidden`, whatever the cohort belongs to."""
    return (
        isinstance(node, ast.Attribute) and node.attr == "hidden" and ast.unparse(node.value).split(".")[-1] == "cohort"
    )


def of_prices(node: ast.AST) -> bool:
    """Whether everyone pays, or each its own price, asked of what a plan is made from."""
    return isinstance(node, ast.Attribute) and (
        node.attr == "individual" or (node.attr == "everyone_pays" and "offer" in ast.unparse(node.value))
    )


def of_a_subject(node: ast.AST) -> bool:
    """A class with the three fields of a subject, or the three copied side by side from another value."""
    parts = {"unit", "neighbours", "adversary"}
    if isinstance(node, ast.ClassDef):
        return parts <= {ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign)}
    if isinstance(node, ast.Call):
        sides = [*node.args, *(word.value for word in node.keywords)]
    else:
        sides = list(getattr(node, "elts", [])) + list(node.values if isinstance(node, ast.Dict) else [])
    copied: dict[str, set[str]] = {}
    for side in sides:
        if isinstance(side, ast.Attribute):
            copied.setdefault(ast.unparse(side.value), set()).add(side.attr)
    return any(parts <= found for found in copied.values())


def of_a_secure_sum(node: ast.AST) -> bool:
    """A server's half that is made, or led from step to step."""
    halves = {"Aggregator", "Adder", "roster", "inboxes"}
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in halves


def of_uploads(node: ast.AST) -> bool:
    """Whether there is a secure sum at all."""
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Is | ast.IsNot)
        and ast.unparse(node.left).endswith("uplink.secure")
    )


def of_calibration(node: ast.AST) -> bool:
    """A call that turns a budget into a noise multiplier."""
    calibrate = ("exact_multiplier", "sampled_multiplier", "classic_multiplier", "nominal_multiplier", "best_order")
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in calibrate


def of_planned_rounds(node: ast.AST) -> bool:
    """Books that are opened in memory."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] not in ("accounts", "federation"):
        return False
    return any(ast.unparse(arg) in ("MEMORY", "':memory:'") for arg in node.args)


def of_a_round(node: ast.AST) -> bool:
    """A round that is played."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "one_round"


LAWS = ("GaussianNoise", "LaplaceNoise", "SharedGaussianNoise")


def of_a_noise_law(node: ast.AST) -> bool:
    """A comparison with the name of a noise law, a check for its class, or a choice of classes as a type."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return any(law in ast.unparse(node.args[1]) for law in LAWS)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {ast.unparse(side).split(".")[-1] for side in (node.left, node.right)} <= {*LAWS}
    return compared("gaussian", "gaussian_classic", "laplace")(node)


ELEMENTS = "a|b|br|circle|code|dd|div|dl|dt|g|h[1-6]|i|li|main|p|path|rect|span|strong|svg|table|tbody|td|text|th|tr|ul"


def of_markup(node: ast.AST) -> bool:
    """Markup that is written by hand: an element, or the beginning of one."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(rf"<(!doctype|/?({ELEMENTS})\b)", node.value) is not None
    )


QUESTIONS: dict[str, tuple[Callable[[ast.AST], bool], set[str]]] = {
    "is this noise real?": (
        of_noise,
        {"accounting/claims.py", "receipts/verify.py"},  # a receipt's noise is the experiment's
    ),
    "is the cohort hidden?": (
        of_a_cohort,
        # plans and refusals, which have a cohort before there is a policy; an audit plans a cohort of its own
        {
            "planning/phase.py",
            "planning/methods.py",
            "planning/prices.py",
            "audits/canaries.py",
        },
    ),
    "about which unit, under which change, against whom?": (of_a_subject, {"accounting/claims.py"}),
    "are single uploads unread?": (
        of_uploads,
        # those that go on to use the stage itself; a message is opened without a policy
        {
            "planning/phase.py",
            "planning/methods.py",
            "planning/prices.py",
            "engine/server.py",
            "engine/executor.py",
            "sites/secure_sums.py",
        },
    ),
    "secure sums: one implementation": (
        of_a_secure_sum,
        {"secagg/masked.py", "secagg/encrypted.py", "secagg/mask_protocol.py"},
    ),
    # an audit plays single rounds of a run again, and a law tries an algorithm before there is a run
    "the round loop": (of_a_round, {"runs/rounds.py", "audits/replay.py", "checks/federations.py"}),
    # elements are made by results.markup.tag; one string is written by hand
    "pages: one renderer": (of_markup, {"report/frame.py"}),
    "are clients in other processes?": (compared("processes", "ranks"), {"config/settings.py", "runs/setup.py"}),
    "does everyone pay, and one price?": (
        of_prices,
        # the plan answers; before there is one, these two look for offers that cannot be priced together
        {"budget/plan.py", "planning/prices.py"},
    ),
    "which noise does a budget buy?": (
        of_calibration,
        # prices by currency; a plan, one by personal budgets, and the published label that proves nothing
        {"accounting/pricing.py", "budget/plan.py", "budget/plans_by_budget.py", "planning/prices.py"},
    ),
    "which noise law is it?": (
        of_a_noise_law,
        # a random matrix may be Gaussian, too
        {"privacy/uplink/sensing.py"},
    ),
    "what will all rounds cost, before they are played?": (
        of_planned_rounds,
        # the planner; others play rounds that leave nothing, count those of a ledger again, or size messages
        {
            "planning/planner.py",
            "audits/canaries.py",
            "audits/gates.py",
            "audits/replay.py",
            "checks/federations.py",
            "receipts/verify.py",
            "runs/forecast.py",
        },
    ),
}


def askers(asks: Callable[[ast.AST], bool], package: Path = PACKAGE) -> set[str]:
    return {file.relative_to(package).as_posix() for file in package.rglob("*.py") if any(map(asks, house.nodes(file)))}


@pytest.mark.one_fast
@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_is_asked_in_one_place(question: str) -> None:
    asks, allowed = QUESTIONS[question]
    assert askers(asks) == allowed


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("is this noise real?", "real = experiment.privacy.noise != 'system'"),
        ("is this noise real?", "real = federation.noise == SYSTEM"),
        ("is the cohort hidden?", "hidden = setup.cohort.hidden and real"),
        ("are single uploads unread?", "if setup.algorithm.uplink.secure is not None:\n    pass"),
        ("secure sums: one implementation", "boxes = self._server.inboxes()"),
        ("secure sums: one implementation", "server = stage.sums.Adder(public)"),
        ("the round loop", "for t in range(3):\n    server = one_round(federation, server, t, clients).server"),
        ("pages: one renderer", "bar = f'<rect width={wide}>'"),
        ("pages: one renderer", "row = '<td>' + cell + '</td>'"),
        ("are clients in other processes?", "far = engine.executor in ('processes', 'ranks')"),
        (
            "about which unit, under which change, against whom?",
            "class Row:\n    unit: Unit\n    neighbours: Neighbours\n    adversary: Adversary",
        ),
        (
            "about which unit, under which change, against whom?",
            "found = Row(unit=claim.unit, neighbours=claim.neighbours, adversary=claim.adversary)",
        ),
        (
            "about which unit, under which change, against whom?",
            "subject = (offer.unit, offer.neighbours, offer.adversary)",
        ),
        ("which noise does a budget buy?", "z = exact_multiplier(epsilon, delta, rounds)"),
        ("which noise does a budget buy?", "z = calibrate.sampled_multiplier(epsilon, delta, 0.1, rounds)"),
        ("which noise law is it?", "clip = Clip(radius, 1 if noise == 'laplace' else 2)"),
        ("which noise law is it?", "exact = isinstance(stage.mechanism, distributions.GaussianNoise)"),
        ("which noise law is it?", "class Stage:\n    mechanism: GaussianNoise | LaplaceNoise"),
        ("what will all rounds cost, before they are played?", "books = phase.accounts(Accounts, '', MEMORY, run)"),
        ("does everyone pay, and one price?", "alike = plan.offer.everyone_pays and not plan.individual"),
    ],
)
def test_a_second_asker_is_found(question: str, line: str, tmp_path: Path) -> None:
    """The negative control."""
    (tmp_path / "second.py").write_text(line)
    assert askers(QUESTIONS[question][0], tmp_path) == {"second.py"}
