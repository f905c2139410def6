"""Results in Python: runs, comparisons, sweeps, predictions, and files of attacks and audits."""
