"""What may be spent, and how loud the noise is that it buys.

Plans and calculators turn an epsilon into noise, and noise into an epsilon.
"""
