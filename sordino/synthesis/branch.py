"""Parts that synthetic data adds: its algorithms."""

PARTS = {
    "algorithms": {
        "slaug_fl": "sordino.synthesis.slaug.slaug_fl",
        "vhl": "sordino.synthesis.vhl",
        "fedgen": "sordino.synthesis.fedgen",
        "fedavg_prototypes": "sordino.synthesis.fedavg_prototypes",
    }
}
