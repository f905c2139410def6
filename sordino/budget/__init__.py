"""Privacy budgets turned into noise multipliers, sampling rates and shares, by client and round.

A plan divides a budget into one price for each client and each round in which it takes part.
"""
