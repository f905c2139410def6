"""Secure aggregation: masks, Paillier, BFV and CKKS.

The package works on integers and bytes; nothing in it knows a model.
"""
