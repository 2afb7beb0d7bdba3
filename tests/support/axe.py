"""axe-core, which finds what is not accessible on a page; tests that want it skip without it."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def axe_script():
    """The text of axe.min.js, from a package that carries it (`pip install axe-playwright-python --no-deps`)."""
    found = find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core is not here: pip install --no-deps axe-playwright-python")
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
