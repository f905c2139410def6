"""Audits: proved lower bounds on privacy loss, by worst-case neighbours and canaries. Copies with too little noise
(broken twins) test the audit itself."""

PARTS = {
    "audits": {"gates": "sordino.audits.gates", "trained": "sordino.audits.trained"},
    "verbs of experiments": {"audit": "sordino.audits.command:audit"},
}
