"""Bugs by which a row of somebody's decides what no noise covers, or by which an attack on it shows nothing."""

from __future__ import annotations

from tests.mutants.mutant import one

SOURCES = "tests/privacy/noise/test_sources.py"
INVERSION = "tests/attacks/test_gradient_inversion.py"
AUDIT = "tests/attacks/test_audit.py"
SECRETS = "tests/laws/test_secret_rows.py"

SECRET_ROWS = [
    # what rows decide before any noise
    one(
        "a scale that rows decide, beside a number",
        "runs/population.py",
        "scaled = (public_inputs.SCALING,) if self.scaled_by_rows else ()",
        "scaled = ()",
        f"{SECRETS}::test_a_scale_that_rows_decide_claims_nothing",
    ),
    one(
        "classes that images bring along, beside a number",
        "runs/population.py",
        "return (*scaled, *self._loaded.learned, *(",
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
        "return listed.at(np.array(order, np.int64)) if by_name else listed",
        "return listed",
        f"{SECRETS}::test_one_image_changes_no_model_of_declared_classes",
    ),
    one(
        "a site announces whatever it has learned",
        "deploy/own_data.py",
        "        check_announced(held.experiment.data, held.learned_from_rows)",
        "        pass",
        f"{SECRETS}::test_two_announcements_give_no_row_back",
    ),
    one(
        "a server plays what rows decide",
        "deploy/serving.py",
        "    check_announced(experiment.data)",
        "    pass",
        f"{SECRETS}::test_no_server_and_no_site_plays_what_rows_decide",
    ),
    one(
        "a split of images that one label moves",
        "runs/population.py",
        "for said in self.drawn_from_labels if said in public_inputs.CHOSEN)",
        "for said in ())",
        f"{SECRETS}::test_a_choice_by_secret_labels_claims_nothing",
    ),
    one(
        "secret labels decide who holds a row",
        "runs/population.py",
        "if self._real and not self._shown and self.scheme.reads_labels:",
        "if self._real and self._placed and self.scheme.reads_labels:",
        f"{SECRETS}::test_a_choice_by_secret_labels_claims_nothing",
    ),
    # answers at random
    one(
        "all clients answer from one stream",
        "privacy/noise/sources.py",
        "Kept(hmac.digest(self._secret, json.dumps(parts).encode()",
        "Kept(hmac.digest(self._secret, json.dumps(parts[:1]).encode()",
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
        "attacks/audit.py",
        "strict=True) if one.verdict == CAUGHT)",
        "strict=True) if one.verdict == CAUGHT or lacks > SHORT)",
        f"{AUDIT}::test_an_audit_says_which_missing_noise_it_would_notice",
    ),
]
