"""What an attacker finds, against what was claimed.

Each attack is a distinguisher between two worst-case neighbours, through a gate's public calls.
"""
