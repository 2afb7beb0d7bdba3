"""HTTP of the tests. Answers are waited for as long as a loaded machine may need: `httpx` by itself gives up after five seconds."""

import contextlib
import functools
import socket

import httpx

LONGEST_WAIT = 300
"""Seconds: a guard, and no measure."""

PATIENCE = {"timeout": LONGEST_WAIT, "verify": httpx.create_ssl_context()}
"""One context for all: without it, each call reads the certificates of the system anew, though nothing here is encrypted."""

get = functools.partial(httpx.get, **PATIENCE)
head = functools.partial(httpx.head, **PATIENCE)
options = functools.partial(httpx.options, **PATIENCE)
post = functools.partial(httpx.post, **PATIENCE)
stream = functools.partial(httpx.stream, **PATIENCE)


def read_to_end(client: socket.socket) -> bytes:
    """All that is sent until the connection closes; raises `TimeoutError` where it does not."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            received += piece
    return received
