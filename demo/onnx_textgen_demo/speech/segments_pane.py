"""What is said in a sound: a line for each segment, with its time and, once all is written, files to save."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_textgen.speech.subtitles import SUBTITLES

from ..view import percent

if TYPE_CHECKING:
    from onnx_textgen import Segment, Transcription

EVENTS = Path(__file__).with_name("segments_pane.js").read_text(encoding="utf-8")
HINT = '<p class="hint">Record something or choose a file, and press <b>Transcribe</b>: its lines appear one by one.</p>'


def segments_html(segments: Sequence[Segment], made: Transcription | None = None) -> str:
    """The segments so far, and the files of a finished transcription."""
    lines = "".join(map(line_html, segments))
    listed = f'<ol tabindex="0" aria-label="What is said">{lines}</ol>' if lines else ""
    nothing = '<p class="hint">Nobody speaks in this sound.</p>' if made is not None and not segments else ""
    return f'<section class="said">{listed}{nothing}{"" if made is None else files_html(made)}</section>'


def line_html(segment: Segment) -> str:
    """A segment: a button that plays it, and its text, with the probability that the model gave its tokens when pointed at."""
    minutes, seconds = divmod(int(segment.start), 60)
    play = f'<button type="button" data-start="{segment.start:.2f}" data-end="{segment.end:.2f}">{minutes}:{seconds:02}</button>'
    likely = f"{percent(math.exp(segment.mean_logprob))} a token"
    return f'<li>{play}<span title="{likely}">{escape(segment.text.strip())}</span></li>'


def files_html(made: Transcription) -> str:
    """Links that save a transcription in each form."""
    data = json.dumps(dataclasses.asdict(made), ensure_ascii=False, indent=1)
    forms = {"txt": f"{made.text}\n", **{form: write(made.segments) for form, write in SUBTITLES.items()}, "json": data}
    links = "".join(link_html(form, text) for form, text in forms.items())
    return f'<p class="files"><button type="button" class="copy">Copy the text</button>{links}</p>'


def link_html(form: str, text: str) -> str:
    """A link that saves a text: its address holds it."""
    data = base64.b64encode(text.encode()).decode()
    return f'<a download="transcription.{form}" href="data:application/octet-stream;base64,{data}">Save {form}</a>'
