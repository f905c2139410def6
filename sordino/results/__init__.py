"""What runs have found: one run, several beside each other, and sweeps."""
