"""Audits: proved lower bounds on what is lost, by worst-case neighbours, canaries and broken twins."""
