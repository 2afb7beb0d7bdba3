"""The runtimes that are compared, by what the table calls them."""

from __future__ import annotations

from collections.abc import Callable

from transformers_js import find_transformers_browser, find_transformers_node

from onnx_textgen.diagnostics.runtimes.browser import find_browser
from onnx_textgen.diagnostics.runtimes.genai import find_genai
from onnx_textgen.diagnostics.runtimes.node import find_node
from onnx_textgen.diagnostics.runtimes.own_engine import OwnEngine, find_openvino
from onnx_textgen.diagnostics.runtimes.protocol import Runtime

OURS = "Python"
"""What all are compared with."""


def find_bfloat16() -> Runtime:
    """OpenVINO in bfloat16."""
    find_openvino()
    return OwnEngine("openvino:bf16")


def find_webgpu() -> Runtime:
    """onnxruntime-web on a GPU that the processor imitates."""
    return find_browser(device="webgpu")


COLUMNS: dict[str, Callable[[], Runtime]] = {
    OURS: lambda: OwnEngine("cpu"),
    "genai": find_genai,
    "Node": find_node,
    "OpenVINO": find_openvino,
    "OpenVINO bf16": find_bfloat16,
    "Chromium": find_browser,
    "transformers.js in Node": find_transformers_node,
    "transformers.js in Chromium": find_transformers_browser,
    "WebGPU by software": find_webgpu,
}
