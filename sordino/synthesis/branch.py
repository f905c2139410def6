"""Parts that this optional subpackage registers: algorithms with synthetic data, and sources of candidates."""

PARTS = {
    "algorithms": {
        "slaug_fl": "sordino.synthesis.slaug.slaug_fl",
        "vhl": "sordino.synthesis.vhl",
        "fedgen": "sordino.synthesis.fedgen",
        "fedavg_prototypes": "sordino.synthesis.fedavg_prototypes",
    },
    "candidates": {"sources": "sordino.synthesis.public_images:SOURCES"},
}
