"""Synthetic data: generators, public images, and methods that train with them."""
