"""Results in Python: one run, comparisons, sweeps and predictions; and findings of attacks and audits as files."""
