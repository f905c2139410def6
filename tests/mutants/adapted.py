"""Seeded bugs in what adapters let another program send. See `mutants` for what a row is."""

from __future__ import annotations

from tests.mutants.mutant import one

UPLINK = "tests/adapters/test_private_uplink.py"
FLOWER = "tests/adapters/test_flower.py"
DECLARED = "tests/adapters/test_declared.py"
NVFLARE = "tests/adapters/test_nvflare.py"

ADAPTED = [
    one(
        "a client's upload is paid for and leaves as it is",
        "adapters/private_uplink.py",
        "released: Params = books.algorithm.uplink.encode(upload, grant)",
        "released: Params = books.algorithm.uplink.client[0].encode(upload, books.algorithm.uplink.bound(8), grant)",
        f"{UPLINK}::test_the_noise_is_as_large_as_planned",
    ),
    one(
        "a server's mean is divided by the replies that came",
        "adapters/private_uplink.py",
        "asked, now.central",
        "float(len(uploads)), now.central",
        f"{UPLINK}::test_the_divisor_is_public",
    ),
    one(
        "noise is drawn before it is paid for",
        "adapters/private_uplink.py",
        "            books.begin(now)\n            yield",
        "            yield",
        f"{UPLINK}::test_a_kill_loses_a_round_and_gives_none_away",
        f"{UPLINK}::test_an_older_copy_of_the_ledger_gives_nothing_back",
    ),
    one(
        "a round that was killed is played again",
        "adapters/private_uplink.py",
        "now = books.open(len(books.entries()))",
        "now = books.open(sum(entry.digest is not None for entry in books.entries()))",
        f"{UPLINK}::test_a_kill_loses_a_round_and_gives_none_away",
    ),
    one(
        "a client's books believe the server",
        "adapters/private_uplink.py",
        'self._own = (0,) if side == "client" else None',
        "self._own = None",
        f"{UPLINK}::test_a_client_says_that_it_tells_no_scores",
    ),
    one(
        "another promise in the same folder",
        "adapters/private_uplink.py",
        "if mine.environment.config != phase.experiment.digest() or not",
        "if not",
        f"{UPLINK}::test_a_folder_keeps_its_terms",
    ),
    one(
        "what the other program keeps is no condition",
        "adapters/private_uplink.py",
        '"model": {"name": "elsewhere:Program"},',
        "",
        f"{UPLINK}::test_a_server_is_stopped_by_its_budget_and_its_receipt_holds",
    ),
    one(
        "an array more than was declared",
        "adapters/declared.py",
        "if files.keys() != self._kinds.keys():",
        "if not self._kinds.keys() <= files.keys():",
        f"{DECLARED}::test_a_thousand_malformed_models_are_a_thousand_refusals",
    ),
    one(
        "a type whose rounding exceeds the clip",
        "adapters/declared.py",
        '("float32", "float64")',
        '("float16", "float32", "float64")',
        f"{DECLARED}::test_only_arrays_of_real_numbers_can_be_declared",
    ),
    one(
        "a header is believed",
        "adapters/declared.py",
        "if (told, kind) != (shape, dtype) or len(data) != start",
        "if len(data) != start",
        f"{DECLARED}::test_a_thousand_malformed_models_are_a_thousand_refusals",
    ),
    one(
        "the text of a failure leaves a client",
        "adapters/flower.py",
        'raise RuntimeError("the training failed") from error',
        "raise",
        f"{FLOWER}::test_the_text_of_a_failure_stays_at_the_client",
    ),
    one(
        "scores leave a client",
        "adapters/flower.py",
        'if message.metadata.message_type.partition(".")[0] != "train":',
        "if False:",
        f"{FLOWER}::test_a_client_answers_nothing_but_training",
    ),
    one(
        "one client answers twice",
        "adapters/flower.py",
        "waiting.discard(node)",
        "pass",
        f"{FLOWER}::test_a_server_adds_no_malformed_reply",
    ),
    one(
        "a fixed cohort under zero_out",
        "adapters/flower.py",
        'if self._neighbours != "replace" and len(nodes) < registered:',
        "if False:",
        f"{FLOWER}::test_a_cohort_that_the_promise_does_not_cover_is_not_asked",
    ),
    one(
        "the metrics of a client leave it",
        "adapters/flower.py",
        "return _message({key: _record(released)}, weighted_by, reply_to=message)",
        "return _message({key: _record(released), **reply.content.metric_records}, weighted_by, reply_to=message)",
        f"{FLOWER}::test_a_reply_holds_the_arrays_and_nothing_else",
    ),
    one(
        "a client's number of examples weighs its upload",
        "adapters/flower.py",
        "MetricRecord({weighted_by: 1.0})",
        "MetricRecord({weighted_by: 50.0})",
        f"{FLOWER}::test_a_reply_holds_the_arrays_and_nothing_else",
    ),
    one(
        "a server's strategy is shown the replies",
        "adapters/flower.py",
        "self._inner.aggregate_train(server_round, [only])[0]",
        "self._inner.aggregate_train(server_round, list(replies))[0]",
        f"{FLOWER}::test_a_strategy_sees_one_noised_mean",
    ),
    one(
        "a site's whole model is taken for a change",
        "adapters/nvflare.py",
        'if getattr(model.params_type, "value", None) != "DIFF" or site in self._changes:',
        "if site in self._changes:",
        f"{NVFLARE}::test_a_server_adds_each_site_once_and_nothing_else",
    ),
    one(
        "more sites are added than are asked",
        "adapters/nvflare.py",
        "if len(self._changes) < self.asked:",
        "if True:",
        f"{NVFLARE}::test_a_server_adds_each_site_once_and_nothing_else",
    ),
    one(
        "a mean is divided by as many as the coins drew",
        "adapters/flower.py",
        "self._asked = frozenset(one.metadata.dst_node_id for one in messages)",
        "self._asked = frozenset(one.metadata.dst_node_id for one in messages); self._expected = float(len(messages))",
        f"{FLOWER}::test_coins_draw_a_cohort_and_the_divisor_stays",
        f"{FLOWER}::test_a_round_in_which_nobody_is_drawn_is_noised_and_paid",
    ),
    one(
        "everybody is asked in a hidden cohort",
        "adapters/flower.py",
        "messages = [one for one, drawn in zip(messages, coins, strict=True) if drawn]",
        "pass",
        f"{FLOWER}::test_coins_draw_a_cohort_and_the_divisor_stays",
    ),
    one(
        "a draw is looked up where two places meet",
        "privacy/noise/distributions.py",
        "np.where(first == last, first, -1)",
        "first",
        "tests/privacy/noise/test_grid.py::test_words_that_are_looked_up_have_the_place_that_a_search_finds",
    ),
]
