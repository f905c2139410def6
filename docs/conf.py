"""The site: plain Markdown, nothing fetched from anywhere. What can be derived from the code is written into
docs/generated first.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402

from sordino.version import __version__  # noqa: E402

generate.write(HERE / "generated")

project = "sordino"
author = "the sordino authors"
copyright = "2026, the sordino authors"
release = version = __version__
html_title = f"sordino {__version__}"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_theme_options = {
    "navigation_with_keys": True,
    # the colours of the pictures
    "light_css_variables": {"color-brand-primary": "#2f6f9f", "color-brand-content": "#2f6f9f"},
    "dark_css_variables": {"color-brand-primary": "#7cb8e6", "color-brand-content": "#7cb8e6"},
}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
