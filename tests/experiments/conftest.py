"""The program of the published tables is no package: it finds its modules beside itself, and so do its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
