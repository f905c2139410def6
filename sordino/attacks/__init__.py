"""Attacks on a run: reconstruction, membership and property inference, poisoning."""
