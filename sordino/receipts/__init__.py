"""Receipts of runs: what was promised and spent, for others to recompute, believe nothing, and pass on.

Nothing here trains, reads data, draws noise or serves.
"""
