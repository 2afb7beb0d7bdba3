"""Requests to the server that are none, that are of other types than it takes, that never end, or that are very many."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
from hypothesis import given, note
from hypothesis import strategies as st

from onnx_textgen.options.generation_config import OPTION_NAMES
from support.examples import examples
from support.patient_http import LONGEST_WAIT, read_to_end

from .law import HARMLESS, REFUSED, Verdict, Violation, check_line, count
from .over_http import Answer, ChildServer, answers_in, connect, head, post
from .values import LONG_DIGITS, damaged, json_texts
from .wire_child import MOST_TEXTS, UNREAD_BYTES

CONTROL = post("/v1/completions", b'{"model": "plain", "prompt": "The", "max_tokens": 4, "temperature": 0}')
METRICS = head("GET /metrics HTTP/1.1")
IDLE = b"onnx_textgen_active_texts 0.0"
DONE = b"data: [DONE]"
FEW_FILES, HALVES = 200, 250
"""`ulimit -n` of a server that more clients than that send half of a request to."""


class Served(ChildServer):
    """A server of the tiny model."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("wire_child", *arguments)
        self.text = self.write()

    def write(self) -> str:
        """What it writes for a request with which nothing is wrong."""
        (answer,) = answers_in(self.ask(CONTROL))
        if answer.status != 200:
            raise Violation(f"afterwards a request is answered with {answer.status}: {answer.body!r:.200}")
        text: str = json.loads(answer.body)["choices"][0]["text"]
        return text

    def wait_until_free(self) -> None:
        """Return when no text holds a slot: it may need a moment to see that clients have gone, or to end their texts."""
        end = time.monotonic() + LONGEST_WAIT
        while IDLE not in self.ask(METRICS):
            if time.monotonic() > end:
                raise Violation("texts go on without end")
            time.sleep(0.05)

    def check_health(self) -> None:
        """Raise `Violation` where it does not answer /health."""
        (answer,) = answers_in(self.ask(HEALTH))
        if answer.status != 200:
            raise Violation(f"/health is answered with {answer.status}")

    def check(self) -> None:
        """Raise `Violation` where it has ended, writes something else now, or told of what it could not handle."""
        if (text := self.write()) != self.text:
            raise Violation(f"afterwards it writes {text!r} in place of {self.text!r}")
        if "Traceback" in (said := self.said()) or "\nERROR" in f"\n{said}":
            raise Violation(f"the server says: {said[-600:]!r}")


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    """A server that waits long for headers and bodies."""
    with contextlib.closing(Served(600)) as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    """A server that waits a second for them."""
    with contextlib.closing(Served(1.0)) as server:
        yield server


def check_error(error: Any) -> None:
    """Raise `Violation` for an error that is none of a client's, or no line."""
    if not isinstance(error, dict) or error.get("type") == "server_error":
        raise Violation(f"the error is {error!r:.300}")
    check_line(str(error.get("message", "")))


def verdict_on(answer: Answer, method: str = "POST") -> Verdict:
    """The verdict on one answer: a 200 that can be read, or a 4xx that tells in a line what is wrong."""
    if answer.status not in (200, *range(400, 500)):
        raise Violation(f"answered with {answer.status}: {answer.body!r:.300}")
    if method == "HEAD":
        return REFUSED if answer.status >= 400 else HARMLESS
    if answer.kind.startswith("text/event-stream") and answer.status == 200:
        return verdict_on_stream(answer.body)
    if answer.kind.startswith("text/plain") and b"onnx_textgen" in answer.body and answer.status == 200:
        return HARMLESS  # the metrics
    try:
        told = json.loads(answer.body)
    except ValueError as error:
        raise Violation(f"{answer.status} is no JSON: {answer.body!r:.300}") from error
    if answer.status == 200:
        if not isinstance(told, dict) or "error" in told:
            raise Violation(f"200 is {told!r:.300}")
        return HARMLESS
    check_error(told.get("error") if isinstance(told, dict) else told)
    return REFUSED


