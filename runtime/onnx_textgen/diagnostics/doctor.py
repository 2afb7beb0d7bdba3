"""Examines the machine and the installation, and reports them as data, with a fix for each problem.

It changes nothing, and it raises nothing if the installation is broken, because then it is needed most.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..backends.plugins.known import PLUGINS
from ..errors import OnnxTextgenError
from ..machine_limits import available_bytes, core_limit, usable_cores
from ..package.integrity import check_files
from ..package.locate import embedded_packages
from ..package.reading import read_manifest
from .devices import examine_devices
from .machine import Engine, environment, examine_cpu, examine_engine, versions
from .problems import (
    TELEMETRY_VARIABLE,
    THREADS_VARIABLE,
    Problem,
    engine_problems,
    model_problems,
    requirement_problems,
    telemetry_problems,
    thread_problems,
    variable_problems,
)

PACKAGES = (
    *("onnx-textgen", "numpy", "tokenizers", "jinja2", "typer", "rich", "huggingface_hub"),
    *("torch", "transformers", "onnx", "gradio", "llguidance", "openvino"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The data that `onnx-textgen doctor` shows."""

    python: str
    platform: str
    cpu: str
    cpu_features: tuple[str, ...]
    """Instruction sets that matter for speed; empty if the system does not report them (only Linux does)."""
    cores: int
    """Cores that this process may use."""
    core_limit: float | None
    """A container's limit of processor time, in cores, which all threads share; None without a limit."""
    available_bytes: int | None
    """Free memory; None if the system does not report it."""
    environment: dict[str, str]
    """The set variables that change what the program does; the values of tokens and keys are hidden."""
    versions: dict[str, str]
    """Installed packages, those of extras included."""
    engine: Engine
    devices: dict[str, str]
    """What runs on each device that is installed."""
    telemetry_off: bool
    """Whether ONNX Runtime's telemetry is off in this process."""
    models: dict[str, str]
    """Each embedded model: `ok`, or the problem with its files."""
    problems: tuple[Problem, ...]


def examine() -> Report:
    """Examine the machine and the installation; takes about a second."""
    engine = examine_engine()
    telemetry_off = os.environ.get(TELEMETRY_VARIABLE) == "1"
    models = {name: examine_model(folder) for name, folder in embedded_packages().items()}
    cpu, features = examine_cpu()
    cores, limit = usable_cores(), core_limit()
    return Report(
        python=f"{platform.python_version()} ({sys.executable})",
        platform=platform.platform(),
        cpu=cpu,
        cpu_features=features,
        cores=cores,
        core_limit=limit,
        available_bytes=available_bytes(),
        environment=environment(),
        versions=versions(PACKAGES),
        engine=engine,
        devices=examine_devices(engine),
        telemetry_off=telemetry_off,
        models=models,
        problems=(
            *engine_problems(engine),
            *requirement_problems(metadata.requires("onnx-textgen") or [], engine),
            *model_problems(models),
            *thread_problems(limit),
            *variable_problems(),
            *telemetry_problems(telemetry_off),
        ),
    )


def examine_model(folder: Path) -> str:
    """`ok`, or the problem with an embedded model's files."""
    try:
        check_files(folder, read_manifest(folder))
    except OnnxTextgenError as error:
        return str(error)
    return "ok"


def lines(report: Report) -> list[tuple[str, str]]:
    """The report as names and values, for people."""
    engine = report.engine
    found = [
        ("python", report.python),
        ("platform", report.platform),
        ("processor", report.cpu),
        ("instructions", " ".join(report.cpu_features) or "not known"),
        ("cores", str(report.cores) if report.core_limit is None else f"{report.cores}, with the time of {report.core_limit:.1f}"),
        ("threads", f"{report.environment.get(THREADS_VARIABLE) or 'one for each physical core'}, or --threads N"),
        ("free memory", "not known" if report.available_bytes is None else f"{report.available_bytes / 1e9:.1f} GB"),
        ("ONNX Runtime", f"{engine.version or 'cannot be imported'}, from {engine.winner or 'nowhere'}"),
        ("providers", " ".join(name.removesuffix("ExecutionProvider") for name in engine.providers) or "none"),
        ("telemetry", "off" if report.telemetry_off else "on"),
    ]
    found += [(f"device {name}", text) for name, text in report.devices.items()]
    found += [("more devices", f"{name}: {each.install}") for name, each in PLUGINS.items() if name not in report.devices]
    found += [(name, value) for name, value in report.environment.items()]
    found += [(name, version) for name, version in report.versions.items()]
    return found + [(f"model {name}", state) for name, state in report.models.items()]
