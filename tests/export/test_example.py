"""The example of a custom decoder runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_decoder.py"


@pytest.mark.slow
def test_a_custom_decoder_is_trained_exported_and_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path / "model"], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith(", world")
