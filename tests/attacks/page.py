"""The web page: its function and its listeners called with values that no button sends, files, other hosts, frames."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .law import HARMLESS, REFUSED, Case, Law, Verdict, Violation, check_line, spread
from .over_http import Answer, ChildServer, answers_in, head, post
from .wire import VALUES

CONTROL = '["A", 4, 0, null, null, null, 1, null, null]'
INSIDES = (
    b"Traceback (most recent call last)",
    b"site-packages",
    b'File "/',
    b"onnx_textgen_demo/",
    str(Path(__file__).parents[2]).encode(),
)
"""What tells of the machine or of the program's inside."""
CALL, FUNCTION = "/gradio_api/call/", "generate"
SECRET = b"a secret of this machine"


class Page(ChildServer):
    """The page of the tiny model."""

    def __init__(self) -> None:
        super().__init__("page_child")
        self.text, self.listeners = "", list[tuple[str, int]]()

    def begin(self) -> bool:
        """Start it; remember what it writes and which listeners it has, each with the number of its inputs."""
        if is_new := super().begin():
            self.text = self.write()
            config = json.loads(self.one(head("GET /config HTTP/1.1")).body)
            self.listeners = [(each["api_name"], len(each["inputs"])) for each in config["dependencies"] if each["api_name"]]
        return is_new

    def one(self, request: bytes) -> Answer:
        """The one answer to a request."""
        (answer,) = answers_in(self.ask(request))
        return answer

    def call(self, name: str, body: str) -> tuple[Answer, Answer | None]:
        """The answer to a call, and the stream of what it gives, where it was taken."""
        answer = self.one(post(f"{CALL}{quote(name)}", body.encode()))
        if answer.status != 200:
            return answer, None
        event = json.loads(answer.body)["event_id"]
        return answer, self.one(head(f"GET {CALL}{quote(name)}/{event} HTTP/1.1"))

    def write(self) -> str:
        """What its function writes for values with which nothing is wrong."""
        _, stream = self.call(FUNCTION, f'{{"data": {CONTROL}}}')
        kind, data = events_of(stream)[-1] if stream is not None else ("", None)
        if kind != "complete":
            raise Violation(f"afterwards a call gives {kind} {data!r:.300}")
        text: str = data[0]["text"]
        return text

    def check(self) -> None:
        """Raise `Violation` where it has ended, or writes something else now."""
        if (text := self.write()) != self.text:
            raise Violation(f"afterwards it writes {text!r} in place of {self.text!r}")
        self.said()  # Gradio writes tracebacks for values of wrong types: see docs/security.md


PAGE = Page()


def events_of(stream: Answer) -> list[tuple[str, Any]]:
    """The events of a stream, with their data."""
    found = []
    for event in stream.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.splitlines() if ": " in line)
        if fields:
            found.append((fields["event"], json.loads(fields.get("data", "null"))))
    return found


def check_closed(answer: Answer) -> None:
    """Raise `Violation` for an answer that shows an inside."""
    if shown := [inside for inside in INSIDES if inside in answer.body]:
        raise Violation(f"{answer.status} shows {shown[0]!r}: {answer.body!r:.600}")


def call_case(name: str, body: str, _: Path) -> Verdict:
    """A call: what it gives, or what is wrong with it; of what went wrong within, no word."""
    PAGE.begin()
    answer, stream = PAGE.call(name, body)
    check_closed(answer)
    verdict = REFUSED
    if stream is not None:
        check_closed(stream)
        kind, data = events_of(stream)[-1]
        verdict = HARMLESS if kind == "complete" else REFUSED
        said = data.get("error") if isinstance(data, dict) else data
        if kind == "error" and said is not None and name == FUNCTION:  # what Gradio says elsewhere repeats the values as they are
            check_line(str(said))
    PAGE.check()
    return verdict


def function_calls(count: int, choose: random.Random) -> Iterator[Case]:
    """The function for other programs, with one to three values of any type, too few, or too many."""
    for _ in range(count):
        values = ['"A"', "3", "null", "null", "null", "null", "1", "null", "null"]
        for place in choose.sample(range(len(values)), choose.choice((1, 1, 2, 3))):
            values[place] = choose.choice(VALUES)
        match choose.randrange(12):
            case 0:
                del values[choose.randrange(len(values)) :]
            case 1:
                values += choose.choices(VALUES, k=3)
        data = f"[{', '.join(values)}]"
        body = choose.choices((f'{{"data": {data}}}', f'{{"data": {choose.choice(VALUES)}}}'), weights=(9, 1))[0]
        yield Case(f"generate with {body:.200}", functools.partial(call_case, FUNCTION, body))


