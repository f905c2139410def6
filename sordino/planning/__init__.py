"""Planning of a run: settings and public numbers become plans, prices, claims and privacy accounts. No row is read.

The server, every site and a reader of a receipt compute the same plan.
"""
