"""Lists the devices that this installation has, and what runs on each.

The library of a plug-in is loaded in a separate process: one that crashes must not end `doctor`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata

from ..backends import kernels
from ..backends.plugins.known import PLUGINS
from ..backends.plugins.plugin import Plugin
from .machine import Engine, versions

SECONDS = 60
"""After this time, a plug-in that is being loaded is given up."""
PROBE = """
import json, sys
import onnx_textgen.backends.onnxruntime_session
from onnx_textgen.backends.plugins.known import PLUGINS
from onnx_textgen.backends.plugins.registration import describe, find_devices
from onnx_textgen.errors import DeviceError
try:
    found = [describe(device) for device in find_devices(PLUGINS[sys.argv[1]])]
except DeviceError as error:
    found = str(error)
print(json.dumps(found))
"""


def examine_devices(engine: Engine) -> dict[str, str]:
    """Return what runs on each installed device, by its name."""
    found = {} if engine.version is None else {"cpu": f"ONNX Runtime: runs every package; {products()}"}
    if "CUDAExecutionProvider" in engine.providers:
        found["cuda"] = "ONNX Runtime: runs packages of target ort with float16 keys and values, and all of target standard"
    if "openvino" in (installed := versions(("openvino",))):
        found["openvino"] = f"OpenVINO {installed['openvino']} on the CPU: runs packages of target ort"
        found["hybrid"] = "long prompts by OpenVINO, text by ONNX Runtime: runs packages of target ort"
    return found | {name: text for name, plugin in PLUGINS.items() if (text := examine_plugin(plugin))}


def products() -> str:
    """What multiplies with weights of 4 and 8 bits on the CPU, and why it is not the faster one."""
    if (found := kernels.instructions()) is not None:
        return f"products of 4 and 8 bits by onnx-textgen's kernels ({found})"
    if chosen := os.environ.get(kernels.VARIABLE):
        why = f"{kernels.VARIABLE} is {chosen!r:.30}"
    elif kernels.LIBRARY.exists():
        why = "this processor has no AVX2"
    elif (sys.platform, platform.machine()) == ("linux", "x86_64"):
        why = "there was no C++ compiler at the installation; install g++ and then onnx-textgen again, for faster ones"
    else:
        why = "onnx-textgen has others for Linux on x86-64 only"
    return f"products of 4 and 8 bits by its own kernels: {why}"


def examine_plugin(plugin: Plugin) -> str:
    """The version of a plug-in, what it finds and what runs there; empty if it is not installed."""
    try:
        package = f"{plugin.distribution} {metadata.version(plugin.distribution)}"
    except metadata.PackageNotFoundError:
        return ""
    command = [sys.executable, "-c", PROBE, plugin.device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{package}: it did not load within {SECONDS} s"
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return f"{package}: it ended the process that loaded it (status {done.returncode})"
    devices = json.loads(lines[-1])
    return devices if isinstance(devices, str) else f"{package} on {'; '.join(devices)}: {plugin.state}"
