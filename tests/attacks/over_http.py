"""Speaks HTTP byte by byte, to a server in a process of its own."""

from __future__ import annotations

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
from typing import Any

from support.patient_http import LONGEST_WAIT, read_to_end

from .law import Violation

ROOT = Path(__file__).resolve().parents[2]


class ChildServer:
    """A server in a process of its own, which prints its port, and ends with its standard input."""

    def __init__(self, module: str, *arguments: object) -> None:
        """`module`: of this package, which is run with the arguments."""
        command = [sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)]
        handle, name = tempfile.mkstemp(prefix="attack-server-")
        os.close(handle)
        self.log = Path(name)
        with self.log.open("ab") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.process = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)
        assert self.process.stdout is not None, "it is a pipe"
        line = self.process.stdout.readline()
        assert line, f"it does not begin: {self.log.read_text()}"
        self.port = int(line)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate()
        self.log.unlink()

    def said(self) -> str:
        """What it wrote to stderr since this was asked last; raises `Violation` where it has ended."""
        said = self.log.read_text(errors="replace")
        self.log.write_text("")  # it appends to what is there
        if self.process.poll() is not None:
            raise Violation(f"the server has ended with {self.process.returncode}: {said[-300:]!r}")
        return said

    def ask(self, data: bytes) -> bytes:
        """All that it answers to some bytes on one connection, until it closes that."""
        return ask(self.port, data)


def connect(port: int, room: int | None = None) -> socket.socket:
    """A connection to a server on this machine; `room`: bytes that the kernel keeps unread, instead of megabytes."""
    client = socket.socket()
    if room is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.settimeout(LONGEST_WAIT)
    client.connect(("127.0.0.1", port))
    return client


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
