"""Registration of the audits: their verb and their two programs."""

PARTS = {
    "audits": {"gates": "sordino.audits.gates", "trained": "sordino.audits.trained"},
    "verbs of experiments": {"audit": "sordino.audits.command:audit"},
}
