"""Client sampling: the cohort of each round, and stragglers."""
