"""The runtimes by the names that `verify --runtime` takes."""

from __future__ import annotations

from collections.abc import Callable

from .browser import find_browser
from .genai import find_genai
from .node import find_node
from .own_engine import find_openvino
from .protocol import Runtime

RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "genai": find_genai,
    "openvino": find_openvino,
    "node": find_node,
    "browser": find_browser,
}
"""Each raises `DeviceError`, with the command that installs it, for a runtime that this machine does not have."""
