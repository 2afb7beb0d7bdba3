"""The recipes of examples/ run, where what they are for is installed."""

import asyncio
import contextlib
import functools
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import BatchGenerator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUIET = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install "ray[data]"')
def test_ray_data_writes_the_texts_that_one_process_writes(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "seed": seed} for seed, prompt in enumerate(["Once upon a time", "The dog", "Lily", "It was"] * 3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, EXAMPLES / "ray_data.py", tmp_path / "prompts.jsonl", tmp_path / "texts", "--max-new-tokens", "8"]
    subprocess.run(command, check=True, capture_output=True, env=QUIET, timeout=300)
    found = [json.loads(line) for path in (tmp_path / "texts").iterdir() for line in path.read_text().splitlines()]
    batch = {"prompt": [row["prompt"] for row in rows], "seed": [row["seed"] for row in rows]}
    want = BatchGenerator("story", threads=1, device="cpu", max_new_tokens=8)(batch)["generated_text"]
    assert {row["seed"]: row["generated_text"] for row in found} == dict(enumerate(want))


@pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install "ray[data]"')
def test_ray_data_leaves_out_rows_that_have_their_text(tmp_path: Path) -> None:
    rows = [{"prompt": "The dog", "seed": seed} for seed in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "earlier.json").write_text("".join(json.dumps({**row, "generated_text": "x"}) + "\n" for row in rows[:4]))
    command = [sys.executable, EXAMPLES / "ray_data.py", tmp_path / "prompts.jsonl", tmp_path / "texts", "--max-new-tokens", "4"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=QUIET, timeout=300)
    assert "4 rows have their text" in done.stdout
    found = [json.loads(line) for path in (tmp_path / "texts").iterdir() for line in path.read_text().splitlines()]
    assert sorted(row["seed"] for row in found) == list(range(6))


@pytest.mark.skipif(find_spec("ray") is None or find_spec("ray.serve") is None, reason='needs pip install "ray[serve]"')
def test_ray_serve_answers_openais_client_with_the_text_of_the_model_streamed_too(story: onnx_textgen.Model) -> None:
    import openai  # noqa: PLC0415

    with serving("ray_serve.py", "--port", "PORT", "--most", "1", "--api-key", "k") as (port, _):
        wait_for(port, "/health")
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k") as client:
            options = {"model": "story", "prompt": "The dog", "max_tokens": 12, "temperature": 0}
            want = story.generate("The dog", max_new_tokens=12, temperature=0).text
            assert client.completions.create(**options).choices[0].text == want
            chunks = [chunk.choices[0].text for chunk in client.completions.create(**options, stream=True) if chunk.choices]
            assert "".join(chunks) == want and len(chunks) > 5


