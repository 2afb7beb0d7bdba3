"""Clients that say half of something, or nothing: they are not waited for, and keep nobody out."""

import contextlib
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from onnx_textgen import Model
from onnx_textgen_server.transport import connections
from support import patient_http
from support.live_server import held, served, wait_until
from support.patient_http import LONGEST_WAIT, read_to_end

HALF_HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: appl"
HALF_BODY = b'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"pr'
HALF_UNREAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{"
WHOLE = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextlib.contextmanager
def open_connections(url: str, count: int, begin: bytes) -> Iterator[list[socket.socket]]:
    """Clients that send so much and wait."""
    place = urlsplit(url)
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=LONGEST_WAIT)))
            found[-1].sendall(begin)
            if begin == WHOLE:  # answered, so that it waits again; one whose request is at work stays
                assert found[-1].recv(65536).startswith(b"HTTP/1.1 200")
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"", b"GET", HALF_HEADERS, WHOLE + b"GET", HALF_UNREAD])
def test_a_client_that_does_not_finish_its_headers_is_not_waited_for(
    story: Model, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with served({"story": story}) as (url, _), contextlib.ExitStack() as stack:
        with held(url):  # else a client that is slow to send would be left before it has begun
            (client,) = stack.enter_context(open_connections(url, 1, begin))
        assert read_to_end(client).startswith(b"HTTP/1.1 200" if b"/health" in begin else b"")


def test_a_client_that_sends_its_headers_letter_by_letter_is_not_waited_for(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with served({"story": story}) as (url, _), open_connections(url, 1, HALF_HEADERS) as (client,):
        client.settimeout(0.01)

        def is_closed() -> bool:
            try:
                client.sendall(b"a")
                return not client.recv(1)
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert wait_until(is_closed)


def test_a_client_that_does_not_finish_its_body_is_told(story: Model) -> None:
    with served({"story": story}, max_body_seconds=0.2) as (url, _), open_connections(url, 1, HALF_BODY) as (client,):
        answer = read_to_end(client)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body was not complete after 0.2 seconds" in answer
        assert 'onnx_textgen_refused_total{reason="408"} 1.0' in patient_http.get(f"{url}/metrics").text


def test_an_answer_may_take_longer_than_its_request(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    slow = {"prompt": "A", "max_tokens": 10**6, "context_limit": "shift", "ignore_eos": True, "max_time": 0.5}
    with served({"story": story}, max_body_seconds=0.1) as (url, _):
        for stream in (False, True):
            body = json.dumps(slow | {"stream": stream}).encode()
            kind = b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            with contextlib.ExitStack() as stack:
                with held(url):
                    begin = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + kind + body
                    (client,) = stack.enter_context(open_connections(url, 1, begin))
                answer = read_to_end(client)
            assert (answer[:12], b'"length"' in answer) == (b"HTTP/1.1 200", True)


@pytest.mark.parametrize("begin", [b"", HALF_HEADERS, HALF_BODY, WHOLE])
def test_where_there_are_too_many_connections_the_longest_waiting_goes_first(
    story: Model, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(connections, "max_connections", lambda: 5)
    monkeypatch.setattr(connections, "HEADER_SECONDS", LONGEST_WAIT)
    with served({"story": story}) as (url, _), open_connections(url, 8, begin) as clients:
        assert patient_http.get(f"{url}/health").json()["status"] == "ok"
        for client in clients[:4]:  # eight and one are four more than five
            read_to_end(client)
        clients[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            while clients[-1].recv(65536):
                pass


GARBAGE = b"zz\r\n\xff\r\n"
IN_CHUNKS = b" /health HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "begin", [b"\x16\x03\x01\r\n\r\n", WHOLE.replace(b"Host: 127.0.0.1\r\n", b""), b"GET" + IN_CHUNKS + GARBAGE]
)
def test_what_is_no_http_is_answered_in_json_and_the_connection_ends(
    story: Model, begin: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with served({"story": story}) as (url, _), open_connections(url, 1, begin) as (client,):
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/json" in head.lower()
    assert "this is not an HTTP request" in json.loads(body)["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info]


def test_garbage_behind_an_answer_ends_the_connection_and_nothing_is_raised(story: Model, caplog: pytest.LogCaptureFixture) -> None:
    with served({"story": story}) as (url, _), open_connections(url, 1, b"GET" + IN_CHUNKS) as (client,):
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        client.sendall(GARBAGE)
        assert b"HTTP/1.1" not in read_to_end(client)
    assert not [record for record in caplog.records if record.exc_info]
