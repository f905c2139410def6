"""Seeded bugs in what real sites do: what leaves them, and what a server can make them do. See `mutants` for what a row
is."""

from __future__ import annotations

from tests.mutants.mutant import one

MASKED = "tests/deploy/test_masked_sums.py"
ENCRYPTED = "tests/deploy/test_encrypted_sums.py"

PURSE = "tests/deploy/test_purse.py"
REMOTE = "tests/letters/test_remote_sites.py"
FAULTS = "tests/deploy/test_faults.py"
MOST = "tests/deploy/test_most_spent.py"

DEPLOYED = [
    one(
        "a refusal counts as an answer",
        "letters/remote_sites.py",
        "            self._rounds.pop(ticket, None)",
        "            pass",
        f"{FAULTS}::test_what_goes_wrong_at_a_site_is_told_to_nobody_else",
    ),
    one(
        "who has gone since a round began is not waited for",
        "letters/remote_sites.py",
        "        return self._here",
        "        return {peer for peer in self._here if self._free(peer)}",
        f"{REMOTE}::test_who_has_gone_since_a_round_began_is_asked_and_waited_for",
    ),
    one(
        "who comes at the last moment is not told the end",
        "letters/remote_sites.py",
        "if told >= awaited or self.stopped()",
        "if True or self.stopped()",
        f"{REMOTE}::test_everybody_is_told_the_end_and_nobody_is_waited_for_without_end",
    ),
    one(
        "strangers may open all files that the server may open",
        "letters/rpc.py",
        "else soft) // 2,",
        "else soft),",
        "tests/deploy/test_crowds.py::test_connections_leave_half_of_the_files_to_the_run",
    ),
    one(
        "a run ends where no further file may be opened at this moment",
        "engine/checkpoint.py",
        "not in _NO_FILE_LEFT or",
        "not in () or",
        "tests/engine/test_damaged_checkpoints.py::test_where_no_file_may_be_opened_it_waits_and_then_names_the_cause",
    ),
    one(
        "a round that was reserved is played by whoever is there now",
        "round.py",
        "if others := run.reserved_for_others(t, prices):",
        "if others := []:",
        f"{FAULTS}::test_a_round_that_was_reserved_is_played_by_whom_it_was_reserved_for",
    ),
    one(
        "a round ends with too few when the others refuse",
        "letters/remote_sites.py",
        "if ticket not in self._rounds or others >=",
        "if True or others >=",
        f"{REMOTE}::test_a_site_that_refuses_is_asked_again_where_too_few_are_left",
    ),
    one(
        "a site that takes no part is asked without a pause",
        "letters/remote_sites.py",
        "self._refusing.get(peer, -FOREVER) + AGAIN",
        "self._refusing.get(peer, -FOREVER)",
        f"{REMOTE}::test_a_site_that_does_not_take_part_is_not_asked_a_hundred_times",
    ),
    one(
        "two holders open two sums of one round",
        "deploy/key_holding.py",
        "with RunFolder(folder).locked():",
        "if True:",
        f"{ENCRYPTED}::test_two_holders_of_one_key_do_not_run_beside_each_other",
    ),
    one(
        "a server goes back behind the answers that sites keep",
        "deploy/serving.py",
        'update={"checkpoint_every": 1}',
        "update={}",
        "tests/deploy/test_between_sites.py::test_between_sites_every_round_has_a_checkpoint",
    ),
    one(
        "who was told the end waits for a server that is gone",
        "deploy/attending.py",
        " or (self.told and cut_off)",
        "",
        "tests/deploy/test_joining.py::test_a_site_that_was_told_the_end_does_not_wait_for_a_server_that_is_gone",
    ),
    one(
        "the words of an error leave the site",
        "deploy/membership.py",
        "        if isinstance(error, OF_MESSAGES):",
        "        if True:",
        f"{FAULTS}::test_what_goes_wrong_at_a_site_is_told_to_nobody_else",
    ),
    one(
        "an invitation runs code",
        "deploy/invitation.py",
        "    if not with_code and",
        "    if False and",
        "tests/deploy/test_joining.py::test_an_invitation_runs_no_code_that_its_reader_has_not_allowed",
    ),
    one(
        "a site scores whatever it is asked for",
        "deploy/purse.py",
        "        check_shared(command.ways)\n",
        "",
        f"{PURSE}::test_a_site_scores_no_model_of_its_own_and_no_more_than_is_planned",
    ),
    one(
        "shared scores of models that have learned from training rows",
        "deploy/joining.py",
        "            check_shared(self.whole.phases[-1].ways)",
        "            pass",
        f"{MOST}::test_scores_of_own_models_are_not_shared",
    ),
    one(
        "scores that the server is told stand in no row",
        "runs/receipt.py",
        "return beside_scores(rows, delta) if environment.shares_scores else rows",
        "return rows",
        f"{MOST}::test_shared_scores_leave_nothing_of_test_examples_nor_of_a_client",
    ),
    one(
        "a site believes that the server adds the noise",
        "engine/accounts.py",
        "            sent = list(map(uplink.trusted, sent))",
        "            pass",
        f"{MOST}::test_what_rests_on_the_server_is_conditional_in_a_sites_books",
    ),
    one(
        "a cap against the rounds that a public seed draws",
        "runs/rehearsal.py",
        "            if self.only is None:",
        "            if True:",
        f"{MOST}::test_a_server_that_asks_in_every_round_costs_no_more_than_was_shown",
    ),
    one(
        "a cap against one row",
        "deploy/joining.py",
        "rows = [row for row in self.guarantees if row.unit == plan.offer.unit]",
        "rows = [row for row in self.guarantees if row.adversary == plan.offer.adversary]",
        f"{MOST}::test_a_cap_is_for_every_adversary",
    ),
    one(
        "a typed noise is for as many rounds as the server likes",
        "deploy/purse.py",
        "if not all(map(books.may_be_asked, who)):",
        "if False:",
        f"{PURSE}::test_a_typed_noise_is_for_as_many_rounds_as_the_plan_showed",
    ),
    one(
        "a site plays with whatever noise it is told",
        "deploy/purse.py",
        "    if asked.multiplier is not None and not asked.multiplier >= least:",
        "    if False:",
        f"{PURSE}::test_a_forged_round_is_refused_and_costs_nothing",
    ),
    one(
        "a rounding of the server takes noise away",
        "deploy/purse.py",
        "    return replace(asked, multiplier=price.multiplier)",
        "    return asked",
        f"{PURSE}::test_a_client_that_was_cut_off_takes_part_again",
    ),
    one(
        "a server that forgot what it spent",
        "deploy/purse.py",
        "if int(length) < int(before) or",
        "if",
        f"{PURSE}::test_a_server_that_forgot_what_it_spent_is_refused",
    ),
    one(
        "a site's ledger tells for which hidden rounds it was drawn",
        "deploy/purse.py",
        "        if not books.everyone_pays:\n            books.store",
        "        if True:\n            books.store",
        f"{PURSE}::test_a_site_tells_nobody_for_which_rounds_it_was_drawn",
    ),
    one(
        "another content under an old name",
        "letters/shelf.py",
        "if known.asked != asked:",
        "if False:",
        f"{PURSE}::test_the_same_round_has_one_answer",
    ),
    one(
        "a deadline between two answers ends a round of too few",
        "letters/sites.py",
        "                    if self._enough(t, of):\n                        break\n",
        "                    break\n",
        f"{FAULTS}::test_a_round_with_too_few_waits_and_says_so",
    ),
    one(
        "masked words leave before the shelf knows it",
        "letters/masked_desk.py",
        "        keep(given[1])\n",
        "",
        f"{MASKED}::test_a_round_whose_words_have_left_is_not_begun_again",
    ),
    one(
        "a masked round begun again after its words have left",
        "letters/desk.py",
        "return before  # nobody: what masked the words that have left is lost",
        "pass",
        f"{MASKED}::test_a_round_whose_words_have_left_is_not_begun_again",
    ),
    one(
        "two answers to one step of a masked sum",
        "letters/masked_desk.py",
        "if before[0] != asked.digest:",
        "if False:",
        f"{MASKED}::test_a_letter_that_comes_again_gets_the_same_bytes",
    ),
    one(
        "another model for some sites goes unnoticed",
        "secure/session.py",
        "if advert.model != self.model:",
        "if False:",
        f"{MASKED}::test_another_broadcast_for_some_sites_opens_nothing",
    ),
    one(
        "a site sends in clear what it is asked for in clear",
        "letters/desk.py",
        "if (secure is not None) != (asked.command.among > 0):",
        "if secure is None and asked.command.among > 0:",
        f"{MASKED}::test_a_site_sends_no_upload_in_clear",
    ),
    one(
        "uploads of a secure sum carried in clear",
        "letters/remote_sites.py",
        "if self.secure is not None:",
        "if False:",
        f"{MASKED}::test_a_site_sends_no_upload_in_clear",
    ),
    one(
        "a message of one client taken for another's",
        "letters/masked_sites.py",
        "if client is None or self._session.unpack(message, kind)[0] != client:",
        "if client is None:",
        f"{MASKED}::test_no_site_speaks_for_the_clients_of_another",
    ),
    one(
        "any public key believed",
        "deploy/key_holder.py",
        "if not hmac.compare_digest(hashlib.sha256(key).hexdigest(), digest):",
        "if False:",
        f"{ENCRYPTED}::test_a_site_encrypts_under_no_key_but_the_holders",
    ),
    one(
        "two sums of one round opened",
        "deploy/key_holder.py",
        "if self._opened.setdefault(name, digest) != digest:",
        "if self._opened.setdefault(name, digest) == '':",
        f"{ENCRYPTED}::test_a_second_sum_of_a_round_is_not_opened_not_even_after_a_restart",
    ),
    one(
        "the number of uploads believed against the message",
        "deploy/key_holder.py",
        " or command.clients > total.header.count:",
        ":",
        f"{ENCRYPTED}::test_the_holder_opens_no_sum_of_too_few_and_none_of_another_round",
    ),
]
