"""Examines the machine: processor, cores, variables, installed packages, and the ONNX Runtime that Python imports."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import mmap
import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ENGINES = ("onnxruntime", "onnxruntime-gpu")
X86_FEATURES = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
VARIABLES = re.compile("ONNX_TEXTGEN_.*|OMP_NUM_THREADS|HF_HOME|HF_HUB_.*|HF_ENDPOINT|NO_COLOR|FORCE_COLOR|CUDA_VISIBLE_DEVICES")
"""Names of variables that change what the program does."""
ARM_FEATURES = ("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2")


@dataclass(frozen=True, slots=True)
class Engine:
    """The ONNX Runtime that Python would import."""

    version: str | None
    """None: it cannot be imported."""
    installed: dict[str, str]
    """Distributions that contain the module `onnxruntime`, and their versions."""
    winner: str | None
    """The distribution whose files are imported: if both are installed, the one that was installed later."""
    providers: tuple[str, ...]
    missing_libraries: tuple[str, ...]
    """CUDA libraries that the GPU build needs and the system does not find."""


def environment() -> dict[str, str]:
    """The set variables that change what the program does; `set` instead of the value of a token or key."""
    found = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}
    return {name: "set" if re.search("TOKEN|KEY", name) else value for name, value in found.items()}


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the distributions `names` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def examine_cpu() -> tuple[str, tuple[str, ...]]:
    """Name and instruction sets of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), ()
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", text, flags=re.MULTILINE))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name", platform.machine()), tuple(name for name in X86_FEATURES + ARM_FEATURES if name in flags)


def examine_engine() -> Engine:
    """Import ONNX Runtime, and return which distribution it is and what it can use."""
    installed = versions(ENGINES)
    try:
        # Imported here and in this order: the first switches telemetry off, and each may fail, which `doctor` has to report.
        importlib.import_module("onnx_textgen.backends.onnxruntime_session")
        onnxruntime = importlib.import_module("onnxruntime")
        build = importlib.import_module("onnxruntime.capi.build_and_package_info")
    except (ImportError, OSError):
        return Engine(None, installed, None, (), ())
    winner = getattr(build, "package_name", None)
    provider = Path(str(onnxruntime.__file__)).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if provider.is_file() and hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries that it does not find
            onnxruntime.preload_dlls()  # the linker does not search the folders of libraries that pip installed
    return Engine(
        version=onnxruntime.__version__,
        installed=installed,
        winner=winner,
        providers=tuple(onnxruntime.get_available_providers()),
        missing_libraries=tuple(missing_libraries(provider)),
    )


def missing_libraries(provider: Path) -> list[str]:
    """CUDA libraries that a provider's file names and the dynamic linker cannot load; empty if there is no such file.

    Of a library that is named in more than one version the newest counts: code that serves two releases of CUDA tries both.
    """
    if not provider.is_file():
        return []
    with provider.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        named = {(name.decode(), int(version)) for name, version in re.findall(rb"(lib(?:cu|nv)\w+\.so)\.(\d+)", content)}
    newest = dict(sorted(named))
    return [library for name, version in newest.items() if not can_load(library := f"{name}.{version}")]


def can_load(library: str) -> bool:
    """Return whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
