"""Speaks HTTP byte by byte, to a server in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import io
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..support.patient_http import read_to_end
from .law import Violation

LONGEST_WAIT = 300
"""Seconds for an answer: a guard, and no measure."""


class ChildServer:
    """A server in a process of its own, which starts when it is needed, prints its port, and ends with its standard input."""

    def __init__(self, module: str, *arguments: object) -> None:
        """`module`: of this package, which is run with the arguments."""
        self.command = [sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)]
        self.process: subprocess.Popen[str] | None = None
        self.port, self.log = 0, Path()

    def begin(self) -> bool:
        """Start it; False where it has been started before."""
        if self.process is not None:
            return False
        handle, name = tempfile.mkstemp(prefix="attack-server-")
        os.close(handle)
        self.log = Path(name)
        atexit.register(self.end)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None, "it is a pipe"
        self.port = int(self.process.stdout.readline())
        return True

    def end(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.log.unlink(missing_ok=True)

    def said(self) -> str:
        """What it wrote to stderr since this was asked last; raises `Violation` where it has ended."""
        assert self.process is not None, "it was begun"
        said = self.log.read_text(errors="replace")
        self.log.write_text("")  # it appends to what is there
        if self.process.poll() is not None:
            raise Violation(f"the server has ended with {self.process.returncode}: {said[-300:]!r}")
        return said

    def ask(self, data: bytes) -> bytes:
        """All that it answers to some bytes on one connection, until it closes that."""
        return ask(self.port, data)


def connect(port: int) -> socket.socket:
    """A connection to a server on this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=LONGEST_WAIT)


def ask(port: int, data: bytes) -> bytes:
    """All that a server answers to some bytes on one connection, until it closes that.

    It is read while the rest is sent: where a server answers and closes before it has read all, the reset discards what nobody has
    read yet.
    """
    with connect(port) as client, ThreadPoolExecutor(1) as reader:
        received = reader.submit(read_to_end, client)
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
        return received.result()


class Answer:
    """One answer of the server."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.kind = response.status, response.headers, response.headers.get("Content-Type", "")
        self.body = response.read()


class Received(io.BytesIO):
    """What was received, as `http.client` reads it: a socket that stays open between answers."""

    def makefile(self, *_: object) -> Received:
        """Itself."""
        return self

    def close(self) -> None:
        """Stay open."""


def answers_in(received: bytes, method: str = "POST") -> list[Answer]:
    """The answers in what was received; raises `Violation` for what is no HTTP."""
    source, found = Received(received), list[Answer]()
    try:
        while source.tell() < len(received):
            response = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]
            response.begin()
            found.append(Answer(response))
    except (http.client.HTTPException, ValueError) as error:
        raise Violation(f"no HTTP answer ({error!r}): {received!r:.300}") from error
    return found


def head(line: str, *headers: str) -> bytes:
    """The beginning of a request whose connection closes at its end."""
    return "\r\n".join([line, "Host: 127.0.0.1", *headers, "Connection: close", "", ""]).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with a body of JSON."""
    return head(f"POST {path} HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers) + body
