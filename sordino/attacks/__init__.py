"""Attacks on a run: what an attacker reaches, held against what was claimed.

Each attack is a distinguisher between two worst-case neighbours, through a gate's public calls.
"""
