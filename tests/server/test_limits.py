"""What the server does not allow, and what becomes of clients that go away."""

import json
import logging
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from onnx_textgen import Model
from onnx_textgen.errors import ModelError
from onnx_textgen.text.tokenizer import TextTokenizer
from onnx_textgen_server.serving import jobs
from support import patient_http
from support.can_bind import can_bind
from support.live_server import served, wait_until
from support.patient_http import LONGEST_WAIT

LONG = {"prompt": "Once upon a time", "max_tokens": 480, "ignore_eos": True, "seed": 1}


def test_a_key_guards_everything_but_health(story: Model) -> None:
    with served({"story": story}, api_key="secret") as (url, _):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                answer = patient_http.get(url + path, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert patient_http.get(f"{url}/v1/models", headers={"Authorization": "bearer secret"}).status_code == 200
        assert patient_http.get(f"{url}/health").json()["status"] == "ok"
        page = patient_http.get(f"{url}/metrics", headers={"Authorization": "Bearer secret"}).text
        assert 'onnx_textgen_refused_total{reason="401"} 12.0' in page


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("says_its_length", [True, False])
def test_a_client_that_reads_only_after_it_has_sent_a_body_too_long_is_told(
    story: Model, says_its_length: bool, connection: str
) -> None:
    body = b" " * 2**24
    length = f"Content-Length: {len(body)}" if says_its_length else "Transfer-Encoding: chunked"
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Connection: {connection}",
        length,
    )
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    sent = body if says_its_length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with (
        served({"story": story}) as (url, _),
        socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=LONGEST_WAIT) as client,
    ):
        client.sendall(head + sent)
        answer = b""
        while b"more than 4,194,304 bytes" not in answer:
            answer += client.recv(65536) or pytest.fail("the connection closed before the answer")
        assert answer.startswith(b"HTTP/1.1 413")


def test_other_host_names_and_web_pages_are_refused(story: Model) -> None:
    with served({"story": story}, origins=["https://mine.example"]) as (url, _):
        for name in ("evil.example", "127.0.0.1.evil.example:80", "[::2]", "[::1]x", "a@localhost", "", "::1"):
            answer = patient_http.get(f"{url}/v1/models", headers={"Host": name})
            assert answer.status_code == 400
            assert "answers only to the Host" in answer.json()["error"]["message"]
        for name in ("localhost", "LocalHost:80", "[::1]", "[::1]:8000"):
            assert patient_http.get(f"{url}/v1/models", headers={"Host": name}).status_code == 200
        assert 'onnx_textgen_refused_total{reason="400"} 7.0' in patient_http.get(f"{url}/metrics").text
        asked = {"Origin": "https://mine.example", "Access-Control-Request-Method": "POST"}
        assert (
            patient_http.options(f"{url}/v1/completions", headers=asked).headers["access-control-allow-origin"] == asked["Origin"]
        )
        evil = asked | {"Origin": "https://evil.example"}
        assert "access-control-allow-origin" not in patient_http.options(f"{url}/v1/completions", headers=evil).headers


@pytest.mark.skipif(not can_bind("::1"), reason="this machine has no IPv6")
def test_ipv6_is_served(story: Model) -> None:
    with served({"story": story}, host="::1") as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="unused") as client:
        assert url.startswith("http://[::1]:")
        assert client.completions.create(model="story", prompt="A", max_tokens=2).choices[0].text


