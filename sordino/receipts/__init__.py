"""Receipts of runs: guarantees and spent budgets, which others can recompute from the ledger and pass on.

Nothing here trains, reads data, draws noise or serves.
"""
