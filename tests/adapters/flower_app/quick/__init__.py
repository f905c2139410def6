"""Flower's quickstart: a small network on random rows, trained for two rounds."""
