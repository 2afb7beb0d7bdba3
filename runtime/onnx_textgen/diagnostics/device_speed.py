"""Measures a model on each device of this installation, each in a new process, so that none has another's memory or threads."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

from .benchmark import Measurement
from .devices import examine_devices
from .machine import examine_engine


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What `bench` measured on one device."""

    device: str
    measured: Measurement | None
    """None: it was not measured."""
    problem: str | None = None
    """Why the model does not run there, in one line."""


COLUMNS = {
    "prefill_tokens_per_second": max,
    "decode_tokens_per_second": max,
    "batch_tokens_per_second": max,
    "first_token_ms": min,
    "load_seconds": min,
    "peak_memory_mib": min,
}
"""The measurements that are compared, and which is the best of each."""


def installed_devices() -> list[str]:
    """The devices of this installation, as `doctor` lists them: `cpu` first."""
    return list(examine_devices(examine_engine()))


def measure_on(device: str, options: Sequence[str]) -> DeviceSpeed:
    """Run `onnx-textgen bench` with these options on a device, in a new process."""
    command = [sys.executable, "-m", "onnx_textgen.cli", "bench", "--json", f"--device={device}", *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode == 0:
        return DeviceSpeed(device, Measurement(**json.loads(done.stdout)))
    said = done.stderr.strip().splitlines()
    problem = said[-1].removeprefix("error: ") if said else f"its process ended without a message (status {done.returncode})"
    return DeviceSpeed(device, None, problem)


def best_of(speeds: Iterable[DeviceSpeed]) -> dict[str, str]:
    """The device that is best, by column; columns with fewer than two values have none."""
    measured = [(each.device, each.measured) for each in speeds if each.measured is not None]
    found = {}
    for column, choose in COLUMNS.items():
        values = {device: value for device, one in measured if (value := getattr(one, column)) is not None}
        if len(values) > 1:
            found[column] = choose(values, key=lambda device: values[device])
    return found
