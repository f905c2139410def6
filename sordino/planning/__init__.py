"""Planning of a run: settings and public numbers become plans, prices, claims and privacy accounts. No data are read.

The server, every site and anyone who verifies a receipt compute the same plan.
"""
