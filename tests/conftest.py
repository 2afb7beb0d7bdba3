"""What every test may ask for."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora, trained checkpoints, tokenizers and golden outputs that lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs the test data folder ../shared/data, which is not part of the repository")
    return SHARED
