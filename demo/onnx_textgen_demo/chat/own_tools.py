"""Who may run functions of this machine from the page.

The page listens on this machine only. Other users of the machine reach it there too, and a foreign web page in the user's browser
may send requests to it. So the command makes a key at its start, and shows it in the terminal as a part of the page's address.
Gradio's client sends the parameters of that address with every request; a request without the key has no functions.
"""

from __future__ import annotations

import dataclasses
import hmac
import secrets

import gradio as gr

from onnx_textgen.chat.own_functions import WARNING, OwnFunctions

PARAMETER = "key"


@dataclasses.dataclass(frozen=True, slots=True)
class OwnTools:
    """The functions of a file, and the key that opens them."""

    functions: OwnFunctions
    key: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def query(self) -> str:
        """What follows the page's address, for the user who started the page."""
        return f"?{PARAMETER}={self.key}"

    def is_open_to(self, request: gr.Request) -> bool:
        """Whether a request comes from a page that was opened with the key."""
        given = str(request.query_params.get(PARAMETER, ""))
        return hmac.compare_digest(given.encode(errors="replace"), self.key.encode())


@dataclasses.dataclass(slots=True)
class Permissions:
    """The functions that the user allowed to run without asking again, since the page was loaded."""

    names: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of a page that was opened with the key, and what its user has allowed."""

    functions: OwnFunctions
    permissions: Permissions


def tool_use(own: OwnTools | None, permissions: Permissions, request: gr.Request) -> ToolUse | None:
    """What a request may use; None without functions, and for a page without the key."""
    return ToolUse(own.functions, permissions) if own is not None and own.is_open_to(request) else None


def described(own: OwnTools, request: gr.Request, *, unread: str | None = None) -> str:
    """What a page says of the functions: their names, or how to open them. `unread`: a model whose calls cannot be read."""
    if not own.is_open_to(request):
        return "This page was started with functions for the model. To use them, open it by the address that the terminal shows."
    names = ", ".join(own.functions.tools)
    if unread is not None:
        return f"{unread} is told of {names}, but how it writes calls is not known: its calls stay text, and none can run."
    return f"The model may call {names}, after asking you. {WARNING}"
