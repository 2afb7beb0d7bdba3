"""Which wire format a path has."""

from __future__ import annotations

from .anthropic.wire import ANTHROPIC
from .ollama.wire import OLLAMA
from .openai.wire import OPENAI
from .serving.wire import WireFormat


def wire_format_of(path: str) -> WireFormat:
    """The wire format of a path, also of one that does not exist; most are OpenAI's."""
    if path.startswith("/api/"):
        return OLLAMA
    return ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else OPENAI
