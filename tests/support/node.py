"""JavaScript for tests: a folder with `runtime/web` and its npm packages, and a process of Node that calls its functions.

The packages are installed once, by the lock file, into a folder of the user's cache; without Node or npm the tests skip.
"""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "runtime" / "web"
NODE, NPM = shutil.which("node"), shutil.which("npm")
MOST_SECONDS = 600


class NodeError(Exception):
    """An error that a JavaScript function raised: its class and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def installed_packages(folder: Path = WEB) -> Path:
    """The `node_modules` that a folder's lock file asks for, installed if no test has done so yet; skips without Node or npm."""
    if NODE is None or NPM is None:
        pytest.skip("needs node and npm")
    lock = (folder / "package-lock.json").read_bytes() + (folder / "package.json").read_bytes()
    place = platformdirs.user_cache_path("onnx-textgen") / "tests" / f"npm-{hashlib.sha256(lock).hexdigest()[:16]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with only_one(place.with_suffix(".lock")):
        if not place.is_dir():
            half = place.with_suffix(f".{os.getpid()}")
            half.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(folder / name, half)
            # The install scripts would fetch CUDA; the CPU's library is in the package.
            command = [NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(half / "cache")]
            done = subprocess.run(command, cwd=half, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
            shutil.rmtree(half / "cache", ignore_errors=True)
            if done.returncode:
                shutil.rmtree(half)
                pytest.skip(f"npm could not install the packages of {folder.name}: {done.stderr.strip()[-300:]}")
            for system in (half / "node_modules" / "onnxruntime-node" / "bin").glob("*/*"):
                if system.name != sys.platform:
                    shutil.rmtree(system)  # 200 MB of other systems' libraries
            half.rename(place)
    return place / "node_modules"


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold a lock that processes share: a folder that only one of them can make; one that was left behind is taken."""
    for _ in range(2 * MOST_SECONDS):
        try:
            path.mkdir()
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > MOST_SECONDS:
                    path.rmdir()
            time.sleep(0.5)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def copy_web(folder: Path) -> Path:
    """A copy of `runtime/web` with its packages."""
    shutil.copytree(WEB, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(installed_packages(), target_is_directory=True)
    return folder


class Node:
    """A process of Node that answers calls, see tests/web/bridge.mjs."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(ROOT / "tests" / "web" / "bridge.mjs", folder)
        assert NODE is not None, "the packages are installed"
        self.process = subprocess.Popen(
            [NODE, "bridge.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def call(self, function: str, *arguments: Any) -> Any:
        """The result of a function; raises `NodeError` with the error that it raised."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([function, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"node ended at {function}, with the status {self.process.wait(30)}")
        answer = json.loads(line)
        if "error" in answer:
            raise NodeError(answer["error"], answer["message"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        with self.process:
            if self.process.stdin is not None:
                self.process.stdin.close()


def floats(array: np.ndarray) -> str:
    """A float32 array as text that the process reads."""
    return base64.b64encode(np.asarray(array, np.float32).tobytes()).decode()
