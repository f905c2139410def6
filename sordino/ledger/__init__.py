"""At what price: events, their accountants, calibration, schedules, and the ledger that adds up."""
