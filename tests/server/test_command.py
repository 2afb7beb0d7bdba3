"""`onnx-textgen serve` as a process."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from onnx_textgen.cli import run
from onnx_textgen_server.cli import named


def test_it_answers_until_ctrl_c(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "onnx_textgen.cli", "serve", "one=story", "tiny-transformer", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "ONNX_TEXTGEN_API_KEY": "k"}) as process:
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    found = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": "Bearer k"})
                    break
                except httpx.TransportError:
                    assert time.monotonic() < end
                    assert process.poll() is None
                    time.sleep(0.05)
            assert [each["id"] for each in found.json()["data"]] == ["one", "tiny-transformer"]
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr is not None
            assert process.stderr.read().splitlines() == [f"one, tiny-transformer at http://127.0.0.1:{port}/v1 (Ctrl-C ends it)"]
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "lets other machines use this server; add --api-key"),
        (["--host", "::"], "lets other machines use this server; add --api-key"),
        (["--host", "127.0.0.1:8000"], "--host takes an address"),
        (["--api-key", " "], "the API key is empty"),
        (["--api-key", "schlüssel"], "other characters than ASCII"),
        (["story", "story"], "two models are called story; name them: NAME=DIR"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, monkeypatch, arguments: list[str], said: str) -> None:
    monkeypatch.delenv("ONNX_TEXTGEN_API_KEY", raising=False)
    assert run(["serve", *arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_names() -> None:
    assert named(["a=b/c", "d/e", "f"]) == [("a", "b/c"), ("e", "d/e"), ("f", "f")]
    assert named([None]) == [(None, None)]
