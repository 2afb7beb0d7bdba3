"""Serve the page on this machine and nowhere else, unless told otherwise.

Gradio's defaults fit a hosted service; here the page is one person's own. No file goes in or out, nothing is shared or reported,
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

from onnx_textgen.cli.hosts import EVERY_ADDRESS, in_url, is_public, listen, names_of
from onnx_textgen.errors import OptionError

from .frame_guard import FrameGuard
from .mcp_guard import McpGuard

QUEUE_LENGTH = 16
VISITORS = 64
"""Whose chats and walks are kept, with their keys and values; those of the one who was here longest ago go first."""

LONGEST_GOODBYE = 2
"""Seconds that requests have to end in when the page closes."""

# Each opens a door: a public tunnel, files of this machine, code edited from the browser.
DANGEROUS_VARIABLES = ("GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_VIBE_MODE")

THEME = gr.themes.Default(
    primary_hue="blue",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],  # The machine's own: nothing is fetched from elsewhere.
    font_mono=["ui-monospace", "Consolas", "monospace"],
).set(  # The theme's own grey is too pale to read, and so is its blue under white letters.
    body_text_color_subdued="*neutral_500",
    block_info_text_color="*neutral_500",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
)


class Served:
    """A page that is being served, in a thread of its own."""

    def __init__(self, page: gr.Blocks, app: FastAPI, listeners: list[socket.socket], address: str) -> None:
        self.address = address
        self._page = page
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=LONGEST_GOODBYE))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": listeners}, name="page", daemon=True)
        self._thread.start()

    def wait_until_started(self) -> None:
        """Return when requests are answered; raises `RuntimeError` if the server ends before it does."""
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the page's server ended before it answered; what it logged says why")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving. What is being written ends, and the streams that tell browsers that the page is alive."""
        self._page.close(verbose=False)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Connections that are cut off now are no errors.
        self._server.should_exit = True
        self._thread.join()


def serve(
    page: gr.Blocks, *, host: str, port: int, allow_public: bool = False, open_browser: bool = False, mcp: bool = False
) -> Served:
    """Start serving in the background.

    `port`: 0 takes a free one. `mcp`: the page's function `generate` is a tool of the Model Context Protocol too.

    Raises `OptionError` for a host that is none, one that others can reach without `allow_public`, a port that is taken, and an
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
        max_file_size=1,  # Nothing on the page takes a file.
        ssr_mode=False,
        mcp_server=mcp,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],  # no links, no footer
        theme=THEME,
        css_paths=Path(__file__).with_name("page.css"),
        app_kwargs={
            "middleware": [
                Middleware(FrameGuard),
                Middleware(TrustedHostMiddleware, allowed_hosts=names_of(host)),
                Middleware(McpGuard),
            ],
            "docs_url": None,
            "redoc_url": None,
        },
    )
    name = "localhost" if host in EVERY_ADDRESS else in_url(host)
    served = Served(page, app, listeners, f"http://{name}:{listeners[0].getsockname()[1]}/")
    served.wait_until_started()
    if open_browser:
        webbrowser.open(served.address)
    return served


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `OptionError` if a variable asks Gradio to open more than the page."""
    for name in DANGEROUS_VARIABLES:
        if environment.get(name):
            raise OptionError(f"{name} is set, which would open more than this page; unset it and start again")
