"""Serves the page, only on this machine unless told otherwise.

Gradio's defaults suit a hosted service; this page is for one person. No file goes in or out, nothing is shared or reported,
and a foreign web page cannot reach the server under another host name (DNS rebinding).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from onnx_textgen.errors import OptionError
from onnx_textgen.hosts import EVERY_ADDRESS, in_url, is_public, listen, names_of

from .content_policy import PolicyGuard

ROOM = Path(__file__).parents[1]
STYLES = ("page.css", "chat/glyphs.css", "chat/chat.css", "speech/speech.css")
QUEUE_LENGTH = 16
VISITORS = 64
"""Visitors whose chats and steps are kept, with their keys and values; the least recent are dropped first."""

SHUTDOWN_SECONDS = 2
"""Seconds for requests to end when the page closes."""

# These open a public tunnel, files of this machine, or code editing from the browser.
DANGEROUS_VARIABLES = ("GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_VIBE_MODE")

THEME = gr.themes.Default(
    primary_hue="blue",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],  # System fonts: nothing is fetched from other hosts.
    font_mono=["ui-monospace", "Consolas", "monospace"],
).set(  # The theme's grey, and its blue under white text, have too little contrast.
    body_text_color_subdued="*neutral_500",
    block_info_text_color="*neutral_500",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
)


class Served:
    """A page served by a separate thread."""

    def __init__(self, page: gr.Blocks, app: FastAPI, listeners: list[socket.socket], address: str) -> None:
        self.address = address
        self._page = page
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_SECONDS))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": listeners}, name="page", daemon=True)
        self._thread.start()

    def wait_until_started(self) -> None:
        """Return when the server answers requests; raises `RuntimeError` if it ends before that."""
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the page's server ended before it answered; its log says why")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving. Running texts end, and so do the heartbeat streams to browsers."""
        self._page.close(verbose=False)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Connections that close now are not errors.
        self._server.should_exit = True
        self._thread.join()


def serve(
    page: gr.Blocks,
    *,
    host: str,
    port: int,
    allow_public: bool = False,
    open_browser: bool = False,
    query: str = "",
) -> Served:
    """Start serving in the background.

    `port`: 0 takes a free one. `query`: follows the address that the browser opens.

    Raises `OptionError` for an invalid host, a host that others can reach without `allow_public`, a port in use, and an
    environment that would open more than the page.
    """
    check_environment(os.environ)
    if is_public(host) and not allow_public:
        raise OptionError(f"--host {host} lets other machines use this page; add --allow-public if you want that")
    listeners = listen(host, port)
    page.state_session_capacity = VISITORS
    page.queue(max_size=QUEUE_LENGTH, default_concurrency_limit=1)
    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        show_error=False,
        max_file_size=1,  # No component of the page accepts a file.
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],  # no links, no footer
        theme=THEME,
        head=f"<script>{(ROOM / 'page.js').read_text(encoding='utf-8')}</script>",
        css_paths=[ROOM / path for path in STYLES],
        app_kwargs={
            "middleware": [
                Middleware(PolicyGuard),
                Middleware(TrustedHostMiddleware, allowed_hosts=names_of(host)),
            ],
            "docs_url": None,
            "redoc_url": None,
        },
    )
    name = "localhost" if host in EVERY_ADDRESS else in_url(host)
    served = Served(page, app, listeners, f"http://{name}:{listeners[0].getsockname()[1]}/")
    served.wait_until_started()
    if open_browser:
        webbrowser.open(f"{served.address}{query}")
    return served


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `OptionError` if a variable asks Gradio to open more than the page."""
    for name in DANGEROUS_VARIABLES:
        if environment.get(name):
            raise OptionError(f"{name} is set, which would open more than this page; unset it and start again")