def verdict_on_stream(body: bytes) -> Verdict:
    """The verdict on a stream of events."""
    lines = [line for line in body.split(b"\n") if line]
    if not lines or not all(line.startswith(b"data: ") for line in lines):
        raise Violation(f"no stream of events: {body!r:.300}")
    for line in lines:
        if line != DONE and "error" in (told := json.loads(line.removeprefix(b"data: "))):
            check_error(told["error"])
            return REFUSED
    if lines[-1] != DONE:
        raise Violation(f"the stream ends with {lines[-1]!r:.300}")
    return HARMLESS


BODY = b'{"model": "plain", "prompt": "A", "max_tokens": 1}'
GOOD = post("/v1/completions", BODY)
STAYS = GOOD.replace(b"Connection: close\r\n", b"")
"""One whose connection stays open."""
STREAM = post("/v1/completions", BODY.replace(b"{", b'{"stream": true, ')).replace(b"Connection: close\r\n", b"")
HEALTH = head("GET /health HTTP/1.1")
CHUNKED = head("POST /v1/completions HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked")
CHUNKS_STAY = CHUNKED.replace(b"Connection: close\r\n", b"")
HEALTH_IN_CHUNKS = head("GET /health HTTP/1.1", "Transfer-Encoding: chunked").replace(b"Connection: close\r\n", b"")
A_BLANK = b"1\r\n \r\n"
WEBSOCKET = "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
JSON_KIND = b"application/json"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
MALFORMED = (
    *(post("/v1/completions", b"--x\r\n" * 99).replace(JSON_KIND, b"multipart/form-data; boundary=x"), b"GET /health\r\n\r\n"),
    *(post("/v1/completions", b"prompt=A").replace(JSON_KIND, b"application/x-www-form-urlencoded"), STAYS * 100 + GOOD),
    *(HEALTH.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"), HEALTH.replace(b"1.1", b"9.9")),
    *(head("GET /v1/completions HTTP/1.1", *WEBSOCKET).replace(b": close", b": Upgrade, close"), HEALTH.replace(b" HTTP/1.1", b"")),
    *(CHUNKED.replace(b"Transfer", b"Content-Length: 5\r\nTransfer") + b"0\r\n\r\n" + SMUGGLED, HEALTH.replace(b"127.0.0.1", b"")),
    *(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", STREAM + b"\xff\0garbage\r\n\r\n" * 20),
    *(GOOD.replace(b"Content-Length", b"Content-Length: %d\r\nContent-Length" % len(BODY)), HEALTH.replace(b"GET", b"G" * 60_000)),
    *(GOOD.replace(b"application/json", b"/;;=\xff, application/json; charset=no-such"), HEALTH.replace(b"/health", b"/\xff\xfe")),
    *(GOOD.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"), HEALTH.replace(b"Host", b": x\r\nHost")),
    *(HEALTH.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: evil.example"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
    *(HEALTH.replace(b"Host: 127.0.0.1", b"Host: evil.example\r\nHost: 127.0.0.1"), HEALTH.replace(b"127.0.0.1", b"127.0.0.1\xff")),
    *(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n", HEALTH.replace(b"/health", b"/" + b"a" * 60_000)),
    *(HEALTH.replace(b"/health", b"/v1/models/a%0d%0aX-Evil:%201%0d%0a%0d%0a"), b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    *(HEALTH.replace(b"/health", b"/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), HEALTH_IN_CHUNKS + A_BLANK * 100_000 + b"zz\r\n"),
    *(GOOD.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: many"), GOOD.replace(b"application/json", b"text/plain")),
    *(GOOD.replace(b"Content-Length", b"Content-Length: 4\r\nContent-Length"), CHUNKED + b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
    *(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"a" * 2**20, HEALTH.replace(b"/health", b"/%s%n%x%" + b"%" * 300)),
    *(GOOD.replace(b"Content-Length: ", b"Content-Length: " + b"9" * 5_000), post("/v1/completions", BODY, "Expect: 100-continue")),
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), HEALTH.replace(b"127.0.0.1", b"127.0.0.1@evil.example")),
    *(GOOD.replace(b"Content-Length: ", b"Content-Length: " + b"9" * 18), GOOD.replace(b"Content-Length: ", b"Content-Length: 0x")),
    *(CHUNKED.replace(b"chunked", b"chunked, identity") + b"0\r\n\r\n", GOOD.replace(b"Content-Length: ", b"Content-Length: \xb2")),
    *(HEALTH.replace(b"Host", b"X: " + b"a" * 60_000 + b"\r\nHost"), CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n"),
    *(HEALTH.replace(b"Connection: close\r\n", b"") * 100 + HEALTH, head("GET /health HTTP/1.1", "Content-Length: 5") + b"hello"),
    *(post("/v1/completions", BODY, "Origin: http://evil.example"), CHUNKED.replace(b": chunked", b":\tchunked") + b"0\r\n\r\n"),
    *(CHUNKS_STAY + b"%x\r\n" % 2**23 + bytes(2**23) + b"zz\r\n", HEALTH.replace(b"/health", b"http://evil.example/health")),
    *(GOOD.replace(b"Content-Length: ", b"Content-Length: 4, "), CHUNKED + b"2;" + b"a" * 70_000 + b"\r\nab\r\n0\r\n\r\n"),
    *(HEALTH.replace(b"Host", b"A: b\r\n" * 10_000 + b"Host"), post("/v1/completions", BODY, "Expect: the-unexpected"), bytes(100)),
    *(GOOD.replace(b"Content-Length: ", b"Content-Length: -"), GOOD.replace(b"Content-Length: ", b"Content-Length: +")),
    *(CHUNKED.replace(b"chunked", b"xchunked") + b"0\r\n\r\n", post("/v1/completions", BODY, "Content-Encoding: gzip")),
    *(CHUNKED + b"2\r\n{}\r\n0\r\nHost: evil.example\r\n\r\n", HEALTH.replace(b"/health", b"/../../../../etc/passwd")),
    *(STAYS.replace(b": %d" % len(BODY), b": 2") + SMUGGLED, CHUNKED + b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 20_000, b"\r\n" * 100),
    *(HEALTH.replace(b"/health", b"/%ff%fe%00%0d%0a"), HEALTH.replace(b"127.0.0.1", b"\r\n 127.0.0.1")),
    *(HEALTH.replace(b"GET /health", b"OPTIONS *"), HEALTH.replace(b"127.0.0.1", b"127.0.0.1\0"), HEALTH.replace(b"GET", b"G E T")),
    *(HEALTH_IN_CHUNKS + b"zz\r\n\xff\xff\r\n" * 9, HEALTH.replace(b"Host: 127.0.0.1\r\n", b""), HEALTH.replace(b"GET", b"TRACE")),
    *(HEALTH.replace(b"Host", b"nothing\r\nHost"), HEALTH.replace(b"Host", b"X: a\0b\r\nHost"), STAYS + b"\xff\0garbage\r\n\r\n"),
    *(CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n", CHUNKED + b"2\r\nabcdef\r\n0\r\n\r\n", HEALTH.replace(b"Host:", b"Host :")),
    *(CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n", HEALTH.replace(b"\r\n", b"\n")),
    HEALTH.replace(b"\r\n", b"\r"),
)  # fmt: skip
PIECES = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b" ",
    b":",
    b"\t",
    b"%",
    b"/",
    b"HTTP/1.1",
    b"\r\n\r\n",
    b"9" * 50,
    b"Host: 127.0.0.1\r\n",
)
SEEDS = (GOOD, HEALTH, CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n", post("/tokenize", b'{"model": "plain", "prompt": "A"}'))


seeds = st.sampled_from(SEEDS)
places_of_seeds = st.integers(0, max(map(len, SEEDS)))
mutated = seeds.flatmap(damaged) | st.builds(
    lambda seed, start, end, piece: seed[:start] + piece + seed[end:],
    seeds,
    places_of_seeds,
    places_of_seeds,
    st.sampled_from(PIECES),
)


def check_request(server: Served, data: bytes) -> None:
    """Send a request that is none, or nearly one: each answer is right, or a 4xx; none at all where it is not whole."""
    method = "HEAD" if data.startswith(b"HEAD ") else "POST"  # HEAD's answers have no body
    verdicts = [verdict_on(answer, method) for answer in answers_in(server.ask(data), method)]
    server.check()
    count(HARMLESS if verdicts and set(verdicts) == {HARMLESS} else REFUSED)


@examples(25)
@given(st.sampled_from(range(len(MALFORMED))))
def test_a_malformed_request_is_answered_with_a_4xx_in_json_or_closed(impatient: Served, number: int) -> None:
    note(f"{MALFORMED[number]!r:.300}")
    check_request(impatient, MALFORMED[number])


@examples(25)
@given(mutated)
def test_a_request_of_changed_bytes_is_answered_or_closed(impatient: Served, data: bytes) -> None:
    check_request(impatient, data)


NAMES = (
    *("model", "prompt", "messages", "tokens", "n", "best_of", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "response_format", "logprobs"),
    *("top_logprobs", "echo", "suffix", "user", "metadata", "store", "service_tier", "tools", "tool_choice", "parallel_tool_calls"),
    *("functions", "function_call", "modalities", "audio", "prediction", "reasoning_effort", "web_search_options", "verbosity"),
    *("add_special_tokens", "skip_special_tokens", "safety_identifier", "prompt_cache_key", "__class__", "model_config", "", "\0"),
)
ALL_NAMES = sorted({*NAMES, *OPTION_NAMES})
HELLO = '[{"role": "user", "content": "A"}]'
BASES = {
    "/v1/completions": {"model": '"plain"', "prompt": '"A"', "max_tokens": "2"},
    "/v1/chat/completions": {"model": '"chatty"', "messages": HELLO, "max_tokens": "2"},
    "/tokenize": {"model": '"plain"', "prompt": '"A"'},
    "/detokenize": {"model": '"plain"', "tokens": "[5]"},
}


def check_body(server: Served, path: str, body: bytes) -> None:
    """Send a body: one answer, which is right or a 4xx."""
    answers = answers_in(server.ask(post(path, body)))
    if len(answers) != 1:
        raise Violation(f"{len(answers)} answers")
    verdict = verdict_on(answers[0])
    server.check()
    count(verdict)


def in_json(fields: dict[str, str]) -> bytes:
    """An object of values that are JSON."""
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in fields.items())}}}".encode()


@examples(60)
@given(st.sampled_from(("/v1/completions", "/v1/chat/completions")), st.sampled_from(NAMES), json_texts)
def test_any_value_in_any_field_is_accepted_or_answered_with_a_4xx_in_one_line(
    patient: Served, path: str, name: str, value: str
) -> None:
    check_body(patient, path, in_json(BASES[path] | {name: value}))


@examples(60)
@given(st.data(), st.sampled_from(list(BASES)))
def test_any_values_in_several_fields_at_once_are_accepted_or_answered_with_a_4xx_in_one_line(
    patient: Served, data: st.DataObject, path: str
) -> None:
    names = st.sampled_from(list(BASES[path])) | st.sampled_from(ALL_NAMES)
    changed = data.draw(st.dictionaries(names, json_texts, min_size=2, max_size=3))
    check_body(patient, path, in_json(BASES[path] | changed))


def wish(more: str) -> bytes:
    """A completion with one thing more."""
    return BODY.replace(b"{", b"{%b, " % more.encode(), 1)


def schema(text: str) -> bytes:
    """A completion that follows a schema."""
    return wish(f'"response_format": {{"type": "json_schema", "json_schema": {{"schema": {text}}}}}')


COSTLY = {
    "a schema of 10,000 depths": schema('{"items": ' * 10_000 + "{}" + "}" * 10_000),
    "a schema elsewhere": schema('{"$ref": "http://127.0.0.1:9/a"}'),
    "a schema in itself": schema('{"allOf": [{"$ref": "#"}]}'),
    "biases that rule out all": wish('"logit_bias": {' + ", ".join(f'"{i}": -1e30' for i in range(258)) + "}"), "a number": b"5",
    "100,000 biases": wish('"logit_bias": {' + ", ".join(f'"{i}": 1' for i in range(100_000)) + "}"), "no end": BODY[:-1],
    "a number with 1 M digits behind the point": wish('"temperature": 0.' + "1" * 1_000_000), "100,000 brackets": b"[" * 100_000,
    "a regex of 100,000 brackets": wish('"regex": "' + "(" * 100_000 + ")" * 100_000 + '"'), "two JSON values": BODY + BODY,
    "100,000 names that are none": wish(", ".join(f'"x{i}": 1' for i in range(100_000))), "UTF-16": BODY.decode().encode("utf-16"),
    "all tokens suppressed": wish('"bad_words_ids": ' + str([[i] for i in range(258)])), "a mark of UTF-8": b"\xef\xbb\xbf" + BODY,
    "a bias of an id with 5,000 digits": wish(f'"logit_bias": {{"{LONG_DIGITS}": 1}}'), "3 MB of blanks": BODY + b" " * 3_000_000,
    "a prompt of 50,000 brackets": wish(f'"prompt": {"[" * 50_000}{"]" * 50_000}'), "a null byte": BODY.replace(b'"A"', b'"\0"'),
    "a grammar of 1 MB": wish('"grammar": "start: ' + '\\"a\\" ' * 200_000 + '"'), "the same key twice": wish('"prompt": "B"'),
    "a million token ids": BODY.replace(b'"A"', b"[" + b"5, " * 999_999 + b"5]"), "UTF-32": BODY.decode().encode("utf-32"),
    "a million prompts": BODY.replace(b'"A"', b"[" + b'"", ' * 900_000 + b'""]'), "null bytes behind": BODY + bytes(100),
    "a regex of great numbers": wish('"regex": "((a{1,1000}){1,1000}){1,1000}"'), "a text": b'"A"', "a blank": b" ",
    "100,000 objects in each other": b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "5 MB": wish('"user": "' + "a" * 5_000_000 + '"'),
    "a regex that goes back without end": wish('"regex": "(a|a)*(b|b)*(a*)*$"'), "a name of 1 MB": wish(f'"{"a" * 1_000_000}": 1'),
    "a number with a great exponent": wish('"temperature": 1e' + "9" * 1_000), "null": b"null", "a list": b"[]", "nothing": b"",
    "100,000 stop strings": wish('"stop": [' + '"a", ' * 99_999 + '"a"]'), "half a character": BODY.replace(b'"A"', b'"\xe2\x82"'),
    "257 prompts": BODY.replace(b'"A"', b"[" + b'"A", ' * 256 + b'"A"]'), "3 MB of digits": wish('"seed": ' + "9" * 3_000_000),
    "a stop string of 1 MB": wish('"stop": "' + "a" * 1_000_000 + '"'), "UTF-16 without a mark": BODY.decode().encode("utf-16-le"),
    "a model's name of 1 MB": BODY.replace(b"plain", b"a" * 1_000_000),
    "a regex that matches nothing": wish('"regex": "[^\\\\s\\\\S]"'), "100,000 brackets, closed": b"[" * 100_000 + b"]" * 100_000,
    "a surrogate in UTF-8": BODY.replace(b'"A"', b'"\xed\xa0\x80"'), "a list of 100,000 objects": b"[" + b"{}, " * 99_999 + b"{}]",
    "bytes that are no UTF-8": BODY.replace(b'"A"', b'"\xff\xfe"'), "a grammar of itself": wish('"grammar": "start: start start"'),
    "4 MB of a prompt": wish('"user": "' + "a" * 4_100_000 + '"'),
}  # fmt: skip


@examples(20)
@given(st.sampled_from(list(COSTLY)))
def test_an_expensive_body_is_answered_correctly_or_with_a_4xx_in_one_line(patient: Served, name: str) -> None:
    check_body(patient, "/v1/completions", COSTLY[name])


HALF_HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: appl"
HALF_BODY = b'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"pr'
ENDLESS = b'{"model": "plain", "prompt": "A", "stream": true, "context_limit": "shift", "ignore_eos": true, "max_tokens": 99999'
LONG_STREAM = post("/v1/completions", ENDLESS + b"}")
NEVER_READ = post("/v1/completions", ENDLESS + b', "logprobs": 64, "n": 8}')


@contextlib.contextmanager
def connected(port: int, many: int, begin: bytes, room: int | None = None) -> Iterator[list[socket.socket]]:
    """Clients that send so much and wait; `room`: bytes that the kernel keeps for each."""
    with contextlib.ExitStack() as stack:
        found = list[socket.socket]()
        for _ in range(many):
            found.append(stack.enter_context(connect(port, room)))
            with contextlib.suppress(ConnectionError):
                found[-1].sendall(begin)
        yield found


def reset(client: socket.socket) -> None:
    """End with a reset in place of an end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def half_close(client: socket.socket) -> None:
    """Say that nothing more will come, and read."""
    client.shutdown(socket.SHUT_WR)
    read_to_end(client)


THEN: dict[str, Callable[[socket.socket], object]] = {
    "go away": lambda _: None,
    "send a byte more": lambda client: client.sendall(b"a"),
    "reset the connection": reset,
    "close their half of it": half_close,
}
BEGINS = {
    "say nothing": b"",
    "send half of their headers": HALF_HEADERS,
    "send half of a body": HALF_BODY,
    "ask for a long stream": LONG_STREAM,
    "ask for more than they read": NEVER_READ,
    "ask for nothing wrong": GOOD,
}


@examples(6)
@given(st.sampled_from((40, 200)), st.sampled_from(list(BEGINS)), st.sampled_from(list(THEN)))
def test_many_clients_that_stop_halfway_lock_nobody_out(patient: Served, many: int, begin: str, then: str) -> None:
    with connected(patient.port, many, BEGINS[begin]) as clients:
        patient.check_health()
        for client in clients:
            with contextlib.suppress(OSError):
                THEN[then](client)
    patient.wait_until_free()
    patient.check()
    count(HARMLESS)


STREAMS = {
    "/v1/completions": NEVER_READ,
    **{
        path: post(
            path, in_json({"model": '"chatty"', "messages": HELLO, "stream": "true", "ignore_eos": "true", "max_tokens": "9999"})
        )
        for path in ("/v1/chat/completions", "/v1/messages")
    },
    "/v1/responses": post(
        "/v1/responses", in_json({"model": '"chatty"', "input": HELLO, "stream": "true", "max_output_tokens": "9999"})
    ),
}


@examples(3)
@given(st.sampled_from(list(STREAMS)), st.integers(MOST_TEXTS, 2 * MOST_TEXTS))
def test_clients_that_read_nothing_of_their_streams_block_nobody(patient: Served, path: str, many: int) -> None:
    with connected(patient.port, many, STREAMS[path], UNREAD_BYTES):
        patient.check_health()
        patient.wait_until_free()
        patient.check()
    count(HARMLESS)


@examples(2)
@given(st.sampled_from((HALF_HEADERS, HALF_BODY)))
def test_with_200_open_files_health_is_answered_while_250_half_requests_wait(begin: bytes) -> None:
    with contextlib.closing(Served(600, FEW_FILES)) as server:
        with connected(server.port, HALVES, begin):
            server.check_health()
        server.check()
    count(HARMLESS)
