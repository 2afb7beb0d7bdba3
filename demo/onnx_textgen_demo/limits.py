"""What the page takes, and how much it does at a time.

All other limits are the runtime's: what it refuses is shown in its own words.
"""

from __future__ import annotations

from typing import Any, TypedDict

from onnx_textgen.errors import PromptError
from onnx_textgen.options.checks import shown

MAX_PROMPT_CHARS = 50_000
LONGEST_TEXT = 1024
"""A slider over a context of 100,000 tokens could not be set to anything in particular."""
MOST_SECONDS = 600.0
"""After which a text for another program ends: who calls by MCP and goes away is not noticed."""


class Runs(TypedDict):
    """How Gradio shares a model among listeners."""

    concurrency_limit: int
    concurrency_id: str


RUNS: Runs = {"concurrency_limit": 4, "concurrency_id": "model"}
"""So many runs at once, of all tabs and callers: the runtime computes their steps together. Others wait in the queue."""
OWN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Of every listener of the page: the tabs tell how far they are, and no other program is told of them. One that knows their
names can call them all the same: they do what the page's buttons do, within the same limits."""
RUNNING: dict[str, Any] = {**OWN, **RUNS}
"""Of one that runs a model."""
QUICK: dict[str, Any] = {**OWN, "queue": False}
"""Of one that only draws."""


def checked(prompt: str | None) -> str:
    """The prompt if it is a text of acceptable length; raises `PromptError` if not.

    Checked before it costs anything: the browser's own limits do not bind those who call the server directly.
    """
    if prompt is not None and not isinstance(prompt, str):
        raise PromptError(f"the prompt should be text, found {shown(prompt)}; give a string")
    if prompt and len(prompt) > MAX_PROMPT_CHARS:
        raise PromptError(f"the prompt has {len(prompt):,} characters and this page takes {MAX_PROMPT_CHARS:,}; shorten it")
    return prompt or ""
