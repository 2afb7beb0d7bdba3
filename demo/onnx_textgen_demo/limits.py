"""The limits of the page: prompt length, text length, time, and runs at once.

All other limits are those of the runtime; its error messages are shown unchanged.
"""

from __future__ import annotations

from typing import Any, TypedDict

from onnx_textgen.errors import PromptError
from onnx_textgen.options.checks import shown

MAX_PROMPT_CHARS = 50_000
MOST_SECONDS = 600.0
"""Time limit of a text for another program, because the page does not notice when that program disconnects."""


class Runs(TypedDict):
    """Gradio's limits on concurrent listeners."""

    concurrency_limit: int
    concurrency_id: str


RUNS: Runs = {"concurrency_limit": 4, "concurrency_id": "model"}
"""At most this many runs at once, of all tabs and callers; the runtime computes their steps together. Others wait in the queue."""
OWN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of every listener of the page: the tabs show their own progress, and the API does not list the listener. A program that
knows its name can still call it: it does what the page's buttons do, within the same limits. What runs
functions of the user asks for a key, see `chat.own_tools`."""
RUNNING: dict[str, Any] = {**OWN, **RUNS}
"""Settings of a listener that runs a model."""
QUICK: dict[str, Any] = {**OWN, "queue": False}
"""Settings of a listener that only draws."""


def checked(prompt: str | None) -> str:
    """The prompt, if it is a text of allowed length; raises `PromptError` if not.

    The browser's limits do not bind clients that call the server directly.
    """
    if prompt is not None and not isinstance(prompt, str):
        raise PromptError(f"the prompt should be text, found {shown(prompt)}; give a string")
    if prompt and len(prompt) > MAX_PROMPT_CHARS:
        raise PromptError(f"the prompt has {len(prompt):,} characters and this page takes {MAX_PROMPT_CHARS:,}; shorten it")
    return prompt or ""
