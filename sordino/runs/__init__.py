"""Runs: from settings to a plan, the rounds, the folder and the receipt.

What may be shown, what is private, and how others check it.
"""
