"""Audits: proved lower bounds on privacy loss, by worst-case neighbours, canaries and broken twins."""
