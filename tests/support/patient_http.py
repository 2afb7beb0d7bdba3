"""HTTP of the tests. Answers are waited for as long as a loaded machine may need: `httpx` by itself gives up after five seconds."""

import contextlib
import functools
import socket

import httpx

LONGEST_WAIT = 300
"""Seconds: a guard, and no measure."""

get = functools.partial(httpx.get, timeout=LONGEST_WAIT)
head = functools.partial(httpx.head, timeout=LONGEST_WAIT)
options = functools.partial(httpx.options, timeout=LONGEST_WAIT)
post = functools.partial(httpx.post, timeout=LONGEST_WAIT)
stream = functools.partial(httpx.stream, timeout=LONGEST_WAIT)


def read_to_end(client: socket.socket) -> bytes:
    """All that is sent until the connection closes; raises `TimeoutError` where it does not."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            received += piece
    return received
