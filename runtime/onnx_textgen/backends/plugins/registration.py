"""Loads a plug-in's library into ONNX Runtime, once per process and only if a caller asks for its device, and finds its devices."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from typing import Any

import onnxruntime

from ...errors import DeviceError, first_line
from ...requirements import as_numbers
from .plugin import Plugin

MIN_VERSION = (1, 28)
"""The first version whose Python interface allocates memory of a plug-in's device."""
LOADING = threading.Lock()


def is_installed(plugin: Plugin) -> bool:
    """Return whether the plug-in's package is installed."""
    return importlib.util.find_spec(plugin.module) is not None


def find_devices(plugin: Plugin) -> list[Any]:
    """The plug-in's devices (`onnxruntime.OrtEpDevice`), at least one, after loading its library.

    Raises `DeviceError` if the package is missing, if its library cannot be loaded, or if it finds no device.
    """
    if as_numbers(onnxruntime.__version__) < MIN_VERSION:
        needed = ".".join(map(str, MIN_VERSION))
        raise DeviceError(
            f"{plugin.device} needs onnxruntime {needed} or newer, and {onnxruntime.__version__} is installed; "
            "update it with: pip install -U onnxruntime"
        )
    if not is_installed(plugin):
        raise DeviceError(f"{plugin.device} was requested, and its package is not installed; install it with: {plugin.install}")
    try:
        with LOADING:
            devices = devices_of(plugin)
            if not devices:
                path = getattr(importlib.import_module(plugin.module), plugin.library)()
                onnxruntime.register_execution_provider_library(plugin.provider, str(path))
                devices = devices_of(plugin)
    except Exception as error:  # whatever the package's own code and its library raise
        raise DeviceError(
            f"{plugin.distribution} cannot be loaded: {first_line(error)}; it needs {plugin.needs}; "
            f"update it with: pip install -U onnxruntime {plugin.distribution}"
        ) from error
    if not devices:
        raise DeviceError(f"{plugin.distribution} finds no device on this machine; it needs {plugin.needs}; use the device cpu")
    return devices


def devices_of(plugin: Plugin) -> list[Any]:
    """The devices of the plug-in's provider that ONNX Runtime lists now: none before its library is loaded."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == plugin.provider]


def find_device(plugin: Plugin, index: int) -> Any:  # noqa: ANN401 - ONNX Runtime's type
    """The plug-in's device of this number; raises `DeviceError` as `find_devices` does, and if there is none of this number."""
    devices = find_devices(plugin)
    if index >= len(devices):
        raise DeviceError(f"{plugin.device}:{index} was requested, and there is only {plugin.device}:{len(devices) - 1}")
    return devices[index]


def describe(device: Any) -> str:  # noqa: ANN401 - ONNX Runtime's type
    """The kind and the maker of a device's hardware, for people: `GPU, NVIDIA`."""
    hardware = device.device
    name = hardware.metadata.get("Description") or hardware.vendor
    return ", ".join(part for part in (hardware.type.name, name) if part)
