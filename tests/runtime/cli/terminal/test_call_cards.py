"""A person reads a call as it is before it may run, and names as they are."""

from __future__ import annotations

import pytest

from onnx_textgen.answers.records import ToolCall
from onnx_textgen.cli.terminal import screen
from onnx_textgen.cli.terminal.chat_answer import show_call


def test_a_mark_that_reorders_text_is_an_escape_in_a_call_that_waits_for_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    show_call(ToolCall("c1", "re\u2066ad", {"file": "a\u202egpj.exe\x9b1m"}, ""))
    shown = capsys.readouterr().err
    assert r"re\u2066ad" in shown
    assert r"a\u202egpj.exe\u009b1m" in shown


@pytest.mark.parametrize("line", [screen.say, screen.note, screen.note_dim])
def test_a_line_with_a_name_in_it_has_no_control_characters_and_no_marks_of_direction(line, capsys) -> None:
    line("models/\x1b]0;owned\x07\u202egpj")
    captured = capsys.readouterr()
    assert "models/\ufffd]0;owned\ufffd\ufffdgpj" in captured.out + captured.err
