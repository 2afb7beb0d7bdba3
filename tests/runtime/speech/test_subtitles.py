"""Transcriptions as subtitles."""

from __future__ import annotations

from onnx_textgen.results import Segment
from onnx_textgen.speech.subtitles import as_srt, as_vtt, line_of

SEGMENTS = [Segment(0, 1.5, " One --> two", (), 0, 0, 0, 1), Segment(3600.25, 3601.0, " Three", (), 0, 0, 0, 1)]


def test_subrip() -> None:
    assert as_srt(SEGMENTS) == "1\n00:00:00,000 --> 00:00:01,500\nOne -> two\n\n2\n01:00:00,250 --> 01:00:01,000\nThree\n"


def test_webvtt() -> None:
    assert as_vtt(SEGMENTS).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne -> two\n\n01:00:00.250")


def test_lines_of_a_terminal() -> None:
    assert line_of(SEGMENTS[1]) == "[01:00:00.250 --> 01:00:01.000] Three"
