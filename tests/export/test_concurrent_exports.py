"""Exports that several threads ask for at once."""

import logging
import os
import sys
import threading
import warnings
from pathlib import Path

import pytest

from onnx_textgen_export import DecoderConfig, TinyTransformer, export
from onnx_textgen_export.proof.same_weights import EXPERTS


def shared_by_all_threads() -> tuple[object, ...]:
    return sys.stdout, sys.stderr, logging.root.manager.disable, list(warnings.filters), os.environ.get(EXPERTS)


@pytest.mark.slow
def test_exports_come_one_after_the_other_and_leave_what_threads_share_as_it_was(tmp_path: Path) -> None:
    before, stages, is_asked = shared_by_all_threads(), list[str](), threading.Event()

    def ask(name: str) -> None:
        config = DecoderConfig(vocab_size=300, width=32, layers=1, heads=2, context_length=32)
        export(TinyTransformer(config).eval(), tmp_path / name, precision="int8", report=lambda stage: begin(name))

    def second() -> None:
        is_asked.set()
        ask("second")

    other = threading.Thread(target=second)

    def begin(name: str) -> None:
        if not stages:
            other.start()
            assert is_asked.wait(60)
        stages.append(name)

    ask("first")
    other.join(300)
    assert not other.is_alive()
    half = len(stages) // 2
    assert stages == ["first"] * half + ["second"] * half
    assert shared_by_all_threads() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
