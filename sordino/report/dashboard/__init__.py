"""Live dashboard of a run in a browser."""
