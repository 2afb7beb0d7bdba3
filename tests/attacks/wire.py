"""Requests to the server that are none, that are of other types than it takes, that never end, or that are very many."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..support.patient_http import read_to_end
from .law import HARMLESS, REFUSED, Case, Law, Verdict, Violation, check_line, spread
from .over_http import LONGEST_WAIT, Answer, ChildServer, answers_in, ask, connect, head, post

SHORT = 1.0
"""Seconds that the server of `IMPATIENT` waits for headers and bodies."""
BUSY = 429
DONE = b"data: [DONE]"
CONTROL = {"model": "plain", "prompt": "The", "max_tokens": 4, "temperature": 0}


class Served(ChildServer):
    """A server of the tiny model."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long it waits for headers, and for bodies."""
        super().__init__("wire_child", seconds)
        self.text = ""

    def begin(self) -> bool:
        """Start it, and remember what it writes."""
        if is_new := super().begin():
            self.text = self.write()
        return is_new

    def write(self) -> str:
        """What it writes for a request with which nothing is wrong."""
        (answer,) = answers_in(self.ask(post("/v1/completions", json.dumps(CONTROL).encode())))
        if answer.status != 200:
            raise Violation(f"afterwards a request is answered with {answer.status}: {answer.body!r:.200}")
        text: str = json.loads(answer.body)["choices"][0]["text"]
        return text

    def wait_until_free(self) -> None:
        """Return when it takes requests again: it may need a moment to see that clients have gone."""
        end = time.monotonic() + LONGEST_WAIT
        request = post("/v1/completions", json.dumps(CONTROL).encode())
        while answers_in(self.ask(request))[0].status == BUSY:
            if time.monotonic() > end:
                raise Violation("it goes on answering 429")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise `Violation` where it has ended, writes something else now, or told of what it could not handle."""
        if (text := self.write()) != self.text:
            raise Violation(f"afterwards it writes {text!r} in place of {self.text!r}")
        if "Traceback" in (said := self.said()) or "\nERROR" in f"\n{said}":
            raise Violation(f"the server says: {said[-600:]!r}")


PATIENT, IMPATIENT = Served(600), Served(SHORT)


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


# Malformed requests.

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
MALFORMED = {
    "nothing but line ends": b"\r\n" * 100,
    "null bytes": bytes(100),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/1.0 without a host": b"GET /health HTTP/1.0\r\n\r\n",
    "HTTP/1.0 with a host": b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n",
    "HTTP/9.9": HEALTH.replace(b"1.1", b"9.9"),
    "no version": HEALTH.replace(b" HTTP/1.1", b""),
    "line ends without a return": HEALTH.replace(b"\r\n", b"\n"),
    "returns alone": HEALTH.replace(b"\r\n", b"\r"),
    "a method that is none": HEALTH.replace(b"GET", b"G E T"),
    "a long method": HEALTH.replace(b"GET", b"G" * 60_000),
    "TRACE": HEALTH.replace(b"GET", b"TRACE"),
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    "OPTIONS *": HEALTH.replace(b"GET /health", b"OPTIONS *"),
    "an absolute address": HEALTH.replace(b"/health", b"http://evil.example/health"),
    "a long path": HEALTH.replace(b"/health", b"/" + b"a" * 60_000),
    "a path not ASCII": HEALTH.replace(b"/health", b"/\xff\xfe"),
    "a path that is not UTF-8 when it is decoded": HEALTH.replace(b"/health", b"/%ff%fe%00%0d%0a"),
    "a model named with a line end": HEALTH.replace(b"/health", b"/v1/models/a%0d%0aX-Evil:%201%0d%0a%0d%0a"),
    "a path upwards": HEALTH.replace(b"/health", b"/../../../../etc/passwd"),
    "a path upwards in code": HEALTH.replace(b"/health", b"/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
    "a path of %s": HEALTH.replace(b"/health", b"/%s%n%x%" + b"%" * 300),
    "no host": HEALTH.replace(b"Host: 127.0.0.1\r\n", b""),
    "two hosts": HEALTH.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: evil.example"),
    "two hosts, the other first": HEALTH.replace(b"Host: 127.0.0.1", b"Host: evil.example\r\nHost: 127.0.0.1"),
    "an empty host": HEALTH.replace(b"127.0.0.1", b""),
    "a host with a user": HEALTH.replace(b"127.0.0.1", b"127.0.0.1@evil.example"),
    "a host not ASCII": HEALTH.replace(b"127.0.0.1", b"127.0.0.1\xff"),
    "a host with a null byte": HEALTH.replace(b"127.0.0.1", b"127.0.0.1\0"),
    "a header without a name": HEALTH.replace(b"Host", b": x\r\nHost"),
    "a header without a colon": HEALTH.replace(b"Host", b"nothing\r\nHost"),
    "a header with a blank before the colon": HEALTH.replace(b"Host:", b"Host :"),
    "a header over two lines": HEALTH.replace(b"127.0.0.1", b"\r\n 127.0.0.1"),
    "a header of 60 KB": HEALTH.replace(b"Host", b"X: " + b"a" * 60_000 + b"\r\nHost"),
    "headers without end": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"a" * 2**20,
    "10,000 headers": HEALTH.replace(b"Host", b"A: b\r\n" * 10_000 + b"Host"),
    "a null byte in a header": HEALTH.replace(b"Host", b"X: a\0b\r\nHost"),
    "an upgrade to WebSocket": head("GET /v1/completions HTTP/1.1", *WEBSOCKET).replace(b": close", b": Upgrade, close"),
    "an upgrade to HTTP/2": HEALTH.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"),
    "100-continue": post("/v1/completions", BODY, "Expect: 100-continue"),
    "another expectation": post("/v1/completions", BODY, "Expect: the-unexpected"),
    "two lengths": GOOD.replace(b"Content-Length", b"Content-Length: 4\r\nContent-Length"),
    "two equal lengths": GOOD.replace(b"Content-Length", b"Content-Length: %d\r\nContent-Length" % len(BODY)),
    "a list of lengths": GOOD.replace(b"Content-Length: ", b"Content-Length: 4, "),
    "a negative length": GOOD.replace(b"Content-Length: ", b"Content-Length: -"),
    "a length with a sign": GOOD.replace(b"Content-Length: ", b"Content-Length: +"),
    "a length in base 16": GOOD.replace(b"Content-Length: ", b"Content-Length: 0x"),
    "a length of 5,000 digits": GOOD.replace(b"Content-Length: ", b"Content-Length: " + b"9" * 5_000),
    "a length of 20 digits": GOOD.replace(b"Content-Length: ", b"Content-Length: " + b"9" * 18),
    "a length of other digits": GOOD.replace(b"Content-Length: ", b"Content-Length: \xb2"),
    "a length that is none": GOOD.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: many"),
    "a length and chunks": GOOD.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
    "chunks and a length, and a request": CHUNKED.replace(b"Transfer", b"Content-Length: 5\r\nTransfer") + b"0\r\n\r\n" + SMUGGLED,
    "a short length and a request behind": STAYS.replace(b": %d" % len(BODY), b": 2") + SMUGGLED,
    "two kinds of chunks": CHUNKED.replace(b"chunked", b"chunked, identity") + b"0\r\n\r\n",
    "chunks that are none": CHUNKED.replace(b"chunked", b"xchunked") + b"0\r\n\r\n",
    "chunks with a tab": CHUNKED.replace(b": chunked", b":\tchunked") + b"0\r\n\r\n",
    "gzip": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n",
    "a body said to be gzip": post("/v1/completions", BODY, "Content-Encoding: gzip"),
    "a chunk's length that is none": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n",
    "a chunk of 2^64": CHUNKED + b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"2\r\nabcdef\r\n0\r\n\r\n",
    "a chunk with a long extension": CHUNKED + b"2;" + b"a" * 70_000 + b"\r\nab\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nHost: evil.example\r\n\r\n",
    "trailers without end": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 20_000,
    "chunks of one byte": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "garbage behind an answer that needed no body": HEALTH_IN_CHUNKS + b"zz\r\n\xff\xff\r\n" * 9,
    "garbage behind an answer that needed all of it": HEALTH_IN_CHUNKS + A_BLANK * 100_000 + b"zz\r\n",
    "garbage behind a body that was too long": CHUNKS_STAY + b"%x\r\n" % 2**23 + bytes(2**23) + b"zz\r\n",
    "garbage behind a request": STAYS + b"\xff\0garbage\r\n\r\n",
    "garbage behind a stream": STREAM + b"\xff\0garbage\r\n\r\n" * 20,
    "100 requests at once": HEALTH.replace(b"Connection: close\r\n", b"") * 100 + HEALTH,
    "100 completions at once": STAYS * 100 + GOOD,
    "a body where there should be none": head("GET /health HTTP/1.1", "Content-Length: 5") + b"hello",
    "a form": post("/v1/completions", b"prompt=A").replace(JSON_KIND, b"application/x-www-form-urlencoded"),
    "parts that never begin": post("/v1/completions", b"--x\r\n" * 99).replace(JSON_KIND, b"multipart/form-data; boundary=x"),
    "text": GOOD.replace(b"application/json", b"text/plain"),
    "a kind of body that is none": GOOD.replace(b"application/json", b"/;;=\xff, application/json; charset=no-such"),
    "an origin": post("/v1/completions", BODY, "Origin: http://evil.example"),
}  # fmt: skip


def method_of(data: bytes) -> str:
    """HEAD's answers have no body."""
    return "HEAD" if data.startswith(b"HEAD ") else "POST"


