"""Client sampling: who takes part in a round.

The kinds of cohorts, how they are drawn, and who comes too late.
"""
