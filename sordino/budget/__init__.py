"""Turn a privacy budget into noise multipliers, rates and shares.

Plans cut a budget into one price for each client and exposure.
"""
