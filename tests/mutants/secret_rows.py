"""Bugs by which a row of somebody's decides what no noise covers, or by which an attack on it shows nothing."""

from __future__ import annotations

from tests.mutants.mutant import one

SOURCES = "tests/privacy/noise/test_sources.py"
INVERSION = "tests/attacks/test_gradient_inversion.py"
AUDIT = "tests/audit/test_audit.py"
EVERY = "tests/audit/test_every_reader.py"
MEMORY = "tests/tasks/test_hidden_state.py"
OWN_CODE = "tests/runs/test_own_code.py"
ELSEWHERE = "tests/privacy/test_faults_elsewhere.py"
SECRETS = "tests/laws/test_secret_rows.py"
LANGUAGE = "tests/tasks/test_language.py"
TOKENS = "tests/data/test_tokens.py"

SECRET_ROWS = [
    # what rows decide before any noise
    one(
        "a scale that rows decide, beside a number",
        "runs/public_inputs.py",
        "scaled = (SCALING,) if self.scaled_by_rows else ()",
        "scaled = ()",
        f"{SECRETS}::test_a_scale_that_rows_decide_claims_nothing",
    ),
    one(
        "classes that images bring along, beside a number",
        "runs/public_inputs.py",
        "return (*scaled, *self.loaded.learned, *(",
        "return (*scaled, *(",
        f"{SECRETS}::test_classes_that_images_bring_along_claim_nothing",
    ),
    one(
        "a class that nobody declared",
        "data/folders.py",
        "for name in folders if name not in classes)",
        "for name in folders if name in ())",
        f"{SECRETS}::test_an_image_of_a_class_that_nobody_declared_is_refused_where_it_lies",
    ),
    one(
        "a place among all images that the label decides",
        "data/folders.py",
        "order = sorted(range(len(files)), key=lambda row: files[row].name)",
        "order = range(len(files))",
        f"{SECRETS}::test_one_image_changes_no_model_of_declared_classes",
    ),
    one(
        "a place among images of one name that the label decides",
        "data/folders.py",
        "if one.name == next_.name:",
        "if one == next_:",
        f"{SECRETS}::test_a_changed_label_moves_no_image_of_the_same_name",
    ),
    one(
        "an agreement need not say by which digest a site knows its rows",
        "sites/agreement_file.py",
        'commitment: str = Field(pattern="^[0-9a-f]{64}$")',
        'commitment: str = ""',
        f"{SECRETS}::test_an_announcement_of_old_is_no_agreement",
    ),
    one(
        "a site announces whatever it has learned",
        "sites/own_data.py",
        "        check_announced(held.experiment.data, held.disclosures.learned_from_rows)",
        "        pass",
        f"{SECRETS}::test_two_announcements_give_no_row_back",
    ),
    one(
        "a server plays what rows decide",
        "sites/serve.py",
        "    check_announced(experiment.data)",
        "    pass",
        f"{SECRETS}::test_no_server_and_no_site_plays_what_rows_decide",
    ),
    one(
        "a split of images that one label moves",
        "runs/public_inputs.py",
        "for said in self.drawn_from_labels if said in CHOSEN)",
        "for said in ())",
        f"{SECRETS}::test_a_choice_by_secret_labels_claims_nothing",
    ),
    one(
        "secret labels decide who holds a row",
        "runs/population.py",
        "if self.experiment.privacy.real and not self.source.known_to_all and scheme.reads_labels:",
        "if self.experiment.privacy.real and self.source.ordered and scheme.reads_labels:",
        f"{SECRETS}::test_a_choice_by_secret_labels_claims_nothing",
    ),
    one(
        "crops and dropout masks that follow places",
        "privacy/readers/noisy_gradient.py",
        'if self._reader.neighbours == "zero_out":',
        "if False:",
        f"{ELSEWHERE}::test_dropout_masks_that_follow_places",
    ),
    one(
        "a divisor of the number of records at hand",
        "privacy/readers/noisy_gradient.py",
        "denominator = reader.denominator(self.size, batch_size)",
        "denominator = reader.denominator(len(self._examples.y), batch_size)",
        f"{ELSEWHERE}::test_a_denominator_derived_from_the_secret_number_of_records",
    ),
    # what a user's own code keeps
    one(
        "a buffer looked at by how often it was written to",
        "tasks/hidden_state.py",
        "return str(value.dtype), tuple(value.shape), zlib.crc32(plain.numpy().data)",
        "return value._version",
        f"{MEMORY}::test_what_is_kept_is_noticed_before_the_start_and_at_a_read",
    ),
    one(
        "what nobody trains may move",
        "tasks/hidden_state.py",
        "and not torch.equal(value, known):",
        "and value is None:",
        f"{MEMORY}::test_what_is_kept_is_noticed_before_the_start_and_at_a_read",
    ),
    one(
        "what is trained may be overwritten in a pass",
        "tasks/hidden_state.py",
        'if not _same(params[name], value)), "")',
        'if False), "")',
        f"{MEMORY}::test_what_is_kept_is_noticed_before_the_start_and_at_a_read[a trained parameter, through .data]",
    ),
    one(
        "a read that lets losses write to the model",
        "privacy/readers/noisy_gradient.py",
        "with self._task.still(losses, params=params):",
        "with self._task.still(losses):",
        f"{MEMORY}::test_what_is_kept_is_noticed_before_the_start_and_at_a_read[a trained parameter, through .data]",
    ),
    one(
        "an episode that lets its loss write to the model",
        "privacy/readers/episodes.py",
        "with self._task.still(loss, params=params):",
        "with self._task.still(loss):",
        f"{MEMORY}::test_an_episode_writes_to_no_parameter",
    ),
    one(
        "a table of words that a pass rescales",
        "tasks/hidden_state.py",
        "and module.max_norm is not None:",
        "and module.max_norm == 0:",
        f"{MEMORY}::test_a_table_that_rescales_itself_is_refused",
    ),
    one(
        "a hook that may keep rows",
        "tasks/hidden_state.py",
        'OURS = {"training", "_parameters",',
        'OURS = {"training", "_forward_hooks", "_parameters",',
        f"{MEMORY}::test_what_is_kept_is_noticed_before_the_start_and_at_a_read",
    ),
    one(
        "a statistic that may keep rows",
        "privacy/readers/class_sums.py",
        "with self._task.still(of):",
        "with self._task.still():",
        f"{MEMORY}::test_a_statistic_that_keeps_something_is_noticed",
    ),
    one(
        "a user's own loss that may keep rows",
        "tasks/supervised.py",
        "return super().still(self._loss, *asked, params=params)",
        "return super().still(*asked, params=params)",
        f"{MEMORY}::test_a_loss_that_keeps_something_is_noticed",
    ),
    one(
        "own code that is called proved",
        "planning/accounts.py",
        "if self.own_code and (",
        "if False and (",
        f"{OWN_CODE}::test_a_promise_about_rows_that_own_code_sees_is_conditional",
    ),
    one(
        "a bound of somebody's own that is called proved",
        "planning/accounts.py",
        "dict.fromkeys(user_code.parts(gate))",
        "()",
        f"{OWN_CODE}::test_a_stage_that_states_its_own_bound_is_conditional_in_all_books",
    ),
    one(
        "a stage of somebody's own inside a gate of the library",
        "user_code.py",
        "yield from parts(*(getattr(one, each.name) for each in dataclasses.fields(one)))",
        "pass",
        f"{OWN_CODE}::test_a_stage_that_states_its_own_bound_is_conditional_in_all_books",
    ),
    one(
        "a user's own loss that is no code",
        "planning/phase.py",
        "shown = made.algorithm, made.model, made.loss, made.read, made.uplink",
        "shown = made.algorithm, made.model, made.read, made.uplink",
        f"{OWN_CODE}::test_a_promise_about_rows_that_own_code_sees_is_conditional",
    ),
    one(
        "clients of one process as if each were alone",
        "planning/accounts.py",
        'claim.unit != "client" or len(self.members) > 1)',
        'claim.unit != "client")',
        f"{OWN_CODE}::test_a_client_alone_in_its_process_is_bounded_by_its_clip",
    ),
    # answers at random
    one(
        "all clients answer from one stream",
        "privacy/noise/sources.py",
        "RepeatedNoise(hmac.digest(self._secret, json.dumps(parts).encode()",
        "RepeatedNoise(hmac.digest(self._secret, json.dumps(parts[:1]).encode()",
        f"{SOURCES}::test_what_is_drawn_once_in_a_run_is_each_client_s_own_and_the_same_again",
    ),
    one(
        "a pooled image pays for one of its channels",
        "privacy/readers/responses.py",
        "self.side**2 * shape[2]",
        "self.side**2",
        "tests/algorithms/test_ldp_fl.py::test_an_image_with_colours_pays_for_every_channel",
    ),
    one(
        "answers at random are no protection",
        "privacy/readers/open.py",
        "return own.open is Open.open and own.prepare is Reader.prepare",
        "return own.open is Open.open",
        f"{INVERSION}::test_a_gate_between_images_and_attackers_is_seen[ldp_fl]",
    ),
    one(
        "an audit that boasts of its power",
        "audits/gates.py",
        "strict=True) if one.verdict == CAUGHT)",
        "strict=True) if one.verdict == CAUGHT or lacks > SHORT)",
        f"{AUDIT}::test_an_audit_says_which_missing_noise_it_would_notice",
    ),
    one(
        "the noise that an audit finds has an upper limit",
        "audits/lower_bounds.py",
        "gammaincinv(len(off) / 2, alpha)",
        "gammaincinv(len(off) / 2, 1 - alpha)",
        "tests/audit/test_one_run.py::test_the_deviation_of_gaussian_noise_has_an_exact_limit",
    ),
    one(
        "more canaries in a sum than there are orthogonal directions",
        "audits/canaries.py",
        "if not self.each:  # all directions",
        "if False:  # all directions",
        "tests/audit/test_canaries.py::test_canaries_of_one_sum_are_as_many_as_there_are_orthogonal_directions",
    ),
    one(
        "a canary in few releases is said to hide in loud noise",
        "audits/trained.py",
        " * (told.weight / told.weight.max()).sqrt()",
        "",
        "tests/audit/test_trained.py::test_a_canary_in_few_releases_shows_as_much_noise_as_one_in_all",
    ),
    one(
        "a limit on steps passes for little noise",
        "audits/canaries.py",
        "method.having(most_grad=None)",
        "method.having()",
        f"{EVERY}::test_a_limit_on_the_steps_of_a_sound_run_refutes_nothing",
    ),
    one(
        "a twin's noise on a grid is lowered twice",
        "audits/planted.py",
        "uplink, through = louder(uplink, level), unchanged",
        "uplink = louder(uplink, level)",
        "tests/audit/test_trained.py"
        "::test_canaries_are_seen_through_masks_as_closely_as_the_noise_in_their_sum_allows[of each client-3.0]",
    ),
    one(
        "every budget is judged by the largest",
        "audits/trained.py",
        "_audited(row, replays",
        "_audited(promise, replays",
        f"{EVERY}::test_a_client_that_sends_more_than_its_budget_buys_is_found_by_the_promise_of_its_budget",
    ),
    one(
        "an attacker who forgets the answers of earlier rounds",
        "audits/canary_replays.py",
        "for one in known[k]]).sum(0)",
        "for one in known[k][:1]]).sum(0)",
        f"{EVERY}::test_answers_that_are_drawn_again_behind_a_promise_of_once_are_found",
    ),
    one(
        "names in a file of images count as declared classes",
        "data/images.py",
        "[] if classes is not None else [CLASSES]",
        "[] if len(told) == many else [CLASSES]",
        "tests/data/test_images.py::test_names_in_a_file_declare_no_classes",
    ),
    one(
        "a module is loaded that the experiment does not seem to name",
        "user_code.py",
        "    if not _NAME.fullmatch(path):",
        "    if False:",
        "tests/test_user_code.py::test_no_module_is_loaded_that_an_experiment_does_not_seem_to_name",
    ),
    # texts
    one(
        "a text's loss is divided by the tokens of its batch",
        "tasks/language.py",
        "there.sum(1).clamp_min(1)",
        "there.sum().clamp_min(1)",
        f"{LANGUAGE}::test_no_neighbour_moves_a_loss",
    ),
    one(
        "padding is predicted like a token",
        "tasks/language.py",
        "after > 0",
        "after >= 0",
        f"{LANGUAGE}::test_padding_moves_neither_loss_nor_gradient",
        f"{LANGUAGE}::test_the_loss_is_the_mean_surprise_at_the_tokens_after_the_first",
    ),
    one(
        "attention looks ahead, at padding",
        "tasks/transformer.py",
        ".triu(1)",
        ".triu(length)",
        f"{LANGUAGE}::test_padding_moves_neither_loss_nor_gradient",
    ),
    one(
        "a tokenizer cuts texts as its file says",
        "data/schema.py",
        "    made.no_truncation()\n",
        "",
        f"{TOKENS}::test_a_tokenizer_file_numbers_each_text_by_itself",
    ),
    one(
        "a tokenizer is learned from the rows",
        "data/schema.py",
        'if tokenizer is not None and tokenizer != BYTES and not str(tokenizer).endswith(".json"):',
        "if tokenizer is True:",
        f'{TOKENS}::test_a_text_that_is_declared_wrongly_is_refused[tokenizer = "bpe", length = 4-is learned from rows reveals the words]',
    ),
    one(
        "the rules of layers are tried on texts without a loss",
        "tasks/language.py",
        "return (1 + drawn * self._vocabulary).floor()",
        "return (0 * drawn).floor()",
        f"{LANGUAGE}::test_the_rules_are_tried_on_texts_that_have_a_loss",
    ),
    one(
        "a frozen parameter counts in the norm of its layer",
        "privacy/readers/per_example_gradients.py",
        "        return False  # a rule counts the norm of every parameter of a layer",
        "        pass",
        "tests/privacy/readers/test_layer_kinds.py::test_a_layer_that_is_trained_in_part_has_no_rule",
    ),
    one(
        "an adapter that is switched off is trained",
        "tasks/supervised.py",
        "if slope is None]:",
        "if False]:",
        f"{LANGUAGE}::test_an_adapter_that_would_learn_nothing_is_refused_before_training",
    ),
    one(
        "a canary past its randomised response",
        "audits/replay.py",
        "if not isinstance(like, PreparedShards):",
        "if True:",
        "tests/attacks/test_membership.py::test_a_canary_is_answered_at_random_as_other_images_are",
    ),
    one(
        "a broken twin on a grid has the noise of the run",
        "audits/clients.py",
        "if isinstance(source, Weak) and self.uplink.grid is not None:",
        "if False:",
        "tests/audit/test_many_draws.py::test_a_twin_on_a_grid_has_less_noise",
    ),
]
