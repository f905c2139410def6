"""Parts that this optional subpackage registers: the command `sordino audit` and its two audits."""

PARTS = {
    "audits": {"gates": "sordino.audits.gates", "trained": "sordino.audits.trained"},
    "verbs of experiments": {"audit": "sordino.audits.command:audit"},
}
