"""onnxruntime-web in a browser without a window: Chromium opens a page of this machine, whose worker posts its answer back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from ...errors import DeviceError, ModelError
from ...machine_limits import usable_cores
from ...package.manifest import MANIFEST, Manifest
from ...web_site.browser_graphs import browser_graphs
from ...web_site.libraries import cached_libraries, read_libraries, web_folder
from ...web_site.preview import SiteHandler, SiteServer
from .node import found_in
from .protocol import Rounding, Task

PAGE = "web/replay/browser.html"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
INSTALL = "install it with: apt install chromium, or from https://www.google.com/chrome"
OPTIONS = (
    "--headless",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
"""WebGPU on the processor, for machines without a GPU."""


@dataclasses.dataclass(frozen=True, slots=True)
class Browser:
    """Implements `protocol.Runtime`."""

    program: str
    device: str = "wasm"
    """`wasm`, or `webgpu` on the processor."""
    longest_seconds: float = 1800

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False)
        library = read_libraries()[f"onnxruntime-{self.device}"]
        return f"{library.package} {library.version} ({self.device}) in {done.stdout.strip() or 'Chromium'}"

    @property
    def rounding(self) -> Rounding:
        """See `Runtime.rounding`; on WebGPU, ONNX Runtime rounds activations to 8 bits where the GPU multiplies those fast."""
        return "none" if self.device == "wasm" else "own"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        libraries = read_libraries()
        library, binary = (libraries[f"onnxruntime-{self.device}{kind}"].local_name for kind in ("", "-binary"))
        job = {
            "library": f"/libraries/{library}",
            "binary": f"/libraries/{binary}",
            "device": self.device,
            "threads": usable_cores(),
            "graph": browser_graphs(folder, manifest)[self.device].graph,
            "tasks": [dataclasses.asdict(task) for task in tasks],
        }
        folders = {"web": web_folder(), "libraries": cached_libraries(), "package": folder}
        return found_in(self.answer(PAGE, job, folders, {MANIFEST, *manifest.files}), self.name)

    def answer(self, page: str, job: object, folders: Mapping[str, Path], listed: Set[str]) -> str:
        """The answer of a page to a job; `folders` are served by their names, `package` with the files in `listed` only.

        Raises `ModelError` if there is none in time.
        """
        with serving(job, folders, listed) as (address, answers), self.opened(address + page):
            try:
                return answers.get(timeout=self.longest_seconds)
            except queue.Empty as error:
                raise ModelError(f"{self.name} did not answer within {self.longest_seconds:.0f} s") from error

    @contextlib.contextmanager
    def opened(self, address: str) -> Iterator[None]:
        """A browser without a window, with a new profile, on the page at `address`; it is closed at the end."""
        options = [*OPTIONS, *(SOFTWARE_GPU if self.device == "webgpu" else ("--disable-gpu",))]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root otherwise; it opens no page but ours
        with tempfile.TemporaryDirectory(prefix="onnx-textgen-", ignore_cleanup_errors=True) as profile:
            command = [self.program, *options, f"--user-data-dir={profile}", address]
            environment = {**os.environ, "TMPDIR": profile}  # what it leaves when it is ended goes with the profile
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
                try:
                    yield
                finally:
                    process.terminate()


class ReplayHandler(SiteHandler):
    """Answers with the job, and with files of some folders by their first part; takes the answer of the page."""

    job: bytes
    folders: Mapping[str, Path]
    listed: frozenset[str]
    """Files of the package that may be read."""
    answers: queue.Queue[str]

    def translate_path(self, path: str) -> str:
        """The file of an address; a folder that has no index if there is none."""
        first, _, rest = urllib.parse.unquote(path.partition("?")[0]).lstrip("/").partition("/")
        folder = self.folders.get(first)
        if folder is None or ".." in rest.split("/") or (first == "package" and rest not in self.listed):
            return os.devnull + "/"
        return str(folder / rest)

    def do_GET(self) -> None:  # noqa: N802  (named by the base class)
        """The job, or a file."""
        if self.path != "/job":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.job)))
        self.end_headers()
        self.wfile.write(self.job)

    def do_POST(self) -> None:  # noqa: N802  (named by the base class)
        """The page's answer."""
        self.answers.put(self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8"))
        self.send_response(204)
        self.end_headers()


@contextlib.contextmanager
def serving(job: object, folders: Mapping[str, Path], listed: Set[str]) -> Iterator[tuple[str, queue.Queue[str]]]:
    """A server of this machine for one job; gives its address, and where the answer arrives."""
    answers: queue.Queue[str] = queue.Queue()
    settings = {"job": json.dumps(job).encode(), "folders": folders, "listed": frozenset(listed), "answers": answers}
    handler: type[SiteHandler] = type("JobHandler", (ReplayHandler,), settings)
    with socket.create_server(("127.0.0.1", 0)) as listener, SiteServer(Path(), listener, handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.address, answers
        finally:
            server.shutdown()


def find_browser(device: str = "wasm") -> Browser:
    """Find Chromium or one of its relatives; raises `DeviceError` if there is none. `device`: see `Browser.device`."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None) or next((each for each in PLACES if Path(each).is_file()), None)
    if found is None:
        raise DeviceError(f"no Chromium, Chrome or Edge was found; {INSTALL}")
    return Browser(found, device)