@contextlib.contextmanager
def serving(example: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """An example that serves; its arguments name PORT, and perhaps OTHER, which are yielded."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, more = (each.getsockname()[1] for each in (one, other))
    given = [{"PORT": str(port), "OTHER": str(more)}.get(each, each) for each in arguments]
    command = [sys.executable, EXAMPLES / example, *given]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=QUIET, start_new_session=True)
    try:
        yield port, more
    finally:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its workers too
        server.wait(30)


def wait_for(port: int, path: str) -> None:
    """Until a server answers there."""
    end = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10):
                return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.2)


@pytest.mark.skipif(find_spec("litserve") is None, reason="needs pip install litserve")
def test_litserve_answers_with_the_texts_of_the_model(story: onnx_textgen.Model) -> None:
    with serving("litserve_server.py", "--port", "PORT", "--workers", "1", "--max-new-tokens", "8") as (port, _):
        wait_for(port, "/health")
        ask = functools.partial(posted, f"http://127.0.0.1:{port}/predict", kind="application/json")
        found = json.loads(ask(json.dumps({"prompt": "The dog", "seed": 7}))[1])
        assert found == {"text": story.generate("The dog", seed=7, max_new_tokens=8).text, "finish_reason": "length", "seed": 7}
        assert "a request is" in json.loads(ask(json.dumps({"prompt": 5}))[1])["error"]


@pytest.mark.skipif(find_spec("kserve") is None, reason="needs pip install kserve")
def test_kserves_clients_get_the_texts_of_the_model(story: onnx_textgen.Model) -> None:
    import kserve  # noqa: PLC0415
    from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig  # noqa: PLC0415

    want = [story.generate(prompt, seed=7, max_new_tokens=8).text for prompt in ("The dog", "Lily")]
    rows = {"instances": [{"prompt": "The dog", "seed": 7}, {"prompt": "Lily", "seed": 7}]}
    prompts, seeds = kserve.InferInput("prompt", [2], "BYTES", ["The dog", "Lily"]), kserve.InferInput("seed", [2], "INT64", [7, 7])

    async def asked(base: str, protocol: str, request: object) -> Any:
        client = InferenceRESTClient(RESTConfig(protocol=protocol, timeout=60))
        try:
            return await client.infer(base, request, model_name="textgen")
        finally:
            await client.close()

    async def asked_by_grpc(port: int, request: kserve.InferRequest) -> Any:
        async with InferenceGRPCClient(f"127.0.0.1:{port}", timeout=60) as client:
            return await client.infer(request)

    ports = ("--http_port", "PORT", "--grpc_port", "OTHER")
    with serving("kserve_server.py", *ports, "--max-new-tokens", "8") as (port, other):
        wait_for(port, "/v2/models/textgen/ready")
        base = f"http://127.0.0.1:{port}"
        first = asyncio.run(asked(base, "v1", rows))
        assert [row["generated_text"] for row in first["predictions"]] == want
        request = kserve.InferRequest("textgen", [prompts, seeds])
        for second in (asyncio.run(asked(base, "v2", request)), asyncio.run(asked_by_grpc(other, request))):
            texts = second.get_output_by_name("generated_text").as_numpy().tolist()
            assert [each.decode() if isinstance(each, bytes) else each for each in texts] == want
            assert second.get_output_by_name("generated_tokens").as_numpy().tolist() == [8, 8]
        for wrong in ({"instances": [5]}, {"instances": [{"prompt": ""}]}, {}):
            with pytest.raises(Exception, match="400 Bad Request"):
                asyncio.run(asked(base, "v1", wrong))
        body = {"inputs": [{"name": "seed", "shape": [2], "datatype": "INT64", "data": [7]}]}
        assert posted(f"{base}/v2/models/textgen/infer", json.dumps(body), "application/json")[0] == 400
        assert posted(f"{base}/v1/models/textgen:predict", "[1]", "application/json")[0] == 400
        status, answer = posted(f"{base}/v1/models/textgen:predict", json.dumps(rows), "application/json; charset=utf-8")
        assert (status, [row["generated_text"] for row in json.loads(answer)["predictions"]]) == (200, want)


def posted(url: str, body: str, kind: str) -> tuple[int, str]:
    """The status and the body of an answer."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_batch_job_goes_on_where_it_was_interrupted(tmp_path: Path, story: onnx_textgen.Model) -> None:
    prompts = [f"The dog number {number}" for number in range(11)]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    command = [
        sys.executable,
        EXAMPLES / "batch_job.py",
        tmp_path / "prompts.txt",
        tmp_path / "texts.jsonl",
        "--max-new-tokens",
        "5",
    ]
    subprocess.run(command, check=True, env=QUIET, timeout=300)
    first = (tmp_path / "texts.jsonl").read_text()
    found = [json.loads(line) for line in first.splitlines()]
    assert [row["prompt"] for row in found] == prompts
    assert found[9]["text"] == story.generate(prompts[9], seed=9, max_new_tokens=5).text
    (tmp_path / "texts.jsonl").write_text("".join(first.splitlines(keepends=True)[:4]))
    subprocess.run(command, check=True, env=QUIET, timeout=300)
    assert (tmp_path / "texts.jsonl").read_text() == first


@pytest.mark.skipif(
    find_spec("fastapi") is None or find_spec("httpx") is None, reason='needs pip install "onnx-textgen[serve]" httpx'
)
def test_an_application_streams_texts(story: onnx_textgen.Model) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    names = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))
    with testclient.TestClient(names["app"]) as client:
        answer = client.get("/story", params={"beginning": "The dog", "seed": 7, "max_new_tokens": 20})
        assert (answer.status_code, answer.text) == (200, story.generate("The dog", seed=7, max_new_tokens=20).text)
        wrong = client.get("/story", params={"beginning": "", "seed": 7})
        assert (wrong.status_code, "the prompt is empty" in wrong.json()["detail"]) == (400, True)


DRIVE = """
import runpy, sys, time, tkinter
names = runpy.run_path(sys.argv[1])
root = tkinter.Tk()
import onnx_textgen
window = names["Window"](root, onnx_textgen.load(threads=1, device="cpu"))
window.go.invoke()
end = time.monotonic() + 60
while window.note["text"] != "ready" and time.monotonic() < end:
    root.update()
    if len(window.text.get("1.0", "end-1c")) > 100:
        window.stop.invoke()
print(len(window.text.get("1.0", "end-1c")), window.note["text"], str(window.go["state"]))
window.close()
"""


@pytest.mark.skipif(shutil.which("xvfb-run") is None or find_spec("tkinter") is None, reason="needs Tk and xvfb-run")
def test_a_window_writes_and_stops() -> None:
    command = ["xvfb-run", "-a", sys.executable, "-c", DRIVE, str(EXAMPLES / "desktop_window.py")]
    length, note, state = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()
    assert (note, state) == ("ready", "normal")
    assert 100 < int(length) < 400
