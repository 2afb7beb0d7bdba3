"""onnxruntime-node, by a Node program over the JavaScript core of `runtime/web`."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...errors import DeviceError, ModelError, first_line
from ...package.manifest import GRAPH, Manifest
from ...web_site.libraries import web_folder
from .protocol import Rounding, Task

INSTALL_NODE = "install it from https://nodejs.org, or with: apt install nodejs npm"
INSTALL = "install it here with: npm install --ignore-scripts onnxruntime-node@1.30.0"
FIND = 'console.log(require("node:module").createRequire(process.cwd() + "/-")("onnxruntime-node/package.json").version)'
"""Prints the version of the library that Node finds from the current folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """Implements `protocol.Runtime`."""

    program: str
    version: str
    """Of onnxruntime-node."""
    longest_seconds: float = 1800

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        return f"onnxruntime-node {self.version}"

    @property
    def rounding(self) -> Rounding:
        """See `Runtime.rounding`."""
        return "onnxruntime"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        job = {"folder": str(folder.resolve()), "graph": GRAPH, "tasks": [dataclasses.asdict(task) for task in tasks]}
        return found_in(self.answer(web_folder() / "replay" / "node.js", job), self.name)

    def answer(self, script: Path, job: object) -> str:
        """The answer of a script, which reads the job from stdin; raises `ModelError` if there is none in time."""
        try:
            done = subprocess.run(
                [self.program, str(script)],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                check=False,
                timeout=self.longest_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"{self.name} did not end within {self.longest_seconds:.0f} s") from error
        return done.stdout or json.dumps({"error": done.stderr.strip() or f"exit code {done.returncode}"})


def found_in(answer: str, name: str) -> list[tuple[int, ...]]:
    """The continuations in a program's answer; raises `ModelError` if it has an error instead."""
    found = json.loads(answer)
    if "error" in found:
        raise ModelError(f"{name} failed: {first_line(ModelError(found['error']))}")
    return [tuple(ids) for ids in found["found"]]


def find_node() -> Node:
    """Find Node and onnxruntime-node; raises `DeviceError` if one is not installed."""
    program = shutil.which("node")
    if program is None:
        raise DeviceError(f"Node.js is not installed; {INSTALL_NODE}")
    done = subprocess.run([program, "-e", FIND], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"Node.js finds no onnxruntime-node from {Path.cwd()}; {INSTALL}")
    return Node(program, done.stdout.strip())
