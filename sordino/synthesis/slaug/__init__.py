"""SlaugFL: its preparation, its generator and its training."""
