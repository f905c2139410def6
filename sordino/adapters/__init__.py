"""Adapters: clip, noise, budget and receipt for uploads that a Flower or NVFlare app makes.

They hold no privacy mathematics: the uplink clips and adds noise, the ledger records spending, the receipt is that of
any run.
"""

PARTS: dict[str, dict[str, str]] = {}
