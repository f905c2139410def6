"""Real sites: what they agree on, how each of them decides, and the programs that run there."""
