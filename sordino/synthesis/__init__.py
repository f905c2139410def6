"""Synthetic data: generators, public images, and methods that train with them."""

PARTS = {
    "algorithms": {
        "slaug_fl": "sordino.synthesis.slaug",
        "vhl": "sordino.synthesis.vhl",
        "fedgen": "sordino.synthesis.fedgen",
        "fedavg_prototypes": "sordino.synthesis.fedavg_prototypes",
    },
    "candidates": {"sources": "sordino.synthesis.public_images:SOURCES"},
}
