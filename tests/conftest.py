"""What every test may ask for."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores; torch reads this when it is imported

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background; tests of Ctrl-C press it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["ONNX_TEXTGEN_CACHE"] = str(Path(tempfile.gettempdir()) / "no-models-of-onnx-textgen")  # not the user's own

LONGEST = "test_trained_model.py"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that it does not go on alone when the others are done."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora, trained checkpoints, tokenizers and golden outputs that lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs the test data folder ../shared/data, which is not part of the repository")
    return SHARED
