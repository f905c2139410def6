"""SlaugFL: what it prepares, what it serves, and how it trains."""
