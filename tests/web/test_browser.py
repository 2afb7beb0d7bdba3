"""The same modules in Chromium, in a worker: the texts, golden runs and chats that Node gives with the same WebAssembly."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium")
pytest.importorskip("gradio")

import onnx_textgen
from support.browser import chromium, programs
from support.node import ROOT, Node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(None in programs(), reason="needs chromium and chromium-driver"),
]

WORKER = """
import * as jinja from "./node_modules/@huggingface/jinja/dist/index.js";
import * as tokenizers from "./node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs";
import * as ort from "./node_modules/onnxruntime-web/dist/ort.min.mjs";
import { generate, openModel, replayGolden } from "./textgen/index.js";

ort.env.wasm.numThreads = 1;
onmessage = async ({ data: { folder, prompt, options, stopAfter } }) => {
  try {
    const session = { executionProviders: ["wasm"] };
    const model = await openModel({ ort, tokenizers, jinja }, (name) => fetch(`${folder}/${name}`), { session });
    const { right, total } = await replayGolden(model);
    const control = new AbortController();
    addEventListener("message", () => control.abort());
    const chunks = [];
    for await (const chunk of generate(model, prompt, options, { signal: control.signal })) {
      chunks.push(chunk);
      if (chunks.length === stopAfter) postMessage("stop me");
    }
    postMessage({ right, total, chunks });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
"""
PAGE = "<!doctype html><title>worker</title><script>const worker = new Worker('worker.mjs', { type: 'module' });</script>"
ASK = """
const [request, done] = arguments;
worker.onmessage = ({ data }) => (data === "stop me" ? worker.postMessage("stop") : done(data));
worker.onerror = (event) => done({ error: event.message });
worker.postMessage(request);
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, without a log."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(web: Path) -> Iterator[str]:
    """A server of the modules, their libraries and the packages."""
    (web / "worker.mjs").write_text(WORKER)
    (web / "index.html").write_text(PAGE)
    for name in ("artifacts", "tests/packages"):
        (web / Path(name).name).symlink_to(ROOT / name, target_is_directory=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(web))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(address: str, **request: Any) -> dict[str, Any]:
    """What a worker of a new browser answers."""
    with chromium() as driver:
        driver.set_script_timeout(300)
        driver.get(f"{address}/index.html")
        found = driver.execute_async_script(ASK, request)
    assert "error" not in found, found
    return dict(found)


@pytest.mark.parametrize("folder", ["artifacts/story", "packages/ort"])
def test_a_worker_gives_the_texts_of_node_and_the_golden_runs(node: Node, address: str, folder: str) -> None:
    package = ROOT / ("tests" if folder.startswith("packages") else ".") / folder
    prompt, options = "Once upon a time", {"seed": 7, "max_new_tokens": 12, "logprobs": 2}
    found = ask(address, folder=folder, prompt=prompt, options=options)
    assert (found["right"], found["total"]) == (len(json.loads((package / "manifest.json").read_text())["golden"]),) * 2
    handle = node.call("open", "web", str(package))
    wanted = node.call("generate", handle, prompt, {**options, "seed": "7"})["chunks"]
    assert found["chunks"] == wanted and len(wanted) == 12
    if folder == "packages/ort":  # of float32, so that Python's logits are the same
        model = onnx_textgen.load(package, device="cpu", threads=1)
        assert [chunk["token_id"] for chunk in wanted] == list(model.generate(prompt, **options).token_ids)


def test_a_message_stops_a_text_although_webassembly_computes_in_the_same_worker(address: str) -> None:
    found = ask(address, folder="packages/ort", prompt="Once", options={"seed": 1, "max_new_tokens": 400}, stopAfter=3)
    assert found["chunks"][-1]["finish_reason"] == "cancelled" and 3 <= len(found["chunks"]) < 400
