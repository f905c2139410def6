"""Privacy budgets turned into noise multipliers, sampling rates and shares, by client and round.

Plans cut a budget into one price for each client and exposure.
"""
