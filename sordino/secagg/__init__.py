"""Secure aggregation: masks, Paillier, BFV and CKKS.

The package works on integers and bytes; nothing in it knows a model.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.privacy.uplink.channels import EncryptedSums, MaskedSums
    from sordino.secagg import encrypted, masked

    ENCRYPTED: EncryptedSums = encrypted
    MASKED: MaskedSums = masked

PARTS = {
    "secure_sums": {
        "encrypted": "sordino.secagg.encrypted",
        "masked": "sordino.secagg.masked",
        "masked round": "sordino.secagg.masked:MaskedRound",
    },
}
