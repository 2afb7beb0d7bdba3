"""A transcription as lines with times, and as subtitles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..results import Segment


def clock(seconds: float, mark: str) -> str:
    """A time of subtitles; `mark`: between seconds and milliseconds.

    >>> clock(3661.5, ","), clock(59.9996, ".")
    ('01:01:01,500', '00:01:00.000')
    """
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{milliseconds:03}"


def line_of(segment: Segment) -> str:
    """A segment with its times, for a person."""
    return f"[{clock(segment.start, '.')} --> {clock(segment.end, '.')}] {segment.text.strip()}"


def as_srt(segments: Sequence[Segment]) -> str:
    """Subtitles in the form SubRip."""
    blocks = (
        f"{number}\n{clock(each.start, ',')} --> {clock(each.end, ',')}\n{shown(each)}\n"
        for number, each in enumerate(segments, start=1)
    )
    return "\n".join(blocks)


def as_vtt(segments: Sequence[Segment]) -> str:
    """Subtitles in the form WebVTT."""
    blocks = (f"\n{clock(each.start, '.')} --> {clock(each.end, '.')}\n{shown(each)}\n" for each in segments)
    return "WEBVTT\n" + "".join(blocks)


def shown(segment: Segment) -> str:
    """The text of a segment where an arrow parts times."""
    return segment.text.strip().replace("-->", "->")


SUBTITLES: Mapping[str, Callable[[Sequence[Segment]], str]] = {"srt": as_srt, "vtt": as_vtt}