@pytest.mark.parametrize("body", [b"{", b"[]", b'"a"', b"null", b"\xff", b'{"prompt": {"a": 1}}', b"{}"])
def test_bodies_that_are_no_request_are_refused(live: tuple, body: bytes) -> None:
    answer = patient_http.post(f"{live[0]}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_body_that_is_no_json_is_told_where(live: tuple) -> None:
    headers = {"Content-Type": "application/json"}
    answer = patient_http.post(f"{live[0]}/v1/completions", content=b'{"prompt": A}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is not JSON: Expecting value at character 11")


@pytest.mark.parametrize("path", ["/docs", "/v1", "/favicon.ico"])
def test_a_path_that_is_none_is_answered_with_those_there_are(live: tuple, path: str) -> None:
    answer = patient_http.get(live[0] + path)
    problem = answer.json()["error"]
    assert (answer.status_code, problem["code"]) == (404, None)
    assert problem["message"].startswith(f"there is nothing at {path}; this server answers GET /v1/models, POST /v1/completions,")
    asked = patient_http.get(f"{live[0]}/v1/completions")
    assert (asked.status_code, asked.headers["allow"]) == (405, "POST")
    assert asked.json()["error"]["message"].startswith("/v1/completions takes only POST; this server answers GET /v1/models")


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_a_body_needs_no_content_type_unless_a_web_page_sends_it(live: tuple, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    for path, asked in (
        ("/api/generate", {"options": {"num_predict": 1}, "stream": False}),
        ("/v1/completions", {"max_tokens": 1}),
    ):
        body = json.dumps({"model": "story", "prompt": "A", **asked}).encode()
        assert patient_http.post(live[0] + path, content=body, headers=headers).status_code == 200
        answer = patient_http.post(live[0] + path, content=body, headers=headers | {"Origin": "https://evil.example"})
        assert (answer.status_code, "Content-Type: application/json" in answer.text) == (400, True)


def test_head_is_answered_wherever_get_is(live: tuple) -> None:
    for path in (
        "/",
        "/health",
        "/metrics",
        "/openapi.json",
        "/v1/models",
        "/v1/models/story",
        "/api/tags",
        "/api/ps",
        "/api/version",
    ):
        answer, whole = patient_http.head(live[0] + path), patient_http.get(live[0] + path)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"", whole.headers["content-type"]), (
            path
        )
    assert patient_http.head(f"{live[0]}/v1/models/other").status_code == 404
    assert patient_http.head(f"{live[0]}/v1/completions").status_code == 405


def test_a_request_that_names_no_model_is_told_the_models(live: tuple) -> None:
    for model in (None, ""):
        answer = patient_http.post(f"{live[0]}/v1/completions", json={"model": model, "prompt": "A"})
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "the request names no model; choose one of: story, chatty"


def test_tokenizing_takes_a_slot_and_no_text_longer_than_a_prompt_may_be(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, asked, go_on = TextTokenizer.encode, threading.Event(), threading.Event()

    def slow(*args, **options):
        asked.set()
        assert go_on.wait(LONGEST_WAIT)
        return encode(*args, **options)

    monkeypatch.setattr(TextTokenizer, "encode", slow)
    with served({"story": story}, max_texts=1) as (url, server), ThreadPoolExecutor(1) as pool:
        answer = patient_http.post(f"{url}/tokenize", json={"prompt": "a" * (512 * 256 + 1)})
        assert (answer.status_code, "this model takes 512 tokens" in answer.json()["error"]["message"]) == (400, True)
        first = pool.submit(patient_http.post, f"{url}/tokenize", json={"prompt": "A"})
        assert asked.wait(LONGEST_WAIT)
        assert patient_http.post(f"{url}/tokenize", json={"prompt": "A"}).status_code == 429
        go_on.set()
        assert first.result().status_code == 200
        assert patient_http.post(f"{url}/tokenize", json={"prompt": "A"}).status_code == 200
        assert server.slots.taken == 0


@pytest.mark.slow
def test_a_request_for_many_texts_leaves_room_for_others(story: Model) -> None:
    model = Model(story.folder, story.manifest, story.graph, chat_template=None, batch_size=2)
    many = LONG | {"context_limit": "shift", "max_tokens": 3000, "n": 6, "stream": True}
    with served({"story": model}, max_texts=8) as (url, server):
        answer = patient_http.post(f"{url}/v1/completions", json=many | {"n": 7})
        assert (answer.status_code, "at most 6 per request" in answer.json()["error"]["message"]) == (400, True)
        with patient_http.stream("POST", f"{url}/v1/completions", json=many) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert patient_http.post(f"{url}/v1/completions", json=many | {"n": 2}).status_code == 429
            assert patient_http.post(f"{url}/v1/completions", json={"prompt": "A", "max_tokens": 3}).status_code == 200
            assert model.generator.engine.scheduler.queue, "others of the six waited longer"
        assert wait_until(lambda: server.slots.taken == 0)


def test_an_error_of_the_model_is_told_and_the_next_request_is_answered(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(story.folder, story.manifest, story.graph, chat_template=None)
    real, runs = model.generator.engine.scheduler.decode, [0]

    def step(running: list) -> None:
        runs[0] += 1
        if runs[0] == 5:
            raise_in = ModelError("the model failed while it ran: no memory")
            for request in running:
                model.generator.engine.scheduler.delivery.set_error(request, raise_in)
            return
        real(running)

    monkeypatch.setattr(model.generator.engine.scheduler, "decode", step)
    with served({"story": model}) as (url, server):
        lines = [
            each for each in patient_http.post(f"{url}/v1/completions", json=LONG | {"stream": True}).text.split("\n\n") if each
        ]
        assert '"error"' in lines[-1]
        assert "no memory" in lines[-1]
        assert "[DONE]" not in lines[-1]
        runs[0] = 0
        answer = patient_http.post(f"{url}/v1/completions", json=LONG)
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        short = patient_http.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 3})
        assert (short.status_code, server.slots.taken) == (200, 0)
        runs[0] = 0
        with (
            pytest.raises(openai.APIError, match="no memory"),
            openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        ):
            list(client.completions.create(model="story", prompt="A", max_tokens=50, stream=True, extra_body={"ignore_eos": True}))


def test_a_deadline_ends_a_text(live: tuple) -> None:
    slow = LONG | {"model": "story", "context_limit": "shift", "max_tokens": 100_000, "max_time": 0.3}
    answer = patient_http.post(f"{live[0]}/v1/completions", json=slow).json()
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("length", "deadline")
    assert answer["usage"]["completion_tokens"] < 100_000


def test_neither_log_nor_metrics_hold_a_prompt(live: tuple, caplog: pytest.LogCaptureFixture) -> None:
    canary = "Wibberflick"
    with caplog.at_level(logging.DEBUG):
        patient_http.post(f"{live[0]}/v1/completions", json={"model": "story", "prompt": canary, "max_tokens": 4, "user": canary})
        patient_http.post(f"{live[0]}/v1/completions", json={"model": "story", "prompt": canary, "temperature": -1})
    assert canary not in caplog.text
    page = patient_http.get(f"{live[0]}/metrics").text
    assert canary not in page
    assert "gen_ai_server_time_to_first_token_seconds_count" in page


def test_a_client_that_does_not_read_loses_its_texts(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNREAD", 2000)
    slow = LONG | {"context_limit": "shift", "max_tokens": 10**6, "stream": True, "logprobs": 64, "n": 2}
    with served({"story": story}) as (url, server), patient_http.stream("POST", f"{url}/v1/completions", json=slow) as stream:
        assert server.slots.taken == 2
        (job,) = server.slots.jobs
        assert wait_until(lambda: job.cancel.cancelled)  # what lies between fills first
        text = "".join(stream.iter_text())
        assert '"finish_reason":"length"' in text
        assert text.endswith("data: [DONE]\n\n")


CHANGES = {
    "written over": lambda path: path.write_bytes(path.read_bytes()),
    "replaced by a rename": lambda path: Path(shutil.copy(path, path.with_suffix(".new"))).replace(path),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["model.onnx", "onnx/model_quantized.onnx_data"])
def test_files_that_change_under_the_server_are_told_in_one_line(story: Model, tmp_path: Path, name: str, change: str) -> None:
    folder = Path(shutil.copytree(story.folder, tmp_path / "served"))
    model = Model(folder, story.manifest, story.graph, chat_template=None)
    with served({"changing": model, "story": story}) as (url, _):
        wish = {"prompt": "A", "max_tokens": 1}
        assert patient_http.post(f"{url}/v1/completions", json=wish | {"model": "changing"}).status_code == 200
        (folder / "manifest.json").touch()  # is in memory
        assert patient_http.post(f"{url}/v1/completions", json=wish | {"model": "changing"}).status_code == 200
        CHANGES[change](folder / name)
        for route, more in (("v1/completions", wish), ("tokenize", {"prompt": "A"})):
            answer = patient_http.post(f"{url}/{route}", json=more | {"model": "changing"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
            assert (
                f"{Path(name).name} has changed since this server opened served; restart the server"
                in answer.json()["error"]["message"]
            )
        assert patient_http.post(f"{url}/v1/completions", json=wish | {"model": "story"}).status_code == 200
        assert patient_http.get(f"{url}/health").json()["status"] == "ok"


def test_a_server_that_ends_tells_its_clients(story: Model) -> None:
    slow = LONG | {"context_limit": "shift", "max_tokens": 10**6}
    with served({"story": story}) as (url, server), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(patient_http.post, f"{url}/v1/completions", json=slow | {"stream": each}) for each in (True, False)]
        assert wait_until(lambda: server.slots.taken == 2 and len(server.slots.jobs) == 2)
        server.slots.cancel_all()
        streamed, whole = (each.result() for each in waiting)
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert (whole.status_code, whole.json()["choices"][0]["finish_reason"]) == (200, "length")
        assert whole.json()["choices"][0]["stop_reason"] == "cancelled"
        assert '"finish_reason":"length","stop_reason":"cancelled"' in streamed.text
        assert wait_until(lambda: not server.slots.jobs)


SAID = [{"role": "user", "content": "Tell me of a dog."}]
ROUTES = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": SAID},
    "/v1/responses": {"input": SAID},
    "/v1/messages": {"messages": SAID},
    "/api/chat": {"messages": SAID},
    "/api/generate": {"prompt": "Once upon a time"},
}
"""Every route that generates, with what it is asked."""
OUT_OF_TIME = {
    "/v1/completions": {"finish_reason": "length", "stop_reason": "deadline"},
    "/v1/chat/completions": {"finish_reason": "length", "stop_reason": "deadline"},
    "/v1/responses": {"status": "incomplete", "incomplete_details": {"stop_reason": "deadline"}},
    "/v1/messages": {"stop_reason": "pause_turn"},
    "/api/chat": {"done": True, "done_reason": None},
    "/api/generate": {"done": True, "done_reason": None},
}
"""What each route tells of a text that the server cut off: no client takes it for one that reached its `max_tokens`."""
MOST_TOKENS = {"/v1/responses": "max_output_tokens", "/api/chat": "num_predict", "/api/generate": "num_predict"}


def asked(path: str, tokens: int, *, stream: bool = False, **more: object) -> dict:
    """A request for a text of so many tokens."""
    options = {MOST_TOKENS.get(path, "max_tokens"): tokens, "ignore_eos": True, "seed": 1, **more}
    return {**ROUTES[path], "stream": stream, **({"options": options} if path.startswith("/api") else options)}


def endless(path: str, *, stream: bool = False) -> dict:
    """A request for a text without end."""
    return asked(path, 10**6, stream=stream, context_limit="shift")


def fields_of_end(event: dict) -> dict:
    """The part of an answer or of an event that says why the text ended; empty if none does."""
    places = [event, event.get("response"), event.get("delta"), *event.get("choices", ())]
    names = ("finish_reason", "stop_reason", "incomplete_details", "done")
    return next((each for each in places if isinstance(each, dict) and any(each.get(name) for name in names)), {})


def problem_in(answer: httpx.Response) -> str:
    """The message of a problem, in the form of any route."""
    found = answer.json()["error"]
    return found if isinstance(found, str) else found["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_has_the_guards(chatty: Model, path: str) -> None:
    key, body = {"Authorization": "Bearer secret"}, asked(path, 2)
    with served({"chatty": chatty}, api_key="secret", max_body_bytes=1000) as (url, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            refused = patient_http.post(url + path, json=body, headers=headers)
            assert (refused.status_code, problem_in(refused)[:10]) == (401, "no API key")
        for headers in (key, {"x-api-key": "secret"}):
            assert patient_http.post(url + path, json=body, headers=headers).status_code == 200
        for content in (b" " * 2000, (b" " * 100 for _ in range(20))):
            refused = patient_http.post(url + path, content=content, headers=key | {"Content-Type": "application/json"})
            assert (refused.status_code, "more than 1,000 bytes" in problem_in(refused)) == (413, True)
        refused = patient_http.post(url + path, json=body, headers=key | {"Host": "evil.example"})
        assert (refused.status_code, "answers only to the Host" in problem_in(refused)) == (400, True)
        refused = patient_http.post(url + path, json=body | {"model": "other"}, headers=key)
        assert (refused.status_code, "there is no model 'other' here" in problem_in(refused)) == (404, True)
        refused = patient_http.post(url + path, content=b"{", headers=key | {"Content-Type": "application/json"})
        assert (refused.status_code, "the body is not JSON" in problem_in(refused)) == (400, True)
        page = patient_http.get(f"{url}/metrics", headers=key).text
        assert 'refused_total{reason="401"} 3.0' in page and 'refused_total{reason="413"} 2.0' in page


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_refuses_texts_when_the_server_is_full(chatty: Model, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    step, go_on = chatty.generator.engine.scheduler.decode, threading.Event()
    monkeypatch.setattr(chatty.generator.engine.scheduler, "decode", lambda going: (go_on.wait(LONGEST_WAIT), step(going)))
    with served({"chatty": chatty}, max_texts=1) as (url, server), ThreadPoolExecutor(1) as pool:
        taken = pool.submit(patient_http.post, url + path, json=asked(path, 480))
        assert wait_until(lambda: server.slots.taken == 1)
        refused = patient_http.post(url + path, json=asked(path, 480))
        go_on.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "already run or wait" in problem_in(refused)
        assert path not in ("/v1/completions", "/v1/chat/completions") or refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 'refused_total{reason="429"} 1.0' in patient_http.get(f"{url}/metrics").text
        assert taken.result().status_code == 200
        assert server.slots.taken == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_no_route_takes_longer_than_the_server_allows(chatty: Model, path: str, stream: bool) -> None:
    with served({"chatty": chatty}, max_seconds=0.3) as (url, server):
        answer = patient_http.post(url + path, json=endless(path, stream=stream))
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        found = next(fields for event in reversed(events) if (fields := fields_of_end(event)))
        assert {name: found.get(name) for name in OUT_OF_TIME[path]} == OUT_OF_TIME[path]
        assert wait_until(lambda: server.slots.taken == 0)


@pytest.mark.parametrize(("path", "texts"), [*((path, 1) for path in ROUTES), ("/v1/completions", 3)])
def test_a_client_that_goes_away_frees_its_slots_on_every_route(chatty: Model, path: str, texts: int) -> None:
    model = Model(chatty.folder, chatty.manifest, chatty.graph, chat_template=chatty.chat_template)
    several, engine = {"n": texts} if texts > 1 else {}, model.generator.engine.scheduler
    with served({"chatty": model}) as (url, server):
        with patient_http.stream("POST", url + path, json=endless(path, stream=True) | several) as stream:
            lines = stream.iter_lines()
            assert all(next(lines) is not None for _ in range(3))
            assert server.slots.taken == texts
        assert wait_until(lambda: server.slots.taken == 0)
        assert wait_until(lambda: all(row.is_abandoned for row in engine.rows))
        with pytest.raises(httpx.ReadTimeout):
            patient_http.post(url + path, json=endless(path) | several, timeout=httpx.Timeout(LONGEST_WAIT, read=0.5))
        assert wait_until(lambda: server.slots.taken == 0)
        assert patient_http.post(url + path, json=asked(path, 3)).status_code == 200
        assert 'outcome="cancelled"' in patient_http.get(f"{url}/metrics").text


@pytest.mark.parametrize("path", ROUTES)
def test_what_goes_wrong_in_a_stream_is_told_on_every_route(chatty: Model, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(chatty.generator.engine, "finish", fail)
    with served({"chatty": chatty}) as (url, server):
        last = [line for line in patient_http.post(url + path, json=asked(path, 480, stream=True)).text.splitlines() if line][-1]
        event = json.loads(last.removeprefix("data: "))
        assert "the server failed (RuntimeError)" in str(event.get("response", event)["error"])
        assert "secret" not in last
        assert wait_until(lambda: server.slots.taken == 0)
        assert 'outcome="error"' in patient_http.get(f"{url}/metrics").text