def listener_case(choose: random.Random, folder: Path) -> Verdict:
    """Any listener of the page with any values."""
    PAGE.begin()
    name, count = choose.choice(PAGE.listeners)
    values = choose.choices(VALUES, k=count if choose.random() < 0.9 else choose.randrange(20))
    return call_case(name, f'{{"data": [{", ".join(values)}], "session_hash": "{choose.randrange(9)}"}}', folder)


def listener_calls(count: int, choose: random.Random) -> Iterator[Case]:
    """The page's own listeners."""
    for number in range(count):
        yield Case(f"call {number}", functools.partial(listener_case, random.Random(choose.randrange(2**32))))


POSTS = ("queue/join", "run/generate", "api/generate", "run/predict", "call/v2/generate", "cancel", "reset", "component_server")
FIELDS = (
    "data",
    "fn_index",
    "session_hash",
    "event_id",
    "event_data",
    "trigger_id",
    "simple_format",
    "batched",
    "request",
    "api_name",
)
WISH = {"data": CONTROL, "fn_index": "0", "session_hash": '"a"'}
WISHES = {
    "component_server": {"data": "[]", "component_id": "1", "session_hash": '"a"', "fn_name": '"ls"'},
    "cancel": {"fn_index": "0", "session_hash": '"a"', "event_id": '"b"'},
}
"""What such a request looks like where nothing is wrong."""


def inner_case(path: str, body: str, _: Path) -> Verdict:
    """A request of Gradio's own protocol."""
    PAGE.begin()
    answer = PAGE.one(post(f"/gradio_api/{path}", body.encode()))
    check_closed(answer)
    PAGE.check()
    return HARMLESS if answer.status == 200 else REFUSED


def inner_calls(count: int, choose: random.Random) -> Iterator[Case]:
    """Gradio's own protocol, with any value in any field, in one or more."""
    for _ in range(count):
        path = choose.choice(POSTS)
        wish = WISHES.get(path, WISH)
        changed = {name: choose.choice(VALUES) for name in choose.choices((*wish, *FIELDS), k=choose.randrange(3))}
        body = f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in (wish | changed).items())}}}"
        yield Case(f"{path} with {body:.200}", functools.partial(inner_case, path, body))


# Files, hosts, frames.

READS = (
    *("gradio_api/file={file}", "gradio_api/file=/{file}", "gradio_api/file=..{up}{file}", "gradio_api/file=file://{file}"),
    *("gradio_api/file={coded}", "gradio_api/file=//{file}", "gradio_api/file={file}%00.png", "gradio_api/file/{file}"),
    *("gradio_api/file=C:{file}", "gradio_api/file=http://127.0.0.1:{port}/config", "gradio_api/file=http://169.254.169.254/"),
    *("gradio_api/proxy=http://127.0.0.1:{port}/config", "gradio_api/proxy=file://{file}", "gradio_api/proxy={file}"),
    *("static/..{up}{file}", "assets/..{up}{file}", "svelte/..{up}{file}", "static/{coded_up}{coded}", "assets/{coded_up}{coded}"),
    *("gradio_api/custom_component/a/client/component/..{up}{file}", "gradio_api/custom_component/{coded}/server/a/index.js"),
    *("gradio_api/stream/a/b/1/playlist.m3u8", "gradio_api/stream/..%2f..%2f/b/1/playlist-file", "manifest.json"),
    *("gradio_api/vibe-code/", "gradio_api/run-history/records", "gradio_api/runs", "monitoring"),
    *("pwa_icon/{coded}", "pwa_icon/1?file={file}", "gradio_api/token", "gradio_api/deep_link", "docs", "openapi.json"),
    *("monitoring/summary", "gradio_api/upload_progress?upload_id={file}", "..{up}{file}"),
)  # fmt: skip
HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:80",
    "[::2]",
    "a@127.0.0.1",
    "",
    "127.0.0.1,evil.example",
    "169.254.169.254",
)
PATHS = ("/", "/config", "/gradio_api/info", "/gradio_api/startup-events", "/theme.css", "/nothing")


