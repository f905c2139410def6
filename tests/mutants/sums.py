"""Bugs of secure and of robust sums."""

from __future__ import annotations

from tests.mutants.mutant import one

SHAMIR = "tests/secagg/test_shamir.py"
MASKS = "tests/secagg/test_masks.py"


SUMS = [
    one(
        "shares whose polynomial is zero between its ends",
        "secagg/shamir.py",
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
    # robust sums
    one(
        "noise for a sum on a median",
        "privacy/uplink/robust.py",
        "bool(_robust(gate)) and len(_robust(gate)) < len(gate.server)",
        "False",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start[a median under central noise]",
    ),
    one(
        "a robust sum of what broke its clip",
        "privacy/uplink/uplink.py",
        "admitted = [self._admit(u, bound, reach(k))",
        "admitted = [u",
        "tests/privacy/uplink/test_robust.py::test_an_upload_beyond_its_clip_counts_as_zeros",
    ),
]
