"""Privacy receipts of runs, and run folders: guarantees and spent budgets, which others can recompute.

Nothing here trains, reads data, draws noise or serves.
"""
