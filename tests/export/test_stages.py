"""The stages of an export on a terminal: one line each, whatever the terminal's width."""

from __future__ import annotations

import sys

import pytest

from onnx_textgen.cli import app
from onnx_textgen_export.stages import Stages

pytest.importorskip("termios", reason="needs a pseudo-terminal")
from support.terminal import PseudoTerminal  # Windows has none


@pytest.mark.parametrize("columns", [30, 80])
def test_a_stage_is_one_line_and_an_error_in_it_another(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    terminal = PseudoTerminal(columns)
    with terminal.streams() as (_, stdout, stderr), monkeypatch.context() as streams:
        streams.setattr(sys, "stdout", stdout)
        streams.setattr(sys, "stderr", stderr)
        stages = Stages()
        for stage in ("load", "load, 3 of 8 parts", "a stage whose name is as long as a row", "size: 1 MB", "trace"):
            stages.begin(stage)
        assert app.fail("no") == 1
    lines = ["load 0.0 s", "a stage whose name is as long as a row 0.0 s", "size: 1 MB", "error: no"]
    assert "".join(terminal.rows()).replace(" ", "") == "".join(lines).replace(" ", "")
