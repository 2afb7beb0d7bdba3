"""The pictures of the next message, which the browser makes small and keeps: no file is uploaded.

The component's value is a list of data URLs; `user_pictures` checks what comes to Python.
"""

from __future__ import annotations

from pathlib import Path

EVENTS = Path(__file__).with_name("pictures_pane.js").read_text(encoding="utf-8")
TEMPLATE = """
<button type="button" aria-label="Add a picture" title="Add a picture: choose, drop or paste it">Picture</button>
<input type="file" accept="image/*" multiple hidden aria-label="Pictures">
<ul aria-label="Pictures of the next message"></ul>
<p role="status"></p>
"""
