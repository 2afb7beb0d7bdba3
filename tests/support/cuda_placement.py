"""Where ONNX Runtime's CUDA provider puts each node of a graph, found without a GPU, without a driver and without CUDA.

The provider is the real one, of the package onnxruntime-gpu. It cannot be in one environment with onnxruntime, so it gets a folder
of its own, which later runs find again, and a process of its own. The libraries of CUDA that it needs are stand-ins, built here
with gcc. Nothing is computed: this says where nodes are placed, and nothing about numbers.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.31.1"
"""Of onnxruntime-gpu: the log that is read here, and CUDA's functions that have to answer, are those of this version."""
SWITCH = "ONNX_TEXTGEN_TEST_CUDA"
"""Set this variable to 0, and nothing is fetched (255 MB) or tried."""
MOST_SECONDS = 300
"""For the download."""
TOOLS = ("gcc", "readelf")
SOURCE = Path(__file__).with_name("cuda_stand_in.c")
PROVIDER = Path("onnxruntime", "capi", "libonnxruntime_providers_cuda.so")
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
FOLDER = Path(tempfile.gettempdir()) / f"onnx-textgen-cuda-{VERSION}-{PYTHON}"
OPEN = """
import sys
from pathlib import Path
import onnxruntime
from onnx_textgen.backends.onnxruntime_session import DISABLED_OPTIMIZERS, open_session
from onnx_textgen.errors import DeviceError
options = onnxruntime.SessionOptions()
options.log_severity_level, options.log_verbosity_level = 0, 1
onnxruntime.InferenceSession(
    sys.argv[1], options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"], enable_fallback=0,
    disabled_optimizers=DISABLED_OPTIMIZERS,
)
try:
    print("RUNTIME", open_session(Path(sys.argv[1]), device="cuda").device)
except DeviceError as error:
    print("RUNTIME", error)
"""
"""Opens a graph with a log of everything, and then as this project's runtime does."""


class UnavailableError(Exception):
    """Why the provider or its stand-ins cannot be had here."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the nodes of a graph are."""

    without_kernel: collections.Counter[str]
    """Operators on the CPU that CUDA has no kernel for, by their number of nodes."""
    on_cpu: collections.Counter[str]
    """Operators on the CPU, those that ONNX Runtime leaves there by choice (arithmetic of sizes) included."""
    on_cuda: collections.Counter[str]
    """Operators on CUDA, without copies."""
    copies: tuple[str, ...]
    """Names of the values that are copied between CPU and CUDA in each run."""
    answer: str
    """What the runtime says when it is asked for `cuda`: the device, or its refusal."""


def prepare() -> Path:
    """Make the folder with the provider and the stand-ins, unless it is there; raises `UnavailableError`."""
    if os.environ.get(SWITCH) == "0":
        raise UnavailableError(f"{SWITCH} is 0")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise UnavailableError(f"needs {' and '.join(missing)}, to build stand-ins for CUDA's libraries")
    if not FOLDER.is_dir():
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as made:
            folder = Path(made) / "folder"
            fetch(folder)
            build_stand_ins(folder / PROVIDER, folder)
            try:
                folder.rename(FOLDER)
            except OSError:  # another process made it meanwhile
                if not FOLDER.is_dir():
                    raise
    return FOLDER


def fetch(folder: Path) -> None:
    """Install onnxruntime-gpu into a folder, and nothing that it depends on."""
    options = ("--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1", "--target", str(folder))
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, f"onnxruntime-gpu=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"onnxruntime-gpu {VERSION} could not be fetched in {MOST_SECONDS} s") from error
    if done.returncode or not (folder / PROVIDER).is_file():
        lines = done.stderr.strip().splitlines() or ["no CUDA provider in it"]
        raise UnavailableError(f"onnxruntime-gpu {VERSION} cannot be fetched: {lines[-1]}")


def build_stand_ins(provider: Path, folder: Path) -> None:
    """Build a library in place of each of CUDA's that the provider needs, with the functions that the provider takes from it."""
    listing = subprocess.run(["readelf", "--wide", "--dyn-syms", str(provider)], capture_output=True, text=True, check=True).stdout
    dynamic = subprocess.run(["readelf", "--wide", "--dynamic", str(provider)], capture_output=True, text=True, check=True).stdout
    own = set(re.findall(r"(\w+)\(", SOURCE.read_text()))
    taken = collections.defaultdict[str, list[str]](list)
    for name, library in re.findall(r" UND (\w+)(?:@(\S+))?", listing):
        taken[library or "libcuda.so.1"].append(name)  # the driver's functions have no version
    for library in re.findall(r"NEEDED.*\[(libcu\S+)\]", dynamic):
        names = [name for name in taken[library] if re.match(r"(__)?cu", name)]
        code = [f'#include "{SOURCE}"', *(f"long {name}(void) {{ return 0; }}" for name in names if name not in own)]
        (folder / f"{library}.c").write_text("\n".join(code))
        exported = "".join(f"{name};" for name in names)
        (folder / f"{library}.map").write_text(f"{library} {{ global: {exported or 'none;'} local: *; }};")
        options = ("-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,-soname,{library}", f"-Wl,--version-script={library}.map")
        command = ["gcc", *options, "-o", library, f"{library}.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"gcc cannot build a stand-in for {library}: {done.stderr.strip().splitlines()[-1]}")


def placement(graph: Path) -> Placement:
    """Open a graph for CUDA in a process of its own; raises `UnavailableError`, and `AssertionError` if it cannot be opened."""
    folder = prepare()
    package = importlib.util.find_spec("onnx_textgen")
    assert package is not None and package.origin is not None, "the runtime is installed"
    paths = (str(folder), str(Path(package.origin).parents[1]))
    variables = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", OPEN, str(graph)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, errors="replace", check=False, timeout=120)
    log = done.stdout + done.stderr
    assert done.returncode == 0 and "RUNTIME" in log, log[-2000:]
    nodes = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    provider = ""
    for line in done.stderr.splitlines():
        if found := re.search(r"(?:Node\(s\) placed on|All nodes placed on) \[(\w+)\]", line):
            provider = found[1]
        elif provider and (found := re.search(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(", line)):
            nodes[provider][found[1]] += 1
    cuda = nodes["CUDAExecutionProvider"]
    assert cuda, "the log says what is on CUDA"
    on_cuda = collections.Counter({name: count for name, count in cuda.items() if not name.startswith("Memcpy")})
    copies = tuple(re.findall(r"AddCopyNode\] Add Memcpy\w+ (?:before|after) (\S+)", done.stderr))
    assert len(copies) == cuda.total() - on_cuda.total(), "every copy has a line of its own"
    missing = set(re.findall(r"CUDA kernel not found in registries for Op type: (\S+)", done.stderr))
    on_cpu = nodes["CPUExecutionProvider"]  # CUDA also lacks operators that ONNX Runtime replaces before it places them
    without_kernel = collections.Counter({name: count for name, count in on_cpu.items() if name in missing})
    answer = re.search(r"^RUNTIME (.*)$", done.stdout, re.MULTILINE)
    assert answer is not None
    return Placement(without_kernel, on_cpu, on_cuda, copies, answer[1])
