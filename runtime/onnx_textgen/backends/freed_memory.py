"""Returns memory that was freed to the system: glibc keeps it, all weights of a model included, and others cannot use it."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Return it, where the C library can; takes a few milliseconds."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # musl has none
        trim(0)
