"""The web page: its function and its listeners called with values that no button sends, files, other hosts, frames."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("gradio")
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples

from .law import HARMLESS, REFUSED, Violation, check_line, count
from .over_http import ROOT, Answer, ChildServer, answers_in, head, post
from .values import Draw, json_texts

CONTROL = ('"A"', "4", "0", "null", "null", "null", "1", "null", "null")
INSIDES = (b"Traceback (most recent call last)", b"site-packages", b'File "/', b"onnx_textgen_demo/", str(ROOT).encode())
"""What tells of the machine or of the program's inside."""
CALL, FUNCTION = "/gradio_api/call/", "generate"
SECRET = b"a secret of this machine"


class Page(ChildServer):
    """The page of the tiny model, what it writes, and its listeners, each with the number of its inputs."""

    def __init__(self) -> None:
        super().__init__("page_child")
        self.text = self.write()
        config = json.loads(self.get(head("GET /config HTTP/1.1")).body)
        self.listeners = [(each["api_name"], len(each["inputs"])) for each in config["dependencies"] if each["api_name"]]

    def get(self, request: bytes) -> Answer:
        """The one answer to a request, which shows no inside."""
        (answer,) = answers_in(self.ask(request))
        if shown := [inside for inside in INSIDES if inside in answer.body]:
            raise Violation(f"{answer.status} shows {shown[0]!r}: {answer.body!r:.600}")
        return answer

    def call(self, name: str, body: str) -> tuple[str, Any] | None:
        """The last event of what a call gives, with its data; None where it was not taken."""
        answer = self.get(post(f"{CALL}{quote(name)}", body.encode()))
        if answer.status != 200:
            return None
        stream = self.get(head(f"GET {CALL}{quote(name)}/{json.loads(answer.body)['event_id']} HTTP/1.1"))
        fields = dict(line.split(": ", 1) for line in stream.body.decode().split("\n\n")[-2].splitlines() if ": " in line)
        return fields["event"], json.loads(fields.get("data", "null"))

    def write(self) -> str:
        """What its function writes for values with which nothing is wrong."""
        kind, data = self.call(FUNCTION, in_data(CONTROL)) or ("nothing", None)
        if kind != "complete":
            raise Violation(f"afterwards a call gives {kind} {data!r:.300}")
        text: str = data[0]["text"]
        return text

    def check(self) -> None:
        """Raise `Violation` where it has ended, or writes something else now."""
        if (text := self.write()) != self.text:
            raise Violation(f"afterwards it writes {text!r} in place of {self.text!r}")
        self.said()  # Gradio writes tracebacks for values of wrong types: see docs/security.md


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """The page in a process of its own."""
    with contextlib.closing(Page()) as page:
        yield page


def in_data(values: Any, more: str = "") -> str:
    """The body of a call with these values, which are JSON."""
    return f'{{"data": [{", ".join(values)}]{more}}}'


def check_call(page: Page, name: str, body: str) -> None:
    """Call a function: what it gives, or what is wrong with it; of what went wrong within, no word."""
    kind, data = page.call(name, body) or ("error", None)
    said = data.get("error") if isinstance(data, dict) else data
    if kind == "error" and said is not None and name == FUNCTION:  # what Gradio says elsewhere repeats the values as they are
        check_line(str(said))
    page.check()
    count(HARMLESS if kind == "complete" else REFUSED)


@st.composite
def wishes(draw: Draw) -> str:
    """A body for the function, with one to three values of any type, too few, or too many, or with no list of them."""
    values = list(CONTROL)
    for place in draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=3)):
        values[place] = draw(json_texts)
    match draw(st.integers(0, 9)):
        case 7:
            del values[draw(st.integers(0, len(values) - 1)) :]
        case 8:
            values += draw(st.lists(json_texts, min_size=1, max_size=3))
        case 9:
            return f'{{"data": {draw(json_texts)}}}'
    return in_data(values)


@examples(30)
@given(wishes())
def test_the_pages_function_accepts_any_values_or_says_in_one_line_what_is_wrong(page: Page, body: str) -> None:
    check_call(page, FUNCTION, body)


