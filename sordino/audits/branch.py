"""Parts that audits add: their verb."""

PARTS = {
    "audits": {"gates": "sordino.audits.gates", "trained": "sordino.audits.trained"},
    "verbs of experiments": {"audit": "sordino.audits.command:audit"},
}
