"""Loading much at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Around the imports that bring torch. Modules make hundreds of thousands of objects that all stay, and Python
    looks through them for garbage again and again, which takes a tenth of the start. So it does not look meanwhile, and
    afterwards never at what is there now.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
