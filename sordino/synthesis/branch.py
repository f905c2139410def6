"""Parts that this optional subpackage registers: algorithms with synthetic data, and sources of candidates (public
images for the server).
"""

PARTS = {
    "algorithms": {
        "slaug_fl": "sordino.synthesis.slaug.slaug_fl",
        "vhl": "sordino.synthesis.vhl",
        "fedgen": "sordino.synthesis.fedgen",
        "fedavg_prototypes": "sordino.synthesis.fedavg_prototypes",
    },
    "candidates": {"sources": "sordino.synthesis.public_images:SOURCES"},
}
