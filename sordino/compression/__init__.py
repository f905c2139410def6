"""Smaller uploads: measurements of an update, what the server makes of their sum, and what that costs in bytes."""
