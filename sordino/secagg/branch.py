"""Parts that secure aggregation registers: implementations of secure sums, by the `way` of a stage, and a site's masked
round.
"""

PARTS = {
    "secure_sums": {
        "encrypted": "sordino.secagg.encrypted",
        "masked": "sordino.secagg.masked",
        "masked round": "sordino.secagg.masked_round:MaskedRound",
    },
}
