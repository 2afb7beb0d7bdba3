"""Defaults and limits of the options of `load`."""

from __future__ import annotations

ROWS, MOST_ROWS = 8, 256
"""Texts that are generated together, while others wait."""
PREFIX_FOLDER = 2**30
"""Bytes of the files in a folder of prefixes."""
