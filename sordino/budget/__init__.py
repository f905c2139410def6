"""Turn a privacy budget into noise multipliers, rates and shares.

Plans and calculators turn an epsilon into noise, and noise into an epsilon.
"""
