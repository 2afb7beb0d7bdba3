"""What every test may ask for."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores; torch reads this when it is imported

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora, trained checkpoints, tokenizers and golden outputs that lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs the test data folder ../shared/data, which is not part of the repository")
    return SHARED
