"""Adapters: clip, noise, budget and receipt for uploads that a Flower or NVFlare app makes.

They hold no privacy mathematics: gate 2 clips and adds noise, the ledger keeps books, the receipt is that of any run.
"""
