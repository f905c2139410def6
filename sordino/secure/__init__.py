"""Sums that can be opened, of uploads that cannot: fixed point, Paillier, lattices, secure aggregation. Integers and bytes; nothing here knows a model."""
