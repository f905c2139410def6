"""Bugs by which a row of somebody's decides what no noise covers, or by which an attack on it shows nothing."""

from __future__ import annotations

from tests.mutants.mutant import one

SOURCES = "tests/privacy/noise/test_sources.py"
INVERSION = "tests/attacks/test_gradient_inversion.py"
AUDIT = "tests/attacks/test_audit.py"

SECRET_ROWS = [
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
