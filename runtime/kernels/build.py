"""Compiles the kernels when a wheel is built, where the system and a compiler allow it: pip and hatch call this.

Without them the wheel is complete too: ONNX Runtime's own kernels then compute all products. ONNX_TEXTGEN_KERNELS=0 leaves the
kernels out.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
PLATFORM = "linux-x86_64"
"""The only one with kernels, as Python calls it."""
TARGET = "onnx_textgen/backends/libtextgen.so.1"
"""Where the package has the library: `backends/kernels.py` opens it."""
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-maybe-uninitialized")
AVX2 = ("-mavx2", "-mfma")
SOURCES = {
    "library.cpp": (),
    "avx2.cpp": AVX2,
    "avx_vnni.cpp": (*AVX2, "-mavxvnni"),
    "avx512_vnni.cpp": (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
}
"""Files, each with the instructions that it may use; the processor's decide which is called."""


class KernelsHook(BuildHookInterface[Any]):
    """Adds the compiled library to a wheel; an editable installation gets it among the sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatch; says in one line why, if there is nothing to add."""
        library = HERE.parent / TARGET
        try:
            if version == "editable":
                library.unlink(missing_ok=True)  # one of an earlier installation
            else:
                self.folder = tempfile.mkdtemp()
                library = Path(self.folder) / library.name
            if not (why := why_not()):
                compile_library(library)
        except (subprocess.CalledProcessError, OSError) as error:
            why = f"{error} {getattr(error, 'stderr', '')}".strip()
        if why:
            self.app.display_warning(f"built without its kernels, which make it faster: {why}")
            return
        if version != "editable":
            build_data["force_include"][str(library)] = TARGET
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORM.replace('-', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled, which the wheel has now."""
        if version != "editable":
            shutil.rmtree(self.folder, ignore_errors=True)


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, or the first one there is; empty if there is none."""
    commands = [shlex.split(os.environ["CXX"])] if os.environ.get("CXX") else [["c++"], ["g++"], ["clang++"]]
    return next((command for command in commands if command and shutil.which(command[0])), [])


def why_not() -> str:
    """Why no library is compiled; empty if one is."""
    if os.environ.get("ONNX_TEXTGEN_KERNELS") == "0":
        return "ONNX_TEXTGEN_KERNELS is 0"
    if sysconfig.get_platform() != PLATFORM or platform.machine() != "x86_64":
        return f"they are for {PLATFORM}, and this is {sysconfig.get_platform()}"
    return "" if compiler() else "there is no C++ compiler; install g++ or clang++, and install again"


def compile_library(library: Path) -> None:
    """Compile the library to a path; raises `CalledProcessError` if the compiler refuses."""
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for source, instructions in SOURCES.items():
            objects.append(f"{folder}/{source}.o")
            run(*compiler(), *FLAGS, *instructions, "-c", str(HERE / source), "-o", objects[-1])
        made = Path(folder) / library.name
        run(*compiler(), "-shared", *objects, "-lpthread", "-o", str(made))
        with tempfile.NamedTemporaryFile(dir=library.parent, delete=False) as file:  # a process may have the earlier one open
            file.write(made.read_bytes())
        Path(file.name).chmod(0o644)
        Path(file.name).replace(library)


def run(*command: str) -> None:
    """Run a command; raises `CalledProcessError`, which has what it printed."""
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":  # after a change of the sources, without installing again
    compile_library(HERE.parent / TARGET)
