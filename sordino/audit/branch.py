"""Parts that audits add: their verb."""

PARTS = {
    "audits": {"gates": "sordino.audit.gates", "trained": "sordino.audit.trained"},
    "verbs of experiments": {"audit": "sordino.audit.command:audit"},
}
