"""Seeded bugs of the kind a hostile reader looks for: what a run writes, replays and composes. See `mutants` for what a
row is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

ADVERSARY = "tests/laws/test_adversary.py"
BINDING = "tests/receipts/test_binding.py"
COVERING = "tests/accounting/test_covering.py"
RESUME = "tests/runs/test_resume.py"
WITNESS = "tests/runs/test_witness.py"
ABSENT = "tests/privacy/test_absent.py"
APART = "tests/privacy/readers/test_apart.py"
CONVEX = "tests/privacy/readers/test_convex_stable.py"
NEIGHBOURING_TABLES = "tests/data/test_neighbouring_tables.py"
SITES = "tests/runs/test_sites.py"
PRESETS = "tests/algorithms/test_preset.py"
TWO_TELL = f"{ADVERSARY}::test_two_runs_with_one_seed_draw_different_cohorts"
ONE_TELLS = f"{ADVERSARY}::test_nothing_that_is_left_tells_one_example_from_another[gaussian_gdp]"
DRAWN_TELLS = f"{ADVERSARY}::test_nothing_that_is_left_tells_who_was_drawn[central]"

HOSTILE = [
    # coins
    one(
        "hidden cohorts tossed from the seed",
        "planning/accounts.py",
        "SystemWords() if self.policy.secret_cohort else",
        "",
        TWO_TELL,
    ),
    one(
        "the same coins in every run",
        "sampling/draws.py",
        "return self._source.words(count).cpu().numpy().view(np.uint64)",
        "return keys.words(count, count)",
        TWO_TELL,
    ),
    one(
        "clients without their secret draw from the seed",
        "privacy/noise/sources.py",
        "if not is_real(name):",
        'if name != "system" or secret is None:',
        "tests/algorithms/test_ldp_fl.py::test_without_their_secret_clients_do_not_answer_from_the_seed[gone]",
    ),
    one(
        "a ledger of other hands goes on",
        "runs/population.py",
        'digest.update(np.stack([rows[order], owners[order]]).astype("<i8").tobytes())',
        'digest.update(rows[order].astype("<i8").tobytes())',
        "tests/runs/test_spending.py::test_a_shared_ledger_is_of_clients_who_hold_the_same_rows",
    ),
    # statements
    one(
        "a claim of a smaller unit covers a larger one",
        "accounting/composition.py",
        "if UNITS.index(unit) < UNITS.index(part) or",
        "if UNITS.index(unit) > UNITS.index(part) or",
        f"{COVERING}::test_no_claim_covers_more_than_its_own",
    ),
    one(
        "taken away and put back counted once",
        "accounting/composition.py",
        'return 1 if how == "replace" else 2',
        "return 1",
        f"{COVERING}::test_a_claim_covers_what_so_many_of_its_changes_reach",
    ),
    one(
        "a release that says nothing costs nothing",
        "accounting/composition.py",
        "if open_ or silent:",
        "if open_:",
        f"{COVERING}::test_relations_are_composed_and_not_printed_side_by_side",
    ),
    one(
        "a raw release beside noised ones is passed over",
        "accounting/composition.py",
        "if open_ or silent:",
        "if silent:",
        f"{COVERING}::test_pixels_beside_a_raw_upload_are_not_protected",
    ),
    one(
        "equal releases counted once",
        "accounting/composition.py",
        "append(Repeat(together, count) if count > 1 else together)",
        "append(together)",
        f"{COVERING}::test_relations_are_composed_and_not_printed_side_by_side",
    ),
    one(
        "two kinds of claims at the whole delta each",
        "accounting/composition.py",
        "summed = math.fsum(_alone(part, delta / len(parts), check).epsilon for part in parts)",
        "summed = math.fsum(_alone(part, delta, check).epsilon for part in parts)",
        f"{COVERING}::test_a_sample_that_cannot_be_stretched_is_summed",
    ),
    one(
        "a sampled noise stretched like a plain one",
        "accounting/events.py",
        "        return self.event.loss_size(rate * self.rate)",
        "        return self.event.loss_size(rate * self.rate)\n\n    def stretched(self, number):\n"
        "        inner = self.event.stretched(number)\n        return inner and Poisson(self.rate, inner)",
        f"{COVERING}::test_a_sample_that_cannot_be_stretched_is_summed",
    ),
    one(
        "what the tables lack forgotten",
        "accounting/statement.py",
        "* drift if drift else 0.0",
        "* 0.0 if drift else 0.0",
        f"{COVERING}::test_what_the_noise_tables_lack_is_taken_out_of_delta",
    ),
    # replays
    one(
        "an older copy that is put back goes on",
        "runs/witness.py",
        "if behind and not moved:",
        "if False:",
        f"{WITNESS}::test_an_older_copy_that_is_put_back_releases_no_round_again",
    ),
    one(
        "what an older copy has forgotten is not spent",
        "runs/witness.py",
        "if line.op in behind and not line.spend(ledger):",
        "if False:",
        f"{WITNESS}::test_an_older_copy_that_is_put_back_releases_no_round_again",
    ),
    one(
        "a round leaves before it is noted",
        "planning/accounts.py",
        "        self.witness(self.ledger, self.op(now.t))",
        "        pass",
        f"{WITNESS}::test_an_older_copy_that_is_put_back_releases_no_round_again",
    ),
    one(
        "a copy goes on beside the original",
        "runs/witness.py",
        "return self.place.stat().st_size == self._length",
        "return True",
        f"{WITNESS}::test_a_copy_that_goes_on_beside_the_original_stops_both",
    ),
    one(
        "nobody says that the notes were gone",
        "runs/witness.py",
        "            _tell(self.folder, MISSING)\n            self._note(",
        "            self._note(",
        f"{WITNESS}::test_a_receipt_says_where_nobody_would_notice",
    ),
    one(
        "nobody says it of a copy from before the first release",
        "runs/witness.py",
        "            _tell(self.folder, MISSING)\n            self._note(",
        "            if before:\n                _tell(self.folder, MISSING)\n            self._note(",
        f"{WITNESS}::test_a_copy_from_before_the_first_release_says_that_nobody_would_notice",
    ),
    one(
        "a new run begins no record",
        "runs/new_folder.py",
        "if needed(setup):",
        "if False:",
        f"{WITNESS}::test_a_receipt_says_where_nobody_would_notice",
    ),
    Mutant(
        "a drawn round drawn again",
        "planning/accounts.py",
        (
            (
                "        if not any(draws_afresh(claim.event) for group in parsed.releases for claim in claims_in(group)):",
                "        if True:",
            ),
            ("            if now.draws and not first:", "            if False:"),
        ),
        (f"{RESUME}::test_kills_do_not_average_the_noise_away",),
    ),
    one(
        "whoever comes second draws, too",
        "ledger/ledger.py",
        "return bool(records)",
        "return True",
        f"{RESUME}::test_kills_do_not_average_the_noise_away",
        "tests/ledger/test_ledger.py::test_the_ledger_in_memory_does_what_the_model_does",
    ),
    one(
        "a copy goes on",
        "receipts/private.py",
        "    if not same:",
        "    if False:",
        f"{RESUME}::test_a_copied_folder_does_not_release_a_round_again",
    ),
    one(
        "an edited experiment goes on",
        "runs/run.py",
        "if any(each != now for each in pairs):",
        "if False:",
        f"{BINDING}::test_a_simulation_does_not_become_real_by_one_word",
    ),
    one(
        "entries of another noise are no simulation",
        "accounting/composition.py",
        "return any(not is_real(parsed(text).noise) for text in texts)",
        "return False",
        f"{BINDING}::test_a_simulation_does_not_become_real_by_one_word",
    ),
    # what is left
    one(
        "a digest of the data without a key",
        "runs/population.py",
        "hmac.new(self.data_key, self.dataset.fingerprint(self.data_key).encode(), hashlib.sha256)",
        'hmac.new(b"", self.dataset.fingerprint(b"").encode(), hashlib.sha256)',
        f"{BINDING}::test_nobody_finds_a_row_by_trying",
    ),
    one(
        "rows of a hidden cohort are shown",
        "runs/rounds.py",
        "*(() if hidden else SEEN)",
        "*SEEN",
        DRAWN_TELLS,
    ),
    one(
        "scores are shown",
        "runs/rounds.py",
        'ALWAYS = ("phase", "round", "lost", "model_norm")',
        'ALWAYS = ("phase", "round", "lost", "model_norm", "accuracy", "loss", "clients")',
        f"{BINDING}::test_the_user_who_may_see_it_sees_it_all",
    ),
    one(
        "trackers are told everything",
        "runs/trackers.py",
        "metrics = shown(step.metrics, hidden) if real else step.metrics",
        "metrics = step.metrics",
        ONE_TELLS,
    ),
    one(
        "labels of clients on the page that is shown",
        "report/run_facts.py",
        "all_ = evaluator or not federation.policy.real",
        "all_ = True",
        f"{ADVERSARY}::test_labels_of_clients_in_a_page_are_found_out",
        ONE_TELLS,
    ),
    one(
        "secrets that everybody may read",
        "receipts/private.py",
        "descriptor = os.open(path, flags, 0o600)",
        "descriptor = os.open(path, flags, 0o644)",
        f"{BINDING}::test_what_is_private_is_for_its_owner_alone",
    ),
    # what binds
    one(
        "files are not looked at",
        "receipts/seal.py",
        "if here.get(name) != stated[name]",
        "if False",
        f"{BINDING}::test_what_was_edited_is_named",
    ),
    one(
        "the plan is not made again",
        "planning/accounts.py",
        '                if charged and json.loads(note(asked.groups))["releases"] == parsed.releases:',
        "                if True:",
        f"{BINDING}::test_a_ledger_with_ten_times_the_noise_is_not_what_the_experiment_plans",
    ),
    one(
        "a signature of anybody",
        "receipts/signature.py",
        "if path is not None and key.public_bytes_raw() != public_key(path).public_bytes_raw():",
        "if False:",
        f"{BINDING}::test_a_signature_is_of_one_key_and_one_receipt",
    ),
    one(
        "the continuous curve for whole steps",
        "privacy/noise/__init__.py",
        "return events.DiscreteGaussian(multiplier)",
        "return events.Gaussian(multiplier)",
        "tests/stories/secure_sums/test_promises.py::test_noise_in_shares_protects_from_the_server_too",
    ),
    one(
        "a probe that hides",
        "privacy/uplink/secure_stages.py",
        'if self.mode == "probe":',
        "if False:",
        "tests/stories/secure_sums/test_promises.py::test_the_receipt_says_it_and_verify_agrees[nothing, a probe]",
    ),
    # gates
    one(
        "central noise for those who came",
        "privacy/uplink/__init__.py",
        "total = stage.release(total, bound, used, source)",
        "total = stage.release(total, bound, used * (len(who) + 1) / (len(weights) + 1), source)",
        f"{ABSENT}::test_central_noise_does_not_shrink_with_those_who_stay_away",
    ),
    one(
        "the noise of one convex step",
        "privacy/readers/convex_stable.py",
        "* self.radius * steps * (",
        "* self.radius * (",
        f"{CONVEX}::test_its_noise_is_sized_for_all_steps",
    ),
    one(
        "claims of a group at its smallest rate",
        "planning/accounts.py",
        "tuple(self._claims(now, k, price.multiplier))",
        "tuple(self._claims(now, int(np.argmin(now.rates)), price.multiplier))",
        f"{ABSENT}::test_a_client_is_told_its_own_rate_and_no_others",
    ),
    one(
        "a statistic of a whole block",
        "privacy/readers/class_sums.py",
        "clipped(alone(of, x, solo), self._reader.clip)",
        "clipped(of(x), self._reader.clip)",
        f"{APART}::test_a_statistic_is_shown_one_example_at_a_time",
    ),
    one(
        "delta against clients where examples are protected",
        "planning/prices.py",
        'protected = population if unit == "client" else examples',
        "protected = population",
        f"{ABSENT}::test_delta_is_held_against_those_who_are_protected",
    ),
    one(
        "what each client is told goes to all",
        "transport/sites.py",
        "[self.per_client(down, k) for k in clients]",
        "[down for k in clients]",
        "tests/transport/test_pipes.py::test_what_one_client_is_told_goes_to_it_alone",
    ),
    # tables, ledgers, clients
    one(
        "test rows that follow from how many there are",
        "data/dataset.py",
        "np.random.default_rng([seed, i] if i else seed).random(n)",
        "np.random.default_rng([seed, i, n]).random(n)",
        f"{NEIGHBOURING_TABLES}::test_a_key_holds_a_row_in_its_place",
    ),
    one(
        "classes of the labels that are there",
        "data/columns.py",
        "else columns[labels[0]].words",
        "else tuple(sorted(set(texts(held.columns[labels[0]]))))",
        f"{NEIGHBOURING_TABLES}::test_a_learned_table_tells_one_row_from_another",
        f"{NEIGHBOURING_TABLES}::test_neighbouring_tables_teach_the_same_before_the_noise",
    ),
    one(
        "a ledger whose journal is in memory",
        "ledger/storage.py",
        'connection.execute("PRAGMA journal_mode=WAL")',
        'connection.execute("PRAGMA journal_mode=MEMORY")',
        "tests/ledger/test_storage.py::test_a_ledger_is_in_wal_mode_from_its_birth_and_for_whoever_opens_it_next",
    ),
    one(
        "a sum in the order of arrival",
        "privacy/uplink/__init__.py",
        "in sorted(uploads.items()) if",
        "in uploads.items() if",
        "tests/privacy/uplink/test_bad_clients.py::test_the_sum_is_taken_in_the_order_of_clients_whatever_came_first",
    ),
    one(
        "metrics that are not synced",
        "runs/rounds.py",
        "        os.fsync(self._file.fileno())\n",
        "",
        "tests/cli/test_main.py::test_metrics_are_synced_before_the_checkpoint_that_counts_on_them",
    ),
    # settings that would undo a promise
    one(
        "epochs slip past a bound of one step",
        "algorithms/client_noise.py",
        "if times != 1:",
        "if base.local_steps not in (None, 1):",
        f"{PRESETS}::test_a_bound_of_one_step_is_kept_whatever_is_set",
    ),
    one(
        "what is set to the default is overridden",
        "algorithms/preset.py",
        "given.items() if name in self._inherited}",
        'given.items() if name in self._inherited and value != getattr(self._bases["default"], name)}',
        f"{PRESETS}::test_what_is_set_wins_over_the_preset_even_where_it_is_the_default",
    ),
    # who knows what
    one(
        "a site serves the clients of others",
        "engine/client_states.py",
        "return client in self._which",
        "return True",
        f"{SITES}::test_a_site_has_its_own_clients_and_no_others",
    ),
    one(
        "sizes that are nobody's business reach the server",
        "runs/population.py",
        "sizes=sizes if self.experiment.privacy.public_sizes else alike(1, len(sizes)),",
        "sizes=sizes,",
        f"{SITES}::test_sizes_that_are_nobodys_business_reach_no_server",
    ),
    one(
        "weights follow from sizes that nobody may know",
        "planning/prices.py",
        "if any(isinstance(stage, Weigh) for stage in algorithm.uplink.client):",
        "if False:",
        f"{SITES}::test_sizes_that_are_nobodys_business_reach_no_server",
    ),
]
