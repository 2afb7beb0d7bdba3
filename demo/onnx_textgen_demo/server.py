"""Serve the page on this machine and nowhere else, unless told otherwise.

Gradio's defaults fit a hosted service; here the page is one person's own. No file goes in or out, nothing is shared or reported,
and a foreign web page cannot reach the server under another host name (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from onnx_textgen.cli.hosts import in_url, is_public, names_of
from onnx_textgen.errors import OptionError

from .mcp_guard import McpGuard

QUEUE_LENGTH = 16
VISITORS = 64
"""Whose chats and walks are kept, with their keys and values; those of the one who was here longest ago go first."""

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


def serve(
    page: gr.Blocks, *, host: str, port: int, allow_public: bool = False, open_browser: bool = False, mcp: bool = False
) -> str:
    """Start serving in the background and give the address; `page.close()` ends it.

    `mcp`: the page's function `generate` is a tool of the Model Context Protocol too.

    Raises `OptionError` for a host that is none, one that others can reach without `allow_public`, a port that is taken, and an
    environment that would open more than the page.
    """
    check_environment(os.environ)
    if is_public(host) and not allow_public:
        raise OptionError(f"--host {host} lets other machines use this page; add --allow-public if you want that")
    page.queue(max_size=QUEUE_LENGTH, default_concurrency_limit=1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # `quiet` does not keep it from printing where the tool is
            _, address, _ = page.launch(
                server_name=in_url(host),
                server_port=port,
                inbrowser=open_browser,
                prevent_thread_lock=True,
                share=False,
                quiet=True,
                show_error=False,
                max_file_size=1,  # Nothing on the page takes a file.
                ssr_mode=False,
                mcp_server=mcp,
                enable_monitoring=False,
                run_history=False,
                state_session_capacity=VISITORS,
                footer_links=["settings"],
                theme=THEME,
                css_paths=Path(__file__).with_name("page.css"),
                app_kwargs={
                    "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names_of(host)), Middleware(McpGuard)],
                    "docs_url": None,
                    "redoc_url": None,
                },
            )
    except OSError as error:
        raise OptionError(f"port {port} of {host} cannot be used: it is taken, or not ours; choose another with --port") from error
    return str(address)


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `OptionError` if a variable asks Gradio to open more than the page."""
    for name in DANGEROUS_VARIABLES:
        if environment.get(name):
            raise OptionError(f"{name} is set, which would open more than this page; unset it and start again")
