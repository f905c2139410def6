"""Table of the parts that adapters register: none, since users import them into a program of their own (Flower,
NVFlare).
"""

PARTS: dict[str, dict[str, str]] = {}
