"""At what price: the events a mechanism leaves behind, their accountants, calibration, schedules and the ledger."""
