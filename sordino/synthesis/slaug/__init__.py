"""SlaugFL: its preparation, generator and training."""
