"""Serves a site on this machine, with the headers that let its WebAssembly use threads.

It is for looking at a site before it is published, and not for visitors.
"""

from __future__ import annotations

import functools
import http.server
import socket
from collections.abc import Mapping
from pathlib import Path

ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
"""With both, a browser lets a page share memory among threads (https://web.dev/articles/coop-coep)."""
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


class SiteHandler(http.server.SimpleHTTPRequestHandler):
    """Answers with the files of a folder, and prints nothing for a request."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | TYPES  # a system may have other types for these
    isolation: Mapping[str, str] = ISOLATION

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in self.isolation.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (named by the base class)
        """Print nothing."""


class SiteServer(http.server.ThreadingHTTPServer):
    """A server of a folder over a socket that listens already."""

    daemon_threads = True

    def __init__(self, folder: Path, listener: socket.socket, handler: type[SiteHandler] = SiteHandler) -> None:
        address = listener.getsockname()[:2]
        super().__init__(address, functools.partial(handler, directory=str(folder)), bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listener, address

    @property
    def address(self) -> str:
        """The address of the site. Browsers keep files and run service workers only at https and at this machine's addresses."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that closed its connection."""
