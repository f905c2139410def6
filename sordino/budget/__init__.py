"""Turn a privacy budget into noise multipliers, rates and shares: who grants how much, and for which rounds.

Plans cut a budget into one price for each client and exposure.
"""
