"""Attacks on a gate's own promise: what a distinguisher can do with two worst-case neighbours, against what was claimed."""
