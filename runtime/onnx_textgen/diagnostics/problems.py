"""Finds the problems of an installation, each with the command that fixes it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import OnnxTextgenError
from ..hub.lookup import parse_hub_name
from ..installation import reinstall
from ..package.locate import find_package
from ..requirements import as_numbers
from .machine import ENGINES, Engine, versions

TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"
MODEL_VARIABLE, THREADS_VARIABLE = "ONNX_TEXTGEN_MODEL", "ONNX_TEXTGEN_THREADS"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the installation."""

    what: str
    fix: str
    """A command, or one sentence that says what to do."""


def engine_problems(engine: Engine) -> list[Problem]:
    """Problems of ONNX Runtime: it is missing or mixed, or CUDA libraries are missing."""
    both = len(engine.installed) == len(ENGINES)
    if engine.version is None:
        return [Problem("ONNX Runtime cannot be imported", "pip install --force-reinstall onnxruntime")]
    problems = []
    if both and engine.winner != "onnxruntime-gpu":
        what = "onnxruntime and onnxruntime-gpu are both installed, and Python imports the CPU build, so CUDA cannot work"
        problems.append(Problem(what, "pip install --force-reinstall --no-deps onnxruntime-gpu"))
    elif both and len(set(engine.installed.values())) > 1:
        found = " and ".join(f"{name} {version}" for name, version in engine.installed.items())
        what = f"{found} are both installed, and their files are mixed in one folder"
        problems.append(Problem(what, "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"))
    if engine.missing_libraries:
        what = f"CUDA cannot work: the system does not find {', '.join(engine.missing_libraries)}"
        problems.append(Problem(what, 'pip install "onnxruntime-gpu[cuda,cudnn]"'))
    return problems


def requirement_problems(requires: Iterable[str], engine: Engine) -> list[Problem]:
    """Requirements `name>=version` that are missing or older; others, such as those of extras, are ignored."""
    problems = []
    for requirement in requires:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement.replace(" ", ""))
        if match is None or (match[1] == "onnxruntime" and engine.version is None):  # `engine_problems` reports that
            continue
        name, least = match[1], match[2]
        found = engine.version if name == "onnxruntime" else versions((name,)).get(name)
        name = engine.winner or name if name == "onnxruntime" else name
        if found is None:
            problems.append(Problem(f"{name} is not installed", f'pip install "{name}>={least}"'))
        elif as_numbers(found) < as_numbers(least):
            problems.append(Problem(f"{name} {found} is older than {least}, which is needed", f'pip install -U "{name}>={least}"'))
    return problems


def thread_problems(limit: float | None) -> list[Problem]:
    """More threads asked for than a container gives processor time for: threads that wait for it delay all others."""
    most = max(1, int(limit)) if limit is not None else math.inf
    chosen = os.environ.get(THREADS_VARIABLE, "")
    if not chosen.isdigit() or int(chosen) <= most:
        return []
    what = f"{THREADS_VARIABLE} is {chosen}, but this container gives the time of {limit:.1f} cores: threads wait for each other"
    return [Problem(what, f"unset {THREADS_VARIABLE}")]


def variable_problems() -> list[Problem]:
    """A model in the environment that does not exist."""
    model = os.environ.get(MODEL_VARIABLE)
    try:
        if not model or parse_hub_name(model) is not None or find_package(model).exists():
            return []
    except OnnxTextgenError:
        pass
    return [Problem(f"{MODEL_VARIABLE} is {model}, and there is no such folder", f"unset {MODEL_VARIABLE}")]


def model_problems(models: dict[str, str]) -> list[Problem]:
    """Embedded models that are missing or do not verify."""
    fix = reinstall()
    if not models:
        return [Problem("no model is embedded in this installation", fix)]
    return [Problem(f"the embedded model {name} does not verify: {state}", fix) for name, state in models.items() if state != "ok"]


def telemetry_problems(telemetry_off: bool) -> list[Problem]:
    """Telemetry of ONNX Runtime that is on."""
    fix = f"export {TELEMETRY_VARIABLE}=1"
    return [] if telemetry_off else [Problem("ONNX Runtime's telemetry is on, because the environment asks for it", fix)]
