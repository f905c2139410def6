"""What was spent, and at what price.

Events, their accountants, calibration, and the ledger that adds up.
"""
