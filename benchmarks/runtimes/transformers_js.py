"""transformers.js in Node and in Chromium, over the package folder as it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from onnx_textgen.diagnostics.runtimes.browser import Browser, find_browser
from onnx_textgen.diagnostics.runtimes.node import Node, find_node, found_in
from onnx_textgen.diagnostics.runtimes.protocol import Rounding, Task
from onnx_textgen.errors import DeviceError, PackageError
from onnx_textgen.package.manifest import MANIFEST, Manifest

HERE = Path(__file__).resolve().parent
LIBRARY = "@huggingface/transformers"
MODULES = Path("node_modules")
"""Where the current folder has the libraries."""


def job_for(folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> dict[str, object]:
    """What both programs read; raises `PackageError` for a package without the files that transformers.js opens."""
    if not (folder / "config.json").is_file():
        raise PackageError("no config.json")
    return {"folder": str(folder.resolve()), "eos_ids": manifest.eos_ids, "tasks": [dataclasses.asdict(task) for task in tasks]}


@dataclasses.dataclass(frozen=True, slots=True)
class TransformersNode:
    """Implements `Runtime`."""

    node: Node
    version: str
    rounding: Rounding = "onnxruntime"

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        return f"transformers.js {self.version} on onnxruntime-node {self.node.version}"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        return found_in(self.node.answer(HERE / "transformers_node.mjs", job_for(folder, manifest, tasks)), self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class TransformersBrowser:
    """Implements `Runtime`."""

    browser: Browser
    version: str
    rounding: Rounding = "none"

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        ort = json.loads((MODULES / "onnxruntime-web" / "package.json").read_text(encoding="utf-8"))["version"]
        return f"transformers.js {self.version} on onnxruntime-web {ort} (wasm)"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        folders = {"here": HERE, "modules": MODULES.resolve(), "package": folder}
        listed = {MANIFEST, *manifest.files}
        return found_in(self.browser.answer("here/transformers.html", job_for(folder, manifest, tasks), folders, listed), self.name)


def installed_version() -> str:
    """The version of transformers.js in the current folder; raises `DeviceError` if it has none."""
    place = MODULES / LIBRARY / "package.json"
    if not place.is_file():
        raise DeviceError(f"no {LIBRARY} in the current folder; npm install --ignore-scripts {LIBRARY}")
    return str(json.loads(place.read_text(encoding="utf-8"))["version"])


def find_transformers_node() -> TransformersNode:
    """Raises `DeviceError` if Node or a library is missing."""
    return TransformersNode(find_node(), installed_version())


def find_transformers_browser() -> TransformersBrowser:
    """Raises `DeviceError` if the browser or a library is missing."""
    return TransformersBrowser(find_browser(), installed_version())