def read_case(path: str, folder: Path) -> Verdict:
    """A way in which a file of this machine, or another address, could be asked for."""
    PAGE.begin()
    secret = folder / "secret.txt"
    secret.write_bytes(SECRET)
    up, names = "/.." * 12, {"file": str(secret), "port": PAGE.port, "coded": quote(str(secret), safe="")}
    place = path.format(**names, up=up, coded_up=quote(f"..{up}", safe="."))
    answer = PAGE.one(head(f"GET /{place} HTTP/1.1"))
    check_closed(answer)
    if SECRET in answer.body or (answer.status == 200 and b"version" in answer.body and "127.0.0.1:" in path):
        raise Violation(f"{place} gives {answer.body!r:.200}")
    PAGE.check()
    return HARMLESS if answer.status < 400 else REFUSED


BOUNDARY = "xyz"
PART = b'--xyz\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\nContent-Type: text/plain\r\n\r\n%s\r\n--xyz--\r\n'


def upload_case(path: str, name: bytes, _: Path) -> Verdict:
    """A file that is sent."""
    PAGE.begin()
    body = PART % (name, SECRET)
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    answer = PAGE.one(head(f"POST {path} HTTP/1.1", kind, f"Content-Length: {len(body)}") + body)
    check_closed(answer)
    if answer.status < 400:
        raise Violation(f"{path} takes a file: {answer.body!r:.200}")
    PAGE.check()
    return REFUSED


def host_case(host: str, path: str, _: Path) -> Verdict:
    """A request that calls the page by another name."""
    PAGE.begin()
    answer = PAGE.one(head(f"GET {path} HTTP/1.1").replace(b"Host: 127.0.0.1", f"Host: {host}".encode()))
    if answer.status != 400:
        raise Violation(f"{host!r} is answered with {answer.status}")
    return REFUSED


def frame_case(path: str, _: Path) -> Verdict:
    """No answer may be shown in a frame of others."""
    PAGE.begin()
    headers = PAGE.one(head(f"GET {path} HTTP/1.1")).headers
    policy = headers.get("Content-Security-Policy") or ""
    if "frame-ancestors 'self'" not in policy or headers.get("X-Frame-Options") != "SAMEORIGIN":
        raise Violation(f"{path} may be shown in a frame")
    return REFUSED


def origin_case(origin: str, path: str, _: Path) -> Verdict:
    """No page of others may read an answer."""
    PAGE.begin()
    request = head(f"OPTIONS {path} HTTP/1.1", f"Origin: {origin}", "Access-Control-Request-Method: POST")
    allowed = PAGE.one(request).headers.get("Access-Control-Allow-Origin")
    if allowed in ("*", origin):
        raise Violation(f"{path} may be read by {origin}")
    return REFUSED


def doors(count: int, _: random.Random) -> Iterator[Case]:
    """Files out and in, other hosts, other pages."""
    every = [
        *[(f"GET {path}", functools.partial(read_case, path)) for path in READS],
        *[
            (f"a file named {name!r} to {path}", functools.partial(upload_case, path, name))
            for path in ("/gradio_api/upload", "/gradio_api/upload?upload_id=a", "/gradio_api/process_recording", "/upload")
            for name in (b"a.txt", b"../../a.txt", b"a\0.txt")
        ],
        *[(f"{host!r} asks for {path}", functools.partial(host_case, host, path)) for host in HOSTS for path in PATHS],
        *[(f"a frame of {path}", functools.partial(frame_case, path)) for path in PATHS],
        *[
            (f"a page of {origin} asks for {path}", functools.partial(origin_case, origin, path))
            for origin in ("http://evil.example", "null")
            for path in ("/config", f"{CALL}{FUNCTION}", "/gradio_api/queue/join")
        ],
    ]
    for name, check in spread(every, count):
        yield Case(name, check)


LIMITS: dict[str, Any] = {"cpu_seconds": 3_600, "memory_bytes": 32 << 30}
LAWS = (
    (
        Law(
            "The page's function accepts any values, or says in one line what is wrong",
            function_calls,
            whole=300,
            quick=30,
            **LIMITS,
        ),
        Law(
            "A listener of the page that is called with any values reveals no internals",
            listener_calls,
            whole=300,
            quick=20,
            **LIMITS,
        ),
        Law("A request in Gradio's own protocol with any values reveals no internals", inner_calls, whole=300, quick=20, **LIMITS),
        Law(
            "No file is read or written through the page, and no other host, page or frame reaches it",
            doors,
            whole=999,
            quick=30,
            **LIMITS,
        ),
    )
    if find_spec("gradio") is not None
    else ()
)
