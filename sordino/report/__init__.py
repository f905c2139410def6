"""Reports: pages, tables, figures and the live dashboard."""

PARTS = {
    "verbs": {
        "report": "sordino.report.command:report",
        "dashboard": "sordino.report.command:dashboard",
        "privacy export": "sordino.report.command:export",
    },
    "pages": {"run": "sordino.report.run_page:write", "comparison": "sordino.report.comparison_page:page"},
    "figures": {
        "comparison": "sordino.report.figures:draw_comparison",
        "available": "sordino.report.figures:available",
        "partition": "sordino.report.partition_picture:svg",
    },
}