@examples(20)
@given(st.data())
def test_a_listener_of_the_page_that_is_called_with_any_values_reveals_no_internals(page: Page, data: st.DataObject) -> None:
    name, inputs = data.draw(st.sampled_from(page.listeners))
    many = data.draw(st.just(inputs) | st.integers(0, 20))
    values = data.draw(st.lists(json_texts, min_size=many, max_size=many))
    check_call(page, name, in_data(values, f', "session_hash": "{data.draw(st.integers(0, 8))}"'))


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
WISH = {"data": f"[{', '.join(CONTROL)}]", "fn_index": "0", "session_hash": '"a"'}
POSTS = {
    **dict.fromkeys(("queue/join", "run/generate", "api/generate", "run/predict", "call/v2/generate", "reset"), WISH),
    "component_server": {"data": "[]", "component_id": "1", "session_hash": '"a"', "fn_name": '"ls"'},
    "cancel": {"fn_index": "0", "session_hash": '"a"', "event_id": '"b"'},
}
"""What such a request looks like where nothing is wrong."""


@examples(20)
@given(
    st.sampled_from(list(POSTS)),
    st.dictionaries(st.sampled_from((*WISH, *FIELDS, "component_id", "fn_name")), json_texts, max_size=2),
)
def test_a_request_in_gradios_own_protocol_with_any_values_reveals_no_internals(
    page: Page, path: str, changed: dict[str, str]
) -> None:
    body = f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in (POSTS[path] | changed).items())}}}"
    answer = page.get(post(f"/gradio_api/{path}", body.encode()))
    page.check()
    count(HARMLESS if answer.status == 200 else REFUSED)


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
HOSTS = ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "[::2]", "a@127.0.0.1", "", "127.0.0.1,evil.example")
PATHS = ("/", "/config", "/gradio_api/info", "/gradio_api/startup-events", "/theme.css", "/nothing")


UPLOADS = ("/gradio_api/upload", "/gradio_api/upload?upload_id=a", "/gradio_api/process_recording", "/upload")
PART = b'--xyz\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\nContent-Type: text/plain\r\n\r\n%s\r\n--xyz--\r\n'


@pytest.mark.parametrize("path", READS)
def test_no_file_and_no_other_address_is_read_through_the_page(page: Page, path: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_bytes(SECRET)
    up, names = "/.." * 12, {"file": str(secret), "port": page.port, "coded": quote(str(secret), safe="")}
    place = path.format(**names, up=up, coded_up=quote(f"..{up}", safe="."))
    answer = page.get(head(f"GET /{place} HTTP/1.1"))
    if SECRET in answer.body or (answer.status == 200 and b"version" in answer.body and "127.0.0.1:" in path):
        raise Violation(f"{place} gives {answer.body!r:.200}")
    count(HARMLESS if answer.status < 400 else REFUSED)


@pytest.mark.parametrize(("path", "name"), list(itertools.product(UPLOADS, (b"a.txt", b"../../a.txt", b"a\0.txt"))))
def test_no_file_is_written_through_the_page(page: Page, path: str, name: bytes) -> None:
    body = PART % (name, SECRET)
    kind = "Content-Type: multipart/form-data; boundary=xyz"
    assert page.get(head(f"POST {path} HTTP/1.1", kind, f"Content-Length: {len(body)}") + body).status >= 400
    count(REFUSED)


@pytest.mark.parametrize(("host", "path"), list(itertools.product(HOSTS, PATHS)))
def test_the_page_is_answered_to_no_other_host_name(page: Page, host: str, path: str) -> None:
    assert page.get(head(f"GET {path} HTTP/1.1").replace(b"Host: 127.0.0.1", f"Host: {host}".encode())).status == 400
    count(REFUSED)


@pytest.mark.parametrize("path", PATHS)
def test_the_page_is_shown_in_no_frame_of_others(page: Page, path: str) -> None:
    headers = page.get(head(f"GET {path} HTTP/1.1")).headers
    assert "frame-ancestors 'self'" in (headers.get("Content-Security-Policy") or "")
    assert headers.get("X-Frame-Options") == "SAMEORIGIN"
    count(REFUSED)


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
@pytest.mark.parametrize("path", ["/config", f"{CALL}{FUNCTION}", "/gradio_api/queue/join"])
def test_no_page_of_others_may_read_an_answer(page: Page, origin: str, path: str) -> None:
    request = head(f"OPTIONS {path} HTTP/1.1", f"Origin: {origin}", "Access-Control-Request-Method: POST")
    assert page.get(request).headers.get("Access-Control-Allow-Origin") not in ("*", origin)
    count(REFUSED)
