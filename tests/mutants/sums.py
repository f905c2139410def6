"""Bugs of secure and of robust sums."""

from __future__ import annotations

from tests.mutants.mutant import one

SHAMIR = "tests/secagg/test_shamir.py"
MASKS = "tests/secagg/test_masks.py"
MASKED = "tests/sites/test_masked_sums.py"
ENCRYPTED = "tests/sites/test_encrypted_sums.py"


SUMS = [
    one(
        "shares whose polynomial is zero between its ends",
        "secagg/masks.py",
        "*(secrets.randbelow(PRIME) for _ in range(threshold - 1))",
        "*(secrets.randbelow(PRIME) if i == 0 else 0 for i in range(threshold - 1))",
        f"{SHAMIR}::test_every_coefficient_of_every_secret_is_drawn_anew",
    ),
    one(
        "shares that are sealed with one nonce",
        "secagg/masks.py",
        "nonce = os.urandom(12)",
        "nonce = bytes(12)",
        f"{MASKS}::test_equal_messages_are_sealed_differently",
    ),
    one(
        "masks that do not depend on the round",
        "secagg/masks.py",
        'return derive(agree(own, peer), context, b"mask"',
        'return derive(agree(own, peer), b"", b"mask"',
        f"{MASKS}::test_a_pair_shares_another_mask_in_every_round",
    ),
    one(
        "two holders open two sums of one round",
        "sites/key_holder.py",
        "with RunFolder(folder).locked():",
        "if True:",
        f"{ENCRYPTED}::test_two_holders_of_one_key_do_not_run_beside_each_other",
    ),
    one(
        "an older copy of a key holder opens a second sum",
        "sites/key_holder.py",
        "for log in self._logs if log.exists()",
        "for log in self._logs[:1] if log.exists()",
        f"{ENCRYPTED}::test_a_second_sum_of_a_round_is_not_opened_not_even_after_a_restart",
    ),
    one(
        "masked words leave before they are stored",
        "secagg/masked.py",
        '        if command.step == "inbox":\n            keep(found[1])\n',
        "",
        f"{MASKED}::test_a_round_whose_words_have_left_is_not_begun_again",
    ),
    one(
        "a masked round begun again after its words have left",
        "transport/request_handler.py",
        "return before  # no client: what masked the words that have left is lost",
        "pass",
        f"{MASKED}::test_a_round_whose_words_have_left_is_not_begun_again",
    ),
    one(
        "two answers to one step of a masked sum",
        "secagg/masked.py",
        "if before[0] != asked.digest:",
        "if False:",
        f"{MASKED}::test_a_message_that_comes_again_gets_the_same_bytes",
    ),
    one(
        "another model for some sites goes unnoticed",
        "secagg/masks.py",
        "if advert.model != self.model:",
        "if False:",
        f"{MASKED}::test_another_broadcast_for_some_sites_opens_nothing",
    ),
    one(
        "a site sends in clear what it is asked for in clear",
        "transport/request_handler.py",
        "if (secure is not None) != (asked.command.among > 0):",
        "if secure is None and asked.command.among > 0:",
        f"{MASKED}::test_a_site_sends_no_upload_in_clear",
    ),
    one(
        "uploads of a secure sum carried in clear",
        "sites/remote_sites.py",
        "if self.secure is not None:",
        "if False:",
        f"{MASKED}::test_a_site_sends_no_upload_in_clear",
    ),
    one(
        "a message of one client taken for another's",
        "secagg/mask_protocol.py",
        "if self._read(data)[1] != client:",
        "if self._read(data) is None:",
        f"{MASKED}::test_no_site_speaks_for_the_clients_of_another",
    ),
    one(
        "a site that sends a message of another site's client",
        "sites/secure_sums.py",
        "if k not in self._there[peer]:",
        "if False:",
        f"{MASKED}::test_no_site_speaks_for_the_clients_of_another",
    ),
    one(
        "a masked sum of too few opened",
        "secagg/mask_protocol.py",
        "        self._session.check_enough(len(heard))\n",
        "",
        "tests/secagg/test_secagg.py::test_too_few_end_the_round_at_every_step_and_nothing_is_opened",
    ),
    one(
        "an encrypted sum of too few sent to the key holder",
        "secagg/encrypted.py",
        "if why := too_few(self._stage, len(who), began, bool(own)):",
        'if why := "":',
        f"{ENCRYPTED}::test_without_enough_uploads_or_without_the_holder_nothing_is_opened",
    ),
    one(
        "an empty round of a hidden cohort is broken off",
        "privacy/uplink/secure_stages.py",
        "int(not noised)",
        "1",
        "tests/stories/secure_sums/test_rounds.py::test_an_empty_round_of_a_hidden_cohort_is_played_on_noise_alone",
    ),
    one(
        "a ciphertext that does not count ends the round of all",
        "secagg/encrypted.py",
        "                peers.absent(k, error)\n",
        "                raise\n",
        f"{ENCRYPTED}::test_integers_that_are_not_encrypted_are_found",
    ),
    one(
        "any public key believed",
        "sites/key_holder.py",
        "if not hmac.compare_digest(hashlib.sha256(key).hexdigest(), digest):",
        "if False:",
        f"{ENCRYPTED}::test_a_site_encrypts_under_no_key_but_the_holders",
    ),
    one(
        "two sums of one round opened",
        "sites/key_holder.py",
        "if self._opened.get(name, digest) != digest:",
        "if self._opened.get(name, digest) == '':",
        f"{ENCRYPTED}::test_a_second_sum_of_a_round_is_not_opened_not_even_after_a_restart",
    ),
    one(
        "the number of uploads believed against the message",
        "sites/key_holder.py",
        " or command.clients > total.header.count:",
        ":",
        f"{ENCRYPTED}::test_the_holder_opens_no_sum_of_too_few_and_none_of_another_round",
    ),
    # robust sums
    one(
        "noise for a sum on a median",
        "privacy/uplink/robust.py",
        "0 < len(links.robust) < len(links.server)",
        "False",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start[a median under central noise]",
    ),
    one(
        "a robust sum of what broke its clip",
        "privacy/uplink/__init__.py",
        "admitted = [self._admit(u, bound, reach(k))",
        "admitted = [u",
        "tests/privacy/uplink/test_robust.py::test_an_upload_beyond_its_clip_counts_as_zeros",
    ),
    one(
        "Gaussian noise on integers lacks what rounding adds",
        "privacy/noise/__init__.py",
        "math.sqrt(scale**2 + self.rounding)",
        "scale",
        "tests/privacy/noise/test_small_worlds.py::test_gaussian_noise_on_integers_is_rounded_gaussian_noise",
    ),
    one(
        "Gaussian noise of few steps has the price of the continuous law",
        "privacy/noise/__init__.py",
        "if scale < self.narrowest:",
        "if False:",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start",
    ),
    one(
        "an integer law of one's own costs what it says on every grid",
        "privacy/noise/__init__.py",
        "narrowest: ClassVar[float] = math.inf",
        "narrowest: ClassVar[float] = 0.0  # of every law",
        "tests/privacy/noise/test_own_law.py::test_a_law_without_a_narrowest_grid_is_drawn_on_no_integers",
    ),
    one(
        "noise that gets too narrow is noticed when it does",
        "planning/prices.py",
        "noise.check_width(bound, min(multipliers))",
        "noise.check_width(bound, max(multipliers))",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start",
    ),
    one(
        "Laplace noise on integers has the discrete law, which composes to more",
        "privacy/noise/__init__.py",
        "return rounded_laplace(source, count, scale)",
        "return discrete_laplace(source, count, scale)",
        "tests/privacy/uplink/test_small_worlds.py::test_the_noise_of_a_stage_is_the_law_that_is_enumerated",
    ),
    one(
        "a law that is priced below its event is planned",
        "planning/prices.py",
        "        check_price(plan)\n",
        "",
        "tests/privacy/noise/test_own_law.py::test_a_law_whose_event_costs_more_than_its_price_is_not_planned",
    ),
    one(
        "a law with the price of Gaussian noise is taken for it",
        "budget/plan.py",
        "offer.mechanism.pricing == Exact() and offer.mechanism.event(1.0) == Gaussian(1.0)",
        "offer.mechanism.pricing == Exact()",
        "tests/privacy/noise/test_own_law.py::test_a_law_whose_event_costs_more_than_its_price_is_not_planned",
    ),
    one(
        "any event may be claimed",
        "accounting/claims.py",
        "        check_event(self.event)\n",
        "",
        "tests/privacy/noise/test_own_law.py::test_an_event_of_ones_own_is_written_into_no_ledger",
    ),
    one(
        "a law without whole steps on integers",
        "privacy/uplink/stages.py",
        "return isinstance(self.mechanism, IntegerNoiseLaw)",
        "return True",
        "tests/privacy/noise/test_own_law.py::test_it_is_refused_where_every_law_is",
    ),
    one(
        "a run with noise as published that stops for a client of one class",
        "privacy/readers/episodes.py",
        " and not is_real(grant.source.name)",
        "",
        "tests/synthesis/test_fedavg_prototypes.py::"
        "test_a_client_without_an_episode_is_refused_aloud_only_where_nothing_is_private",
    ),
    one(
        "a cohort hidden from those who count the uploads of the sums that they open",
        "privacy/uplink/secure_stages.py",
        'return OPENED if self.keys == "shared" else ""',
        'return ""',
        "tests/stories/secure_sums/test_promises.py::test_what_each_adversary_is_promised[hidden-paillier, shared]",
    ),
    one(
        "a run with noise that stops for values beyond the range",
        "privacy/uplink/rules.py",
        "links.grid.strict and (links.per_coordinate or private(links.server))",
        "False",
        "tests/stories/secure_sums/test_refused.py::test_it_does_not_start[a stop that tells of single values beside noise]",
    ),
]
