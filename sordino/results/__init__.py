"""Results: one run, comparisons, sweeps and predictions."""