def malformed_case(data: bytes, _: Path) -> Verdict:
    """A request that is none, or nearly one: each answer is right, or a 4xx; none at all where it is not whole."""
    IMPATIENT.begin()
    verdicts = [verdict_on(answer, method_of(data)) for answer in answers_in(IMPATIENT.ask(data), method_of(data))]
    IMPATIENT.check()
    return HARMLESS if verdicts and all(verdict == HARMLESS for verdict in verdicts) else REFUSED


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
    b"Host: 127.0.0.1\r\n",
    b"9" * 50,
)


def mutated(data: bytes, choose: random.Random) -> bytes:
    """The same with some bytes that are others, more, or gone."""
    found = bytearray(data)
    for _ in range(choose.randrange(1, 5)):
        place = choose.randrange(len(found) + 1)
        match choose.randrange(4):
            case 0:
                found[place:place] = choose.choice(PIECES)
            case 1:
                del found[place : place + choose.randrange(1, 20)]
            case 2:
                found[place : place + 1] = bytes([choose.randrange(256)])
            case _:
                end = place + choose.randrange(1, 60)
                found[end:end] = found[place:end]
    return bytes(found)


def malformed(count: int, choose: random.Random) -> Iterator[Case]:
    """Those that are written down, and mutations of whole ones."""
    named = list(MALFORMED.items())
    choose.shuffle(named)
    for name, data in named[: (count + 1) // 2]:
        yield Case(name, functools.partial(malformed_case, data))
    seeds = [GOOD, HEALTH, CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n", post("/tokenize", b'{"model": "plain", "prompt": "A"}')]
    for number in range(count - min(len(named), (count + 1) // 2)):
        data = mutated(choose.choice(seeds), choose)
        yield Case(f"mutation {number}: {data!r}", functools.partial(malformed_case, data))


# Bodies of wrong types, and JSON that costs.

LONG_DIGITS = "9" * 5_000
VALUES = (
    *("null", "true", "false", "0", "-0", "1", "2", "-1", "3.0", "0.5", "-0.5", "1e308", "-1e308", "1e999", "-1e999", "1e-400"),
    *("NaN", "Infinity", "-Infinity", "9007199254740993", "18446744073709551616", "9" * 400, LONG_DIGITS, f"-{LONG_DIGITS}"),
    *('""', '" "', '"a"', '"0"', '"1"', '"-1"', '"true"', '"null"', '"NaN"', '"9e999"', f'"{LONG_DIGITS}"', f'"{"a" * 100_000}"'),
    *('"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"a\\nb\\r\\u2028"', '"\\u001b]0;owned\\u0007"'),
    *("[]", "[null]", "[[]]", "[1]", "[0, 1, 2]", "[-1]", "[999999]", "[true]", "[1e999]", '["a"]', '[""]', '["a", 1, []]'),
    *('["\\ud800"]', "[[1], [2]]", '["a", [1]]', "[[[[[1]]]]]", f"[{LONG_DIGITS}]", f"[{'1, ' * 5_000}1]"),
    f"[{'[' * 200}{']' * 200}]",
    *("{}", '{"a": 1}', '{"": null}', '{"1": 1}', '{"1": -1e999}', '{"1": "a"}', '{"-1": 1}', '{"1.5": 1}', '{"\\u0663": 1}'),
    *(f'{{"{LONG_DIGITS}": 1}}', '{"999999": 1}', '{"\\ud800": 1}', '{"a": {"a": {"a": {"a": []}}}}', '{"1": 1, "01": 2}'),
    *('{"type": "text"}', '{"type": "json_object"}', '{"type": "json_schema"}', '{"type": 5}', '{"include_usage": true}'),
    *('{"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}', '{"type": "json_schema", "json_schema": {"schema": 5}}'),
    *('{"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["a"]}}}', '{"type": "object"}'),
    *('[{"role": "user", "content": "a"}]', '[{"role": null, "content": null}]', '[{"content": 1}]'),
    *('[{"role": "\\ud800", "content": "\\ud800"}]', '[{"role": "user", "content": [{"type": "text"}]}]'),
    *('[{"role": "user", "content": {"a": 1}}]', '[{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]'),
    '[{"role": "tool", "content": "a", "tool_calls": [[]], "name": {}}]',
    *('"(a+)+$"', '"["', '"(?=a)"', '"a{1000000}"', '"root ::= root"', '"start: start"', '"/etc/passwd"', '"http://127.0.0.1/"'),
    *('"never"', '"shift"', '"stop"', '"auto"', '"none"', '"required"', '"plain"', '"chatty"', '"../plain"', '"plain\\u0000"'),
)  # fmt: skip
NAMES = (
    *("model", "prompt", "messages", "tokens", "n", "best_of", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "response_format", "logprobs"),
    *("top_logprobs", "echo", "suffix", "user", "metadata", "store", "service_tier", "tools", "tool_choice", "parallel_tool_calls"),
    *("functions", "function_call", "modalities", "audio", "prediction", "reasoning_effort", "web_search_options", "verbosity"),
    *("add_special_tokens", "skip_special_tokens", "safety_identifier", "prompt_cache_key", "__class__", "model_config", "", "\0"),
)
BASES = {
    "/v1/completions": {"model": '"plain"', "prompt": '"A"', "max_tokens": "2"},
    "/v1/chat/completions": {"model": '"chatty"', "messages": '[{"role": "user", "content": "A"}]', "max_tokens": "2"},
    "/tokenize": {"model": '"plain"', "prompt": '"A"'},
    "/detokenize": {"model": '"plain"', "tokens": "[5]"},
}


def body_case(path: str, body: bytes, _: Path) -> Verdict:
    """A request with such a body."""
    PATIENT.begin()
    answers = answers_in(PATIENT.ask(post(path, body)))
    if len(answers) != 1:
        raise Violation(f"{len(answers)} answers")
    verdict = verdict_on(answers[0])
    PATIENT.check()
    return verdict


def fuzzed(count: int, choose: random.Random) -> Iterator[Case]:
    """Bodies with one to three fields of any type."""
    from onnx_textgen.options.generation_config import OPTION_NAMES  # noqa: PLC0415

    names, paths = sorted({*NAMES, *OPTION_NAMES}), list(BASES)
    for _ in range(count):
        path = choose.choices(paths, weights=(6, 4, 1, 1))[0]
        fields = dict(BASES[path])
        some = choose.sample([*list(fields) * 8, *names], k=choose.choice((1, 1, 2, 3)))
        changed = {name: choose.choice(VALUES) for name in some}
        written = ", ".join(f"{json.dumps(name)}: {value}" for name, value in (fields | changed).items())
        shown = ", ".join(f"{name}={value:.40}" for name, value in changed.items())
        yield Case(f"{path} with {shown}", functools.partial(body_case, path, f"{{{written}}}".encode()))


def every_field(count: int, choose: random.Random) -> Iterator[Case]:
    """Each field of the two main routes with each value, alone."""
    pairs = [
        (path, name, value)
        for path in ("/v1/completions", "/v1/chat/completions")
        for name, value in itertools.product(NAMES[:24], VALUES)
    ]
    for path, name, value in choose.sample(pairs, min(count, len(pairs))):
        written = ", ".join(f"{json.dumps(key)}: {each}" for key, each in (BASES[path] | {name: value}).items())
        yield Case(f"{path} with {name}={value:.40}", functools.partial(body_case, path, f"{{{written}}}".encode()))


def wish(more: str) -> bytes:
    """A completion with one thing more."""
    return BODY.replace(b"{", b"{%b, " % more.encode(), 1)


COSTLY = {
    "nothing": b"",
    "a blank": b" ",
    "null": b"null",
    "a number": b"5",
    "a text": b'"A"',
    "a list": b"[]",
    "a list of 100,000 objects": b"[" + b"{}, " * 99_999 + b"{}]",
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets, closed": b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects in each other": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a prompt of 50,000 brackets": wish(f'"prompt": {"[" * 50_000}{"]" * 50_000}'),
    "two JSON values": BODY + BODY,
    "the same key twice": wish('"prompt": "B"'),
    "no end": BODY[:-1],
    "UTF-16": BODY.decode().encode("utf-16"),
    "UTF-16 without a mark": BODY.decode().encode("utf-16-le"),
    "UTF-32": BODY.decode().encode("utf-32"),
    "a mark of UTF-8": b"\xef\xbb\xbf" + BODY,
    "bytes that are no UTF-8": BODY.replace(b'"A"', b'"\xff\xfe"'),
    "half a character": BODY.replace(b'"A"', b'"\xe2\x82"'),
    "a surrogate in UTF-8": BODY.replace(b'"A"', b'"\xed\xa0\x80"'),
    "a null byte": BODY.replace(b'"A"', b'"\0"'),
    "null bytes behind": BODY + bytes(100),
    "3 MB of blanks": BODY + b" " * 3_000_000,
    "4 MB of a prompt": wish('"user": "' + "a" * 4_100_000 + '"'),
    "5 MB": wish('"user": "' + "a" * 5_000_000 + '"'),
    "3 MB of digits": wish('"seed": ' + "9" * 3_000_000),
    "a number with 1 M digits behind the point": wish('"temperature": 0.' + "1" * 1_000_000),
    "a number with a great exponent": wish('"temperature": 1e' + "9" * 1_000),
    "a million token ids": BODY.replace(b'"A"', b"[" + b"5, " * 999_999 + b"5]"),
    "a million prompts": BODY.replace(b'"A"', b"[" + b'"", ' * 900_000 + b'""]'),
    "257 prompts": BODY.replace(b'"A"', b"[" + b'"A", ' * 256 + b'"A"]'),
    "100,000 stop strings": wish('"stop": [' + '"a", ' * 99_999 + '"a"]'),
    "a stop string of 1 MB": wish('"stop": "' + "a" * 1_000_000 + '"'),
    "100,000 biases": wish('"logit_bias": {' + ", ".join(f'"{i}": 1' for i in range(100_000)) + "}"),
    "a bias of an id with 5,000 digits": wish(f'"logit_bias": {{"{LONG_DIGITS}": 1}}'),
    "biases that rule out all": wish('"logit_bias": {' + ", ".join(f'"{i}": -1e30' for i in range(258)) + "}"),
    "all tokens suppressed": wish('"bad_words_ids": ' + str([[i] for i in range(258)])),
    "100,000 names that are none": wish(", ".join(f'"x{i}": 1' for i in range(100_000))),
    "a name of 1 MB": wish(f'"{"a" * 1_000_000}": 1'),
    "a model's name of 1 MB": BODY.replace(b"plain", b"a" * 1_000_000),
    "a regex that goes back without end": wish('"regex": "(a|a)*(b|b)*(a*)*$"'),
    "a regex of great numbers": wish('"regex": "((a{1,1000}){1,1000}){1,1000}"'),
    "a regex of 100,000 brackets": wish('"regex": "' + "(" * 100_000 + ")" * 100_000 + '"'),
    "a regex that matches nothing": wish('"regex": "[^\\\\s\\\\S]"'),
    "a grammar of itself": wish('"grammar": "start: start start"'),
    "a grammar of 1 MB": wish('"grammar": "start: ' + '\\"a\\" ' * 200_000 + '"'),
    "a schema in itself": wish('"response_format": {"type": "json_schema", "json_schema": {"schema": {"allOf": [{"$ref": "#"}]}}}'),
    "a schema elsewhere": wish(
        '"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/a"}}}'
    ),
    "a schema of 10,000 depths": wish(
        '"response_format": {"type": "json_schema", "json_schema": {"schema": ' + '{"items": ' * 10_000 + "{}" + "}" * 10_000 + "}}"
    ),
}


def costly(count: int, _: random.Random) -> Iterator[Case]:
    """Bodies that are written down."""
    for name, body in spread(list(COSTLY.items()), count):
        yield Case(name, functools.partial(body_case, "/v1/completions", body))


# Requests that never end, and very many.

HALF_HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: appl"
HALF_BODY = b'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"pr'
ENDLESS = b'{"model": "plain", "prompt": "A", "stream": true, "context_limit": "shift", "ignore_eos": true, "max_tokens": 99999'
LONG_STREAM = post("/v1/completions", ENDLESS + b"}")
NEVER_READ = post("/v1/completions", ENDLESS + b', "logprobs": 64, "n": 8}')


@contextlib.contextmanager
def connected(port: int, count: int, begin: bytes) -> Iterator[list[socket.socket]]:
    """Clients that send so much and wait."""
    with contextlib.ExitStack() as stack:
        found = list[socket.socket]()
        for _ in range(count):
            found.append(stack.enter_context(connect(port)))
            with contextlib.suppress(ConnectionError):
                found[-1].sendall(begin)
        yield found


def crowd_case(begin: bytes, count: int, then: Callable[[socket.socket], object], _: Path) -> Verdict:
    """Many clients at once; while they are there, and after them, others are answered."""
    PATIENT.begin()
    with connected(PATIENT.port, count, begin) as clients:
        (answer,) = answers_in(PATIENT.ask(HEALTH))
        if answer.status != 200:
            raise Violation(f"while they wait /health is answered with {answer.status}")
        for client in clients:
            with contextlib.suppress(OSError):
                then(client)
    PATIENT.wait_until_free()
    PATIENT.check()
    return HARMLESS


def byte_by_byte(client: socket.socket) -> None:
    """Go on with a byte."""
    client.sendall(b"a")


def reset(client: socket.socket) -> None:
    """End with a reset in place of an end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def half_close(client: socket.socket) -> None:
    """Say that nothing more will come, and read."""
    client.shutdown(socket.SHUT_WR)
    read_to_end(client)


def nothing(_: socket.socket) -> None:
    """Go away."""


THEN: dict[str, Callable[[socket.socket], object]] = {
    "go away": nothing,
    "send a byte more": byte_by_byte,
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


def crowds(count: int, choose: random.Random) -> Iterator[Case]:
    """Crowds of two sizes that begin and end in all ways."""
    every = list(itertools.product((40, 200), BEGINS, THEN))
    choose.shuffle(every)
    for size, begin, then in every[:count]:
        yield Case(f"{size} clients {begin}, and {then}", functools.partial(crowd_case, BEGINS[begin], size, THEN[then]))


FEW_FILES = 200
"""`ulimit -n` of a server that more clients than that send half of a request to."""
HALVES = 250
HALVES_OF = {"headers": HALF_HEADERS, "body": HALF_BODY}


def health_among_halves(begin: bytes) -> float:
    """Seconds until a server of few files answers /health, while more half requests lie there than it may have files open.

    Raises `Violation` where the first connection is not answered, or the server told more than its address.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    few_files = ["sh", "-c", f'ulimit -n {FEW_FILES} && exec "$@"', "sh"]
    command = [*few_files, sys.executable, "-m", "onnx_textgen.cli", "serve", "tiny-transformer", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "ONNX_TEXTGEN_API_KEY"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None, "it is a pipe"
            if f":{port}" not in (line := process.stderr.readline()):
                raise Violation(f"the server does not begin: {line}")
            ask_health(port)
            with connected(port, HALVES, begin):
                start = time.monotonic()
                ask_health(port)
                seconds = time.monotonic() - start
        finally:
            process.terminate()
        if said := process.stderr.read():
            raise Violation(f"the server says: {said[-600:]!r}")
    return seconds


def ask_health(port: int) -> None:
    """Ask on one new connection; raises `Violation` for anything but 200."""
    answers = answers_in(ask(port, HEALTH))
    if [answer.status for answer in answers] != [200]:
        raise Violation(f"/health is answered with {[answer.status for answer in answers]}")


def few_files_case(begin: bytes, _: Path) -> Verdict:
    """The first connection is answered."""
    health_among_halves(begin)
    return HARMLESS


def few_files(count: int, _: random.Random) -> Iterator[Case]:
    """Half of the headers, and half of the body."""
    for name, begin in list(HALVES_OF.items())[:count]:
        yield Case(f"half of the {name}", functools.partial(few_files_case, begin))


LIMITS: dict[str, Any] = {"cpu_seconds": 3_600, "memory_bytes": 32 << 30}
"""The server takes them from the process that tries the cases, and is there for all of them."""
LAWS = (
    (
        Law("A malformed request is answered with a 4xx in JSON, or closed", malformed, whole=600, quick=50, **LIMITS),
        Law("Any value in any field is accepted, or answered with a 4xx in one line", every_field, whole=1_500, quick=60, **LIMITS),
        Law(
            "Any values in several fields at once are accepted, or answered with a 4xx in one line",
            fuzzed,
            whole=1_000,
            quick=60,
            **LIMITS,
        ),
        Law("An expensive body is answered correctly, or with a 4xx in one line", costly, whole=99, quick=20, **LIMITS),
        Law("Many clients that stop halfway lock nobody out", crowds, whole=48, quick=6, **LIMITS),
        Law(
            f"With {FEW_FILES} open files /health is answered while {HALVES} half requests wait",
            few_files,
            whole=2,
            quick=2,
            **LIMITS,
        ),
    )
    if find_spec("uvicorn") is not None and find_spec("fastapi") is not None
    else ()
)


if __name__ == "__main__":
    for what, begin in HALVES_OF.items():
        print(f"{HALVES} times half of the {what}: /health is answered in {health_among_halves(begin):.3f} s")
