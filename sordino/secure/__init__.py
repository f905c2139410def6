"""Sums that are opened, of uploads that nobody reads.

Fixed point, Paillier, lattices, secure aggregation: integers and bytes; nothing here knows a model.
"""
