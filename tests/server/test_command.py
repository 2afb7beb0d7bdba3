"""`onnx-textgen serve` as a process."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import OptionError
from onnx_textgen.hosts import listen
from onnx_textgen_server.pool.model_pool import PoolLimits
from onnx_textgen_server.pool.sources import LoadOptions, find_sources
from onnx_textgen_server.transport import process
from support import patient_http
from support.can_bind import can_bind
from support.patient_http import LONGEST_WAIT


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


KEY = {"Authorization": "Bearer k"}


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, httpx.Response]]:
    """A process that serves, its address, and its list of models."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "onnx_textgen.cli", "serve", *arguments, "--port", url.rpartition(":")[2]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "ONNX_TEXTGEN_API_KEY": "k"}) as process:
        try:
            end = time.monotonic() + LONGEST_WAIT
            while True:
                try:
                    found = patient_http.get(f"{url}/v1/models", headers=KEY)
                    break
                except httpx.TransportError:
                    assert time.monotonic() < end
                    assert process.poll() is None
                    time.sleep(0.05)
            yield process, url, found
        finally:
            process.kill()


def test_it_answers_until_ctrl_c() -> None:
    with serving("one=story", "tiny-transformer") as (process, url, found):
        assert [each["id"] for each in found.json()["data"]] == ["one", "tiny-transformer"]
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_WAIT) == 130
        assert process.stderr is not None
        assert process.stderr.read().splitlines() == [f"one, tiny-transformer at {url}/v1 (Ctrl-C ends it)"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(("seconds", "is_whole"), [("300", True), ("0", False), ("0.05", False)])
def test_sigterm_lets_texts_end_while_it_drains(seconds: str, is_whole: bool) -> None:
    options = {"max_tokens": 480, "min_new_tokens": 480, "temperature": 0}
    whole = onnx_textgen.load("story").generate("Once upon a time", max_new_tokens=480, min_new_tokens=480, temperature=0).text
    with serving("story", "--drain", seconds, "--threads", "1") as (process, url, _), httpx.Client(timeout=LONGEST_WAIT) as client:
        body = {"prompt": "Once upon a time", "stream": True, **options}
        with client.stream("POST", f"{url}/v1/completions", headers=KEY, json=body) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            *others, done = lines
        assert done == "[DONE]"
        text = "".join(json.loads(line)["choices"][0]["text"] for line in [first, *others])
        assert whole.startswith(text) and (text == whole) == is_whole
        assert process.wait(LONGEST_WAIT) == 0, "what runs at exit ran: traces are sent there"
        with pytest.raises(httpx.TransportError):
            client.get(f"{url}/health")


def test_a_second_signal_does_not_wait() -> None:
    calls: list[str] = []
    slots = SimpleNamespace(cancel_all=lambda: calls.append("cancelled"))
    app = FastAPI()
    app.state.server = SimpleNamespace(slots=slots)
    server, loop = process.FastShutdownServer(process.make_config(app), 0.01), asyncio.new_event_loop()
    server.loop = loop
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and calls == []
    server.handle_exit(signal.SIGTERM, None)
    assert calls == ["cancelled"]
    loop.run_until_complete(asyncio.sleep(0.2))
    assert calls == ["cancelled"] * 2, "what began meanwhile is cancelled in time"
    loop.close()


def test_a_signal_before_there_is_a_loop_cancels_at_once() -> None:
    calls: list[str] = []
    app = FastAPI()
    app.state.server = SimpleNamespace(slots=SimpleNamespace(cancel_all=lambda: calls.append("cancelled")))
    server = process.FastShutdownServer(process.make_config(app), 300)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and calls == ["cancelled"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGINT], 130), ([signal.SIGTERM, signal.SIGTERM], 0), ([signal.SIGTERM, signal.SIGINT], 130)],
    ids=["ctrl-c", "twice", "both"],
)
def test_a_half_sent_body_does_not_hold_a_server_that_may_drain(signals: list[int], code: int) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n"
    with (
        serving("story", "--drain", "300") as (process, url, _),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as half,
    ):
        half.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.5)
        for each in signals:
            process.send_signal(each)
            time.sleep(0.5)
        assert process.wait(20) == code  # that of a body is 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "lets other machines use this server; add --api-key"),
        (["--host", "::"], "lets other machines use this server; add --api-key"),
        (["--host", "127.0.0.1:8000"], "--host takes an address"),
        (["--api-key", " "], "the API key is empty"),
        (["--api-key", "schlüssel"], "characters outside ASCII"),
        (["story", "story"], "two models are called story; give them names with NAME=DIR"),
        (["nowhere"], "nowhere"),
        (["--drain", "nan"], "--drain takes at most 86400"),
        (["--drain", "inf"], "--drain takes at most 86400"),
        (["--max-time", "nan"], "--max-time takes at least 1"),
        (["--idle-minutes", "nan"], "--idle-minutes takes at least 0"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, monkeypatch, arguments: list[str], said: str) -> None:
    monkeypatch.delenv("ONNX_TEXTGEN_API_KEY", raising=False)
    assert run(["serve", *arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_one_line_and_no_address_is_told_nor_a_model_loaded(capsys, monkeypatch) -> None:
    monkeypatch.setattr(onnx_textgen, "load", lambda *_, **__: pytest.fail("the port comes first"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(["serve", "story", "--port", str(port)]) == 2
    why = os.strerror(errno.EADDRINUSE)
    taken = f"error: port {port} of 127.0.0.1 cannot be used ({why}); choose another with --port\n"
    assert capsys.readouterr() == ("", taken)


def test_a_host_that_is_none_of_this_machine_is_one_line(capsys) -> None:
    assert run(["serve", "story", "--host", "192.0.2.1", "--allow-public"]) == 2  # an address for documents
    why = os.strerror(errno.EADDRNOTAVAIL)
    said = f"error: --host 192.0.2.1 is not an address or name of this machine: {why}; choose another\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.skipif(not can_bind("::1"), reason="this machine has no IPv6")
def test_a_name_is_listened_to_at_each_of_its_addresses(monkeypatch) -> None:
    both = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    found = [(family, socket.SOCK_STREAM, 6, "", (address, 0)) for family, address in [*both, *both]]  # as /etc/hosts may have them
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listeners = listen("localhost", 0)
    try:
        assert [each.family for each in listeners] == [family for family, _ in both]
        assert len({each.getsockname()[1] for each in listeners}) == 1
    finally:
        for each in listeners:
            each.close()


def test_names() -> None:
    def names(*packages: str | None) -> list[str]:
        sources, at_start = find_sources(packages, LoadOptions())
        assert [each.name for each in sources] == at_start
        return at_start

    assert names("a=./b/c", "./d/e", "f", "story") == ["a", "e", "f", "story"]
    assert names(None) == ["story"]


def test_a_folder_of_models_is_a_model_for_each_that_is_not_hidden(tmp_path, monkeypatch) -> None:
    story = onnx_textgen.load().folder
    for name in ("one", "owner%2Ftwo", ".half"):
        shutil.copytree(story, tmp_path / name)
    (tmp_path / "notes").mkdir()

    def names(*packages: str) -> tuple[list[str], list[str]]:
        sources, at_start = find_sources(packages, LoadOptions())
        return [each.name for each in sources], at_start

    assert names(str(tmp_path)) == (["one", "owner%2Ftwo"], [])
    assert names(str(tmp_path), "story") == (["one", "owner%2Ftwo", "story"], ["story"])
    monkeypatch.setenv("ONNX_TEXTGEN_CACHE", str(tmp_path))
    assert names(str(tmp_path)) == (["one", "owner/two"], [])
    with pytest.raises(OptionError, match="two models are called one"):
        names(str(tmp_path), str(tmp_path / "one"))
    with pytest.raises(OptionError, match="holds several models, which are called by their folders' names; leave out x="):
        names(f"x={tmp_path}")


def test_a_folder_of_models_is_served_with_its_limits_and_what_is_broken_is_told(tmp_path, capsys, monkeypatch) -> None:
    for name in ("good", "bad"):
        shutil.copytree(onnx_textgen.load().folder, tmp_path / name)
    (tmp_path / "bad" / "manifest.json").write_text("[]", encoding="utf-8")
    served = []
    monkeypatch.setattr(process, "run_server", lambda app, _, **__: served.append(app.state.server.pool))
    limits = ["--max-loaded", "2", "--idle-minutes", "0.5", "--max-texts", "3"]
    limits += ["--prefix-folder", str(tmp_path / "saved"), "--prefix-bytes", "5000"]
    assert run(["serve", str(tmp_path), "mine=story", "--port", str(free_port()), *limits]) == 0
    (pool,) = served
    assert [each.name for each in pool.loaded] == ["mine"], "a model that was named is opened at the start"
    assert pool.limits == PoolLimits(2, 30.0, max_waiting=3)
    (mine,) = pool.loaded
    saved = mine.model.generator.prefixes.saved
    assert (saved.folder, saved.size_bytes) == (tmp_path / "saved", 5000)
    said = capsys.readouterr().err.splitlines()
    assert said.pop(0) == "warning: --prefix-bytes is called --prefix-folder-bytes now"
    assert said[0].startswith("warning: bad cannot be opened: manifest.json should be a JSON object")
    assert said[1].startswith("bad, good, mine at http://127.0.0.1:")
