"""Which wire format a request has."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from ..anthropic.wire import ANTHROPIC, VERSION_HEADER
from ..ollama.wire import OLLAMA
from ..openai.wire import OPENAI
from ..serving.wire import WireFormat


def wire_format_of(scope: Scope) -> WireFormat:
    """The wire format of a request, also to a path that does not exist; most are OpenAI's."""
    path: str = scope["path"]
    if path.startswith("/api/"):
        return OLLAMA
    is_anthropic = path == "/v1/messages" or path.startswith("/v1/messages/") or VERSION_HEADER in Headers(scope=scope)
    return ANTHROPIC if is_anthropic else OPENAI
