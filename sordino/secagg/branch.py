"""Implementations of secure sums that this optional subpackage registers, one for each kind of secure stage; and a
site's part in a round of secure aggregation by masks.
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
