"""A run, from its experiment to its receipt.

What may be shown, what is private, and how others check it.
"""
