"""Privacy ledger: what was reserved and spent, kept on disk.

>>> from sordino.ledger.books import LedgerScope
>>> from sordino.accounting.claims import Subject
>>> from sordino.accounting.claims import ZCDP, cap, cost
>>> from sordino.ledger.ledger import Ledger
>>> subject = Subject(unit="client", neighbours="replace", adversary="server")
>>> scope = LedgerScope("digits", subject, 1e-5, ZCDP)
>>> ledger = Ledger.open(":memory:", scope, caps={"ada": cap((1.0,)), "bob": cap((0.2,))})
>>> charges = {name: cost((0.15,)) for name in ("ada", "bob")}
>>> sorted(ledger.reserve("run/0", charges, plan=b""))
['ada', 'bob']

Bob has too little left for the next round and must abstain. A round that is reserved twice is charged once:

>>> sorted(ledger.reserve("run/1", charges, plan=b"")), sorted(ledger.reserve("run/1", charges, plan=b""))
(['ada'], ['ada'])
>>> ledger.remaining("ada") == cap((0.7,)), ledger.spent("bob") == cost((0.15,))
(True, True)
"""
