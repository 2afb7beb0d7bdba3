"""Opens ONNX Runtime: the only file that imports it.

Telemetry is off before the import unless the user's environment says otherwise, nothing falls back from CUDA to CPU silently,
and the wrapper's own fallback, which prints to stdout, is disabled.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

from .errors import DeviceError, OptionError, PackageError

IOBinding, OrtValue = onnxruntime.IOBinding, onnxruntime.OrtValue
CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
INSTALL_CUDA = (
    'install it with: pip install "onnxruntime-gpu[cuda,cudnn]" && pip install --force-reinstall --no-deps onnxruntime-gpu; '
    "if that does not help, look at: onnx-textgen doctor"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs."""

    kind: str
    """`cpu` or `cuda`, as ONNX Runtime's bindings name it."""
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """An open graph: what it takes, what it gives, and where it runs."""

    ort: onnxruntime.InferenceSession
    device: Device
    inputs: dict[str, tuple[list[int | str], str]]
    """Shape and ONNX Runtime's type of each input, those with a default included."""
    outputs: dict[str, tuple[list[int | str], str]]


def has_cuda() -> bool:
    """Whether the installed ONNX Runtime was built with CUDA."""
    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def parse_device(name: str) -> tuple[str, int]:
    """`auto`, `cpu`, `cuda` or `cuda:1` as (kind, index)."""
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdigit())):
        raise OptionError(f"device should be auto, cpu, cuda or cuda:N, found {name!r}")
    return kind, int(index or 0)


def make_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Session options; `threads=None` leaves the number to ONNX Runtime (one per physical core)."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise OptionError(f"threads should be a whole number from 1 to 1024, found {threads!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, not printed
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    return options


def open_on(path: Path, device: Device, threads: int | None) -> onnxruntime.InferenceSession:
    """An InferenceSession on exactly that device."""
    providers: list[Any] = [CPU_PROVIDER]
    if device.kind == "cuda":
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
        providers.insert(0, (CUDA_PROVIDER, {"device_id": device.index}))
    try:
        session = onnxruntime.InferenceSession(str(path), make_options(threads), providers=providers, enable_fallback=0)
    except OptionError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise PackageError(f"ONNX Runtime cannot open {path.name}: {reason}; export the model again") from error
    if device.kind == "cuda" and session.get_providers()[0] != CUDA_PROVIDER:
        raise DeviceError(f"CUDA was asked for and did not start (a driver or library is missing); {INSTALL_CUDA}")
    return session


def open_session(path: Path, *, device: str = "auto", threads: int | None = None) -> Session:
    """Open the graph at `path`; `auto` takes CUDA where it works and else the CPU."""
    kind, index = parse_device(device)
    if kind == "cuda" and not has_cuda():
        raise DeviceError(f"CUDA was asked for, but the installed onnxruntime has no CUDA provider; {INSTALL_CUDA}")
    chosen = Device("cuda", index) if kind == "cuda" or (kind == "auto" and has_cuda()) else CPU
    try:
        ort = open_on(path, chosen, threads)
    except DeviceError:
        if kind == "cuda":
            raise
        chosen, ort = CPU, open_on(path, CPU, threads)
    inputs = {node.name: (node.shape, node.type) for node in (*ort.get_inputs(), *ort.get_overridable_initializers())}
    return Session(ort, chosen, inputs, {node.name: (node.shape, node.type) for node in ort.get_outputs()})
