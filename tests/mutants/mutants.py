"""Seeded privacy bugs of the gates, the noise, the books and the plan, and the tests that must notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

SENSITIVITY = "tests/privacy/readers/test_sensitivity.py"
NOISE = "tests/privacy/noise/test_sources.py"
GRID = "tests/privacy/noise/test_grid.py"
AUDIT = "tests/privacy/test_audit.py"
SAMPLING = "tests/privacy/readers/test_sampling.py"
REFUSALS = "tests/privacy/test_refusals.py"
APART = "tests/privacy/readers/test_apart.py"
BAD = "tests/privacy/uplink/test_bad_clients.py"
LEDGER = "tests/ledger/test_ledger.py"
PERSONAL = "tests/budget/test_client_budgets.py"
PERSONAL_RUNS = "tests/runs/test_personal_budgets.py"
UNSAFE_EXPERIMENTS = "tests/privacy/test_unsafe_experiments.py"
UPLINK_SENSITIVITY = "tests/privacy/uplink/test_sensitivity.py"
PLANNED = f"{UNSAFE_EXPERIMENTS}::test_the_planned_noise_spends_the_budget_and_no_more"
SHARED_NOISE = f"{NOISE}::test_rounds_clients_reads_layers_and_seeds_share_no_noise"
LAW = f"{NOISE}::test_the_law_and_the_scale"


PRIVACY = [
    # noise: its size, its law, its freshness
    one(
        "noise halved",
        "privacy/uplink/stages.py",
        "scale = multiplier * self.louder * self.sensitivity(bound)",
        "scale = multiplier * self.louder * self.sensitivity(bound) / 2",
        LAW,
    ),
    one(
        "noise 10% short",
        "privacy/readers/noisy_gradient.py",
        "scale = multiplier * reader.sensitivity",
        "scale = multiplier * reader.sensitivity / 1.1",
        f"{AUDIT}::test_a_gaussian_reader_loses_no_more_than_it_claims[replace-2.0]",
    ),
    one(
        "noise left out of later reads",
        "privacy/readers/noisy_gradient.py",
        "scale = multiplier * reader.sensitivity",
        "scale = multiplier * reader.sensitivity * (1 if step == 0 else 1e-3)",
        f"{AUDIT}::test_two_reads_cost_what_two_reads_lose",
    ),
    one(
        "noise left out of the sum",
        "privacy/uplink/__init__.py",
        "total = stage.release(total, bound, used, source)",
        "total = stage.release(total, bound, used, source) if uploads.who else total",
        LAW,
    ),
    one(
        "an extra field without noise",
        "privacy/uplink/stages.py",
        "self.mechanism.add(leaf, scale,",
        "self.mechanism.add(leaf, scale * (1 if leaf.dim() < 2 else 1e-6),",
        f"{UPLINK_SENSITIVITY}::test_an_upload_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "a scale in half precision underflows",
        "privacy/noise/__init__.py",
        "return source.noisy(self, values, scale)",
        "return source.noisy(self, values, max(float(values.new_tensor(scale).half()), 1e-200))",
        f"{NOISE}::test_a_tiny_scale_is_not_lost_in_single_precision",
    ),
    one(
        "the same noise every round",
        "privacy/noise/sources.py",
        'keys.fold(key, "noise", t)',
        'keys.fold(key, "noise")',
        SHARED_NOISE,
    ),
    one(
        "the same noise at every client",
        "privacy/noise/sources.py",
        '.child("client", client)',
        '.child("client")',
        SHARED_NOISE,
    ),
    one(
        "the same noise at every read",
        "privacy/readers/noisy_gradient.py",
        'self._grant.source.child("read", step)',
        'self._grant.source.child("read")',
        SHARED_NOISE,
    ),
    one("the same noise in every layer", "privacy/uplink/stages.py", "source.child(name)", "source", SHARED_NOISE),
    one(
        "the system's seed fixed",
        "privacy/noise/sources.py",
        "os.urandom(32), bytes(16)",
        "bytes(32), bytes(16)",
        f"{NOISE}::test_the_system_source_never_repeats",
    ),
    one(
        "a stream shared by a fork",
        "privacy/noise/sources.py",
        "if self._process != os.getpid():",
        "if self._process == -1:",
        f"{NOISE}::test_the_system_source_never_repeats",
    ),
    one(
        "the input cut to the grid before the noise",
        "privacy/noise/__init__.py",
        "return (drawn + over).astype(np.float64)",
        "return drawn.astype(np.float64)",
        f"{GRID}::test_a_fraction_of_a_step_is_carried",
    ),
    # bounds
    one(
        "noise before the clip allowed",
        "privacy/uplink/rules.py",
        "any(isinstance(stage, Clip | ClipLayers) for stage in _after(stages, Noise))",
        "False",
        f"{UNSAFE_EXPERIMENTS}::test_an_unsafe_experiment_does_not_start",
    ),
    one(
        "clip per layer",
        "privacy/uplink/stages.py",
        "clip_factor(norm, radius, leaf.dtype)",
        "clip_factor(tree.norm(leaf, self.order), radius, leaf.dtype)",
        f"{UPLINK_SENSITIVITY}::test_an_upload_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "nan passes the clip",
        "privacy/uplink/stages.py",
        "torch.where(torch.isfinite(norm), factor, 0.0)",
        "torch.where(torch.isfinite(norm), factor, 1.0)",
        f"{UPLINK_SENSITIVITY}::test_an_upload_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "the clip of layer norms in single precision",
        "privacy/readers/layer_gradients.py",
        "vector_norm(part.double(), order, dim=1)",
        "vector_norm(part, order, dim=1).double()",
        f"{SENSITIVITY}::test_tiny_factors_of_huge_factors_are_measured",
    ),
    one(
        "mean by realised count",
        "privacy/uplink/__init__.py",
        'denominator = expected if self.denominator == "expected" else realised',
        "denominator = realised",
        f"{UPLINK_SENSITIVITY}::test_a_central_sum_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "gradients divided by the secret size",
        "privacy/readers/__init__.py",
        "return self._grant.size",
        "return len(self._examples.y)",
        f"{SENSITIVITY}::test_a_reader_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "client weights unbounded",
        "privacy/uplink/stages.py",
        "return size / largest",
        "return float(size)",
        f"{UPLINK_SENSITIVITY}::test_an_upload_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "clients: replace with zero_out sensitivity",
        "privacy/uplink/stages.py",
        'return 2 * limit if self.neighbours == "replace" else limit',
        "return limit",
        f"{UPLINK_SENSITIVITY}::test_an_upload_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "examples: replace with zero_out sensitivity",
        "privacy/readers/noisy_gradient.py",
        "return 2 * self.clip if twice else self.clip",
        "return self.clip",
        f"{SENSITIVITY}::test_a_reader_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "a broken client believed",
        "privacy/uplink/__init__.py",
        "return upload if kept else tree.zeros_like(upload)",
        "return upload",
        f"{BAD}::test_spoiled_values_count_as_zero_and_change_nothing_else",
    ),
    one(
        "a small budget's clip as wide as a large one's",
        "privacy/uplink/stages.py",
        "self.radius * grant.reach if self.personal else self.radius",
        "self.radius",
        f"{UPLINK_SENSITIVITY}::test_a_personal_clip_stays_within_its_reach",
    ),
    one(
        "a small budget's clip not checked by the server",
        "privacy/uplink/__init__.py",
        "bound.of(of) * (reach if self.personal else 1.0)",
        "bound.of(of)",
        f"{PERSONAL_RUNS}::test_a_client_beyond_its_own_bound_adds_nothing",
    ),
    one(
        "block sums as short as what they sum",
        "privacy/uplink/compression.py",
        "min(bound.l2 * math.sqrt(longest), bound.l1)",
        "min(bound.l2, bound.l1)",
        "tests/privacy/uplink/test_compression.py::test_noise_behind_it_is_sized_for_what_is_sent",
    ),
    one(
        "every layer's share is the whole",
        "privacy/uplink/stages.py",
        "factor), math.sqrt(share) / radius)",
        "factor), 1 / radius)",
        "tests/privacy/uplink/test_clip_layers.py::test_whatever_comes_the_ball_holds",
    ),
    one(
        "cells added up without a clip",
        "privacy/readers/episodes.py",
        "clip.encode(self._of(cell, number, loss, params), Bound(), self._grant)",
        "self._of(cell, number, loss, params)",
        "tests/privacy/readers/test_episodes.py::test_the_mean_of_many_draws_is_the_mean_of_the_clipped_cells",
    ),
    one(
        "an example that turns its episode around moves it by one clip",
        "privacy/readers/episodes.py",
        'return self.clip if self.sampling == "poisson" else 2 * self.clip',
        "return self.clip",
        "tests/privacy/readers/test_episodes.py::test_an_example_that_changes_turns_its_fresh_episode_around_and_no_more",
        "tests/privacy/readers/test_episodes.py::test_the_size_of_the_noise",
    ),
    one(
        "an example shown to the losses beside the others",
        "privacy/readers/per_example_gradients.py",
        "return losses(held, x[None], y[None], key[None])[0], tape.given",
        "return losses(held, torch.cat([x[None], batch.x]), torch.cat([y[None], batch.y]), torch.cat([key[None], keys]))[0], tape.given",
        f"{APART}::test_an_example_moves_the_sum_by_two_clips_at_most[at large values]",
    ),
    # accounting
    one(
        "fixed-size samples accounted as Poisson",
        "privacy/readers/noisy_gradient.py",
        'torch.nonzero(self._grant.source.child("sample", step).coins(n, reader.rate)).flatten()',
        "torch.randperm(n)[: int(reader.rate * n)]",
        f"{SAMPLING}::test_every_example_tosses_its_own_coin_at_every_read",
    ),
    one(
        "the same sample at every read",
        "privacy/readers/noisy_gradient.py",
        'child("sample", step)',
        'child("sample", 0)',
        f"{SAMPLING}::test_every_example_tosses_its_own_coin_at_every_read[counter]",
    ),
    one(
        "a sampling rate off by 10",
        "privacy/readers/__init__.py",
        "Poisson(self.sampled, event)",
        "Poisson(self.sampled / 10, event)",
        f"{AUDIT}::test_a_poisson_reader_loses_no_more_than_it_claims",
    ),
    one(
        "delta times 10",
        "planning/phase.py",
        "return Budget(privacy.epsilon, privacy.delta, schedule, None",
        "return Budget(privacy.epsilon, 10 * privacy.delta, schedule, None",
        PLANNED,
    ),
    one(
        "an event composed once",
        "privacy/readers/__init__.py",
        "event = Repeat(event, reads) if reads > 1 else event",
        "event = Repeat(event, 1)",
        f"{AUDIT}::test_two_reads_cost_what_two_reads_lose",
    ),
    one(
        "several reads at the price of one",
        "budget/plan.py",
        "[part / UNIT / reads for",
        "[part / UNIT for",
        PLANNED,
    ),
    one(
        "a laplace sample at the Gaussian's price",
        "accounting/pricing.py",
        "return self  # charged as if it were not sampled",
        "return best_order(rate, epsilon, delta, releases)",
        f"{UNSAFE_EXPERIMENTS}::test_a_laplace_sample_is_priced_without_amplification",
    ),
    one(
        "central noise for the one who paid most",
        "planning/accounts.py",
        "central = max(",
        "central = min(",
        f"{BAD}::test_central_noise_is_as_large_as_every_clients_claim_says",
    ),
    one(
        "central noise under personal clips halved",
        "planning/accounts.py",
        "central = self.plan.quietest",
        "central = self.plan.quietest / 2",
        f"{PERSONAL_RUNS}::test_personal_bounds_are_in_the_ratio_of_what_budgets_buy",
    ),
    one(
        "in a hidden cohort only those drawn pay",
        "planning/accounts.py",
        "for k, price in due.items() if any(price.charge)",
        "for k, price in due.items() if k in prices and any(price.charge)",
        f"{PERSONAL_RUNS}::test_a_hidden_plan_of_thresholds_charges_everybody",
    ),
    one(
        "a round charged as much as is left",
        "budget/plans_by_budget.py",
        "return None  # not rounding: this budget is spent",
        "pass",
        f"{PERSONAL}::test_who_spent_more_than_planned_is_refused_and_not_charged_less",
    ),
    one(
        "a published guarantee called proved",
        "privacy/uplink/rules.py",
        'noise.neighbours, NonPrivate(NOMINAL), "nominal", why)',
        'noise.neighbours, event, "proved", why)',
        f"{PERSONAL_RUNS}::test_published_dp_prox_plays_every_round_and_spends_what_it_was_granted[12]",
    ),
    one(
        "noise that follows the data called proved",
        "privacy/uplink/rules.py",
        'NonPrivate(NOMINAL), "nominal", shown.reasons)',
        'NonPrivate(NOMINAL), "proved", shown.reasons)',
        "tests/algorithms/test_cuag_pfl.py::test_as_published_nothing_is_proved",
    ),
    one(
        "participation told beside a noised sum",
        "privacy/uplink/__init__.py",
        "participation = expected / everybody if hidden else",
        "participation =",
        f"{UPLINK_SENSITIVITY}::test_a_central_sum_hides_who_took_part",
    ),
    # the ledger
    Mutant(
        "release before reserve",
        "round.py",
        (
            ("now = run.reserve(now, prices)", "now = OpenRound(t, now.rates, prices, sorted(prices))"),
            (
                "    run.publish(t, digest)",
                "    run.reserve(now, prices)\n    run.publish(t, digest)",
            ),
        ),
        (f"{BAD}::test_spoiled_values_count_as_zero_and_change_nothing_else",),
    ),
    Mutant(
        "stored before it is kept",
        "round.py",
        (
            ("    keep(outcome, digest)", "    run.publish(t, digest)"),
            ("    run.publish(t, digest)  # from", "    keep(outcome, digest)  # from"),
        ),
        ("tests/runs/test_resume.py::test_no_round_is_drawn_twice_with_noise_of_the_system[published]",),
    ),
    one(
        "an exhausted client still averaged",
        "engine/server.py",
        "for k in now.granted}",
        "for k in now.prices}",
        f"{BAD}::test_a_client_that_cannot_pay_is_not_asked",
    ),
    one(
        "spending forgotten",
        "ledger/books.py",
        "self.own[name] = tuple(map(add, self.own[name], charge)) if name in self.own else charge",
        "self.own[name] = charge",
        f"{LEDGER}::test_the_ledger_in_memory_does_what_the_model_does",
    ),
    one(
        "a retry may release something else",
        "ledger/ledger.py",
        "if stored is not None and any(",
        "if False and any(",
        f"{LEDGER}::test_the_ledger_in_memory_does_what_the_model_does",
    ),
    one(
        "a batch read twice",
        "privacy/readers/__init__.py",
        "    if read:",
        "    if False:",
        f"{REFUSALS}::test_an_unsafe_call_is_refused",
    ),
    # the method
    one(
        "the sign of SCAFFOLD's control",
        "algorithms/scaffold.py",
        "statistics=task.statistics), tree.sub(c, c_i)",
        "statistics=task.statistics), tree.sub(c_i, c)",
        "tests/algorithms/test_algorithms.py::test_scaffold_reaches_the_optimum_that_fedavg_misses",
    ),
    # presets: what a user sets
    one(
        "the upload of a model of one's own",
        "algorithms/ditto.py",
        "return up, Client(",
        "return Up(tree.sub(own.y, down.x)), Client(",
        "tests/algorithms/test_ditto.py::test_the_global_model_is_that_of_fedavg",
    ),
]
