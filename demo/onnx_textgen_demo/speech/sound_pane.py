"""A sound from the browser: recorded, chosen or dropped, and decoded there to samples, so that no file is uploaded.

The component's value is the samples, 16-bit numbers in base64, or None.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onnx_textgen.errors import AudioError
from onnx_textgen.options.checks import shown

RATE = 16_000
"""Samples a second that the browser makes."""
MOST_SECONDS = 1800
"""A longer sound would stay long on its way from the browser; files of any length are for `onnx-textgen transcribe`."""

MOST_CHARACTERS = 4 * (2 * RATE * (MOST_SECONDS + 1) // 3 + 1)
"""What those samples are in base64."""

TEMPLATE = """
<div>
  <button type="button" class="record" aria-pressed="false">Record</button>
  <button type="button" class="choose">Choose a file</button>
  <input type="file" accept="audio/*,video/*" hidden aria-label="Sound file">
  <span>or drop one here</span>
</div>
<audio controls hidden aria-label="Sound"></audio>
<p role="status"></p>
"""
EVENTS = f"const RATE = {RATE}, MOST_SECONDS = {MOST_SECONDS};\n" + Path(__file__).with_name("sound_pane.js").read_text(
    encoding="utf-8"
)


def samples_of(value: object) -> npt.NDArray[np.int16]:
    """The samples that a browser sent; raises `AudioError` for none, and for anything else."""
    if not value:
        raise AudioError("there is no sound yet; record one, or choose a file")
    if not isinstance(value, str):
        raise AudioError(f"the sound should be samples in base64, found {shown(value)}; record one, or choose a file")
    try:
        data = base64.b64decode(value, validate=True) if len(value) <= MOST_CHARACTERS else b"?"
    except (binascii.Error, ValueError):
        data = b"?"  # half a sample
    if len(data) % 2:
        raise AudioError(f"the sound should be 16-bit samples of at most {MOST_SECONDS // 60} minutes; choose another file")
    return np.frombuffer(data, "<i2")
