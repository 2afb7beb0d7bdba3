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
    """Measurements of `bench` on one device."""

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
NEARLY = 0.05
"""The part by which values differ that another run might order the other way."""


def installed_devices() -> list[str]:
    """The devices of this installation, as `doctor` lists them: `cpu` first."""
    return list(examine_devices(examine_engine()))


def measure_on(device: str, options: Sequence[str]) -> DeviceSpeed:
    """Run `onnx-textgen bench` with these options on a device, in a new process."""
    command = [sys.executable, "-m", "onnx_textgen.cli", "bench", "--json", f"--device={device}", *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode == 0:
        try:
            return DeviceSpeed(device, Measurement(**json.loads(done.stdout)))
        except (ValueError, TypeError):  # a library has printed something too
            return DeviceSpeed(device, None, f"its process printed something else than a measurement: {done.stdout[:60]!r}")
    return DeviceSpeed(device, None, reason_of(done.returncode, done.stderr))


def reason_of(status: int, stderr: str) -> str:
    """Why a process failed, in one line: the error that it printed, or how it ended."""
    errors = [line.removeprefix("error: ") for line in stderr.splitlines() if line.startswith("error: ")]
    return errors[-1] if errors else f"its process ended without an error message (status {status})"


def best_of(speeds: Iterable[DeviceSpeed]) -> dict[str, set[str]]:
    """The devices that are best or nearly so, by column; columns with fewer than two values have none."""
    measured = [(each.device, each.measured) for each in speeds if each.measured is not None]
    found = {}
    for column, choose in COLUMNS.items():
        values = {device: value for device, one in measured if (value := getattr(one, column)) is not None}
        if len(values) > 1:
            best = choose(values.values())
            found[column] = {device for device, value in values.items() if abs(value - best) <= NEARLY * best}
    return found
