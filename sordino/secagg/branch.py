"""Parts that secure aggregation registers: implementations of secure sums, by the kind of a stage, and a site's masked
round.
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
