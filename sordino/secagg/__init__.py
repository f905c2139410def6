"""Secure aggregation: masks, Paillier, BFV and CKKS.

Fixed point, Paillier, lattices, secure aggregation: integers and bytes; nothing here knows a model.
"""
