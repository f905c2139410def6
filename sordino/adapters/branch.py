"""No parts to register: users import adapters into a program of their own (Flower, NVFlare)."""

PARTS: dict[str, dict[str, str]] = {}
