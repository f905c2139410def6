"""Privacy bugs that have happened somewhere, each as one textual change of this package, with the tests that must notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # occurs exactly once
    new: str
    killers: str  # what pytest runs


SENSITIVITY = "tests/privacy/test_sensitivity.py"

MUTANTS = [
    Mutant("client weights are not bounded", "privacy/stages.py", "return size / largest", "return float(size)", SENSITIVITY),
    Mutant("NaN passes the clip", "privacy/stages.py", "factor = torch.where(torch.isfinite(norm), factor, 0.0).to(dtype)", "factor = factor.to(dtype)", SENSITIVITY),
    Mutant("each layer is clipped for itself", "privacy/stages.py", "clip_factor(norm, self.radius, leaf.dtype)", "clip_factor(tree.norm(leaf, self.order), self.radius, leaf.dtype)", SENSITIVITY),
    Mutant("an update is not clipped at all", "privacy/stages.py", "factor = torch.clamp(radius / (norm * SLACK)", "factor = torch.clamp(1e9 * radius / (norm * SLACK)", SENSITIVITY),
    Mutant("replaced records with the sensitivity of removed ones", "privacy/readers.py", "return 2 * self.clip if twice else self.clip", "return self.clip", SENSITIVITY),
    Mutant("replaced clients with the sensitivity of removed ones", "privacy/stages.py", 'return 2 * limit if self.neighbours == "replace" else limit', "return limit", SENSITIVITY),
    Mutant("mean by the realised count", "uplink.py", 'denominator = expected if self.denominator == "expected" else realised', "denominator = realised", SENSITIVITY),
    Mutant("a repeated event counts once", "ledger/events.py", "walk(node.event, times * node.count)", "walk(node.event, times)", "tests/test_accountants.py"),
    Mutant("amplified against the server", "engine/cohort.py", 'adversary == "server"', 'adversary == "nobody"', "tests/test_cohort.py"),
    Mutant("costs are rounded down", "ledger/currency.py", "tuple(math.ceil(value * UNIT)", "tuple(math.floor(value * UNIT)", "tests/test_ledger.py"),
    Mutant("a release without a reservation", "ledger/books.py", "State.PUBLISHED: (State.STORED,)", "State.PUBLISHED: (State.RESERVED, State.STORED)", "tests/test_ledger.py"),
    Mutant("what everybody paid is forgotten", "ledger/books.py", "return tuple(map(add, self.own[principal], shared))", "return self.own[principal]", "tests/test_ledger.py"),
    Mutant("noise for twice the budget", "ledger/pricing.py", "return NUDGE / math.sqrt(2 * cost[0])", "return NUDGE / math.sqrt(4 * cost[0])", "tests/laws/test_laws.py -k receipt_has_a_row"),
    Mutant("who cannot pay takes part", "engine/federation.py", "if price is None or str(k) in granted", "if True", "tests/test_plan.py tests/privacy"),
    Mutant("late uploads count", "round.py", " if k not in crew.late", "", "tests/test_plan.py tests/test_stragglers.py"),
    Mutant("SCAFFOLD with the signs of another code", "algorithms/scaffold.py", "y - eta * (g - ci + c)", "y - eta * (g + ci - c)", "tests/test_algorithms.py"),
    Mutant("the proximal term pushes away", "algorithms/fedprox.py", "tree.sub(y, x), g)", "tree.sub(x, y), g)", "tests/test_algorithms.py"),
    Mutant("the release before its reservation", "engine/federation.py", "self.ledger.stored(self.op(t), digest.digest())", "pass", "tests/laws/test_laws.py -k ledger_lists"),
]  # fmt: skip
