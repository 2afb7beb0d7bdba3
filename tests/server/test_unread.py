"""A client that does not read its answer holds neither a slot nor a model, and loses its connection in the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from onnx_textgen import Model
from onnx_textgen.generation.scheduler import Scheduler
from onnx_textgen_server.openai.wire import OPENAI
from onnx_textgen_server.pool.model_pool import ModelPool, PoolLimits
from onnx_textgen_server.pool.sources import LoadOptions, find_sources
from onnx_textgen_server.serving import delivery, jobs
from onnx_textgen_server.serving.delivery import EventStream
from onnx_textgen_server.serving.jobs import Unread
from onnx_textgen_server.transport import connections
from support import live_server, patient_http
from support.live_server import served, served_pool, wait_until
from support.patient_http import LONGEST_WAIT

TINY = Path(__file__).parents[1] / "packages" / "ort"
SMALL = 4096
"""Bytes that the kernel keeps on each side; it would hold megabytes, and the server would see a client that reads."""
MESSAGES = [{"role": "user", "content": "Tell me of a dog."}]
LONG = {"ignore_eos": True, "seed": 1, "stream": True}
ROUTES = {
    "/v1/completions": LONG | {"prompt": "Once upon a time", "max_tokens": 150, "logprobs": 64},
    "/v1/chat/completions": LONG | {"messages": MESSAGES, "max_tokens": 150, "logprobs": True, "top_logprobs": 20},
    "/v1/responses": LONG | {"input": MESSAGES, "max_output_tokens": 400},
    "/v1/messages": LONG | {"messages": MESSAGES, "max_tokens": 400},
}


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's sockets keep few bytes that its clients have not read."""
    listen = live_server.listen

    def listen_small(host: str, port: int) -> list[socket.socket]:
        listeners = listen(host, port)
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        return listeners

    monkeypatch.setattr(live_server, "listen", listen_small)


@contextlib.contextmanager
def silent(url: str, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that sends a request and reads nothing."""
    content, place = json.dumps(body).encode(), urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.settimeout(LONGEST_WAIT)
        client.connect((place.hostname, place.port))
        head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
        client.sendall(head.encode() + b"\r\n\r\n" + content)
        yield client


def rest_of(client: socket.socket) -> bytes:
    """What a client can still read."""
    found = b""
    client.settimeout(0.5)
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while part := client.recv(2**16):
            found += part
    return found


@pytest.mark.parametrize("path", ROUTES)
def test_who_does_not_read_keeps_no_slot(chatty: Model, path: str) -> None:
    with served({"chatty": chatty}, max_texts=1) as (url, server), silent(url, path, ROUTES[path]) as client:
        assert wait_until(lambda: server.slots.taken == 1)
        assert wait_until(lambda: server.slots.taken == 0), "the text has ended"
        assert not server.slots.jobs
        other = {"prompt": "The dog", "max_tokens": 2}
        assert patient_http.post(f"{url}/v1/completions", json=other).status_code == 200
        assert "onnx_textgen_active_texts 0.0" in patient_http.get(f"{url}/metrics").text
        assert server.slots.unread.units > 0, "the answer waits for its client"
        client.shutdown(socket.SHUT_WR)
        client.close()
        assert wait_until(lambda: server.slots.unread.units == 0)


def test_who_does_not_read_keeps_no_model(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "one")
    pool = ModelPool(find_sources([str(tmp_path)], LoadOptions(device="cpu", threads=1))[0], PoolLimits(idle_seconds=0.05))
    body = ROUTES["/v1/completions"] | {"max_tokens": 60}
    with served_pool(pool) as (url, server), silent(url, "/v1/completions", body):
        member = pool.members["one"]
        assert wait_until(lambda: server.slots.taken == 1)
        assert wait_until(lambda: member.users == 0 and member.model is None), "it is closed when idle"
        assert server.slots.unread.units > 0
        pool.limits = PoolLimits()
        with silent(url, "/v1/completions", body):
            assert wait_until(lambda: server.slots.taken == 1)
            assert wait_until(lambda: server.slots.taken == 0)
            shutil.copytree(TINY, tmp_path / "new")
            (tmp_path / "one").rename(tmp_path / "old")
            (tmp_path / "new").rename(tmp_path / "one")
            answer = patient_http.post(f"{url}/v1/completions", json=body | {"stream": False})
            assert answer.status_code == 200, answer.text


def test_who_reads_nothing_loses_the_connection(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.1)
    with served({"story": story}) as (url, server), silent(url, "/v1/completions", ROUTES["/v1/completions"]) as client:
        assert wait_until(lambda: 'outcome="cancelled"' in patient_http.get(f"{url}/metrics").text)
        assert (server.slots.taken, server.slots.unread.units) == (0, 0)
        assert b"[DONE]" not in rest_of(client)


def test_who_reads_slowly_gets_the_whole_answer(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.3)
    body, found = ROUTES["/v1/completions"] | {"max_tokens": 16}, b""
    with served({"story": story}) as (url, server), silent(url, "/v1/completions", body) as client:
        assert wait_until(lambda: server.slots.unread.units > 0)
        while server.slots.unread.units:  # for longer than a client may read nothing
            found += client.recv(SMALL // 2)
            time.sleep(0.06)
        assert (found + rest_of(client)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_that_is_silent_for_long_says_that_it_goes_on(chatty: Model, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(scheduler: Scheduler) -> None:
        time.sleep(0.2)
        step(scheduler)

    step, body = Scheduler.step, ROUTES[path] | {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 2}
    monkeypatch.setattr(Scheduler, "step", slow)
    monkeypatch.setattr(delivery, "PING_SECONDS", 0.05)
    with served({"chatty": chatty}) as (url, _):
        text = patient_http.post(url + path, json=body).text
    ping = 'event: ping\ndata: {"type":"ping"}\n\n' if path == "/v1/messages" else ": ping\n\n"
    assert text.count(ping) > 2
    assert all(line.startswith(("data: ", "event: ")) for line in text.replace(ping, "").splitlines() if line)
    assert not text.endswith(ping)


def test_a_stream_that_cannot_be_closed_keeps_nothing(story: Model) -> None:
    async def broken() -> AsyncGenerator[str, None]:
        try:
            yield "event"
        finally:
            raise RuntimeError("closing failed")

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the client has gone")

    async def receive() -> dict[str, str]:
        await asyncio.sleep(LONGEST_WAIT)
        return {"type": "http.disconnect"}

    async def respond() -> None:
        held = contextlib.AsyncExitStack()
        held.callback(told.append, "released")
        job = jobs.Job.begin(story, ["A"], story.generator.config({}), 1, None)
        stream = EventStream(broken(), OPENAI, job, held, lambda: told.append("reported"))
        with pytest.raises(RuntimeError, match="closing failed"):
            await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    told: list[str] = []
    asyncio.run(respond())
    assert told == ["released", "reported"]


def test_what_all_clients_together_leave_unread_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNREAD_IN_ALL", 100)
    unread = Unread()
    assert unread.most == jobs.MAX_UNREAD
    with unread.counting("stream"):
        assert unread.add("stream", 100) == 100
        assert unread.most == jobs.FEW_UNREAD
        assert unread.add("stream", -1) == 99
        assert unread.most == jobs.MAX_UNREAD
    assert unread.add("stream", 100) == 0, "it has ended"
    assert unread.units == 0
