"""What the runtime finds on this machine, as data, and the line that mends each thing that is wrong.

Nothing here changes anything, and nothing raises for a machine that is broken: that is what it is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import math
import mmap
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import OnnxTextgenError
from ..kv_cache.memory_plan import available_bytes
from ..package.hub import read_name
from ..package.integrity import check_files
from ..package.locate import embedded_packages, find_package
from ..package.reading import read_manifest
from ..requirements import as_numbers

PACKAGES = (
    *("onnx-textgen", "numpy", "tokenizers", "jinja2", "typer", "rich", "huggingface_hub"),
    *("torch", "transformers", "onnx", "gradio", "llguidance", "openvino"),
)
ENGINES = ("onnxruntime", "onnxruntime-gpu")
TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"
X86_FEATURES = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
MODEL_VARIABLE, THREADS_VARIABLE = "ONNX_TEXTGEN_MODEL", "ONNX_TEXTGEN_THREADS"
VARIABLES = re.compile("ONNX_TEXTGEN_.*|OMP_NUM_THREADS|HF_HOME|HF_HUB_.*|HF_ENDPOINT|NO_COLOR|FORCE_COLOR|CUDA_VISIBLE_DEVICES")
"""What changes what the program does."""
CGROUPS = Path("/sys/fs/cgroup")
ARM_FEATURES = ("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong."""

    what: str
    fix: str
    """A command, or one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The ONNX Runtime that Python would import."""

    version: str | None
    """None: it cannot be imported."""
    installed: dict[str, str]
    """Distributions that bring the module `onnxruntime`, and their versions."""
    winner: str | None
    """The distribution whose files lie in the folder: where both are installed, the later one's."""
    providers: tuple[str, ...]
    missing_libraries: tuple[str, ...]
    """CUDA libraries that the GPU build wants and the system does not find."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `onnx-textgen doctor` shows."""

    python: str
    platform: str
    cpu: str
    cpu_features: tuple[str, ...]
    """Instructions that matter for speed; empty where the system does not tell (only Linux does)."""
    cores: int
    """Those this process may use."""
    core_limit: float | None
    """Cores' worth of time that a container gives this process, where that is limited; several threads share it."""
    available_bytes: int | None
    """Memory that is free; None where the system does not tell."""
    environment: dict[str, str]
    """Variables that are set and change what the program does; of tokens and keys the name alone."""
    versions: dict[str, str]
    """Installed packages; the extras' among them if they are there."""
    engine: Engine
    telemetry_off: bool
    """ONNX Runtime's reports to its makers are switched off in this process."""
    models: dict[str, str]
    """Each embedded model: `ok`, or what is wrong with its files."""
    problems: tuple[Problem, ...]


def examine() -> Report:
    """Look at the machine and the installation; takes about a second."""
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
        telemetry_off=telemetry_off,
        models=models,
        problems=(
            *engine_problems(engine),
            *requirement_problems(metadata.requires("onnx-textgen") or [], engine),
            *model_problems(models),
            *thread_problems(cores, limit),
            *variable_problems(),
            *telemetry_problems(telemetry_off),
        ),
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_limit(root: Path = CGROUPS) -> float | None:
    """The limit of a container on processor time, in cores, in the two layouts of Linux; None where there is none."""
    v1 = root / "cpu"
    for files in ((root / "cpu.max",), (v1 / "cpu.cfs_quota_us", v1 / "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = (int(number) for file in files for number in file.read_text(encoding="utf-8").split())
            return quota / period if quota > 0 < period else None
    return None


def environment() -> dict[str, str]:
    """The variables that change what the program does."""
    found = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}
    return {name: "set" if re.search("TOKEN|KEY", name) else value for name, value in found.items()}


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """The installed ones of the distributions `names`, with their versions."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def examine_cpu() -> tuple[str, tuple[str, ...]]:
    """Name and features of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), ()
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", text, flags=re.MULTILINE))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name", platform.machine()), tuple(name for name in X86_FEATURES + ARM_FEATURES if name in flags)


def examine_engine() -> Engine:
    """Import ONNX Runtime and say which one that was."""
    installed = versions(ENGINES)
    try:
        # By hand and in this order: the first switches telemetry off, and a machine where one fails is why this file exists.
        importlib.import_module("onnx_textgen.backends.onnxruntime_session")
        onnxruntime = importlib.import_module("onnxruntime")
        build = importlib.import_module("onnxruntime.capi.build_and_package_info")
    except (ImportError, OSError):
        return Engine(None, installed, None, (), ())
    winner = getattr(build, "package_name", None)
    provider = Path(str(onnxruntime.__file__)).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if provider.is_file() and hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()  # libraries that pip installed lie where the linker does not look
    return Engine(
        version=onnxruntime.__version__,
        installed=installed,
        winner=winner,
        providers=tuple(onnxruntime.get_available_providers()),
        missing_libraries=tuple(missing_libraries(provider)),
    )


def missing_libraries(provider: Path) -> list[str]:
    """The CUDA libraries named in a provider's file that the dynamic linker cannot load; none if there is no such file."""
    if not provider.is_file():
        return []
    with provider.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = {match.decode() for match in re.findall(rb"lib(?:cu|nv)\w+\.so\.\d+", content)}
    return sorted(name for name in names if not can_load(name))


def can_load(library: str) -> bool:
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def examine_model(folder: Path) -> str:
    """`ok`, or what is wrong with an embedded model's files."""
    try:
        check_files(folder, read_manifest(folder))
    except OnnxTextgenError as error:
        return str(error)
    return "ok"


def engine_problems(engine: Engine) -> list[Problem]:
    """What is wrong with ONNX Runtime."""
    both = len(engine.installed) == len(ENGINES)
    if engine.version is None:
        return [Problem("ONNX Runtime cannot be imported", "pip install --force-reinstall onnxruntime")]
    problems = []
    if both and engine.winner != "onnxruntime-gpu":
        what = "onnxruntime and onnxruntime-gpu are both installed and the files are the CPU one's, so CUDA cannot work"
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
    """Packages that onnx-textgen needs, `name>=version` each, and that are missing or older; those of extras are left out."""
    problems = []
    for requirement in requires:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement.replace(" ", ""))
        if match is None or (match[1] == "onnxruntime" and engine.version is None):  # which is a problem of its own
            continue
        name, least = match[1], match[2]
        found = engine.version if name == "onnxruntime" else versions((name,)).get(name)
        name = engine.winner or name if name == "onnxruntime" else name
        if found is None:
            problems.append(Problem(f"{name} is not installed", f'pip install "{name}>={least}"'))
        elif as_numbers(found) < as_numbers(least):
            problems.append(Problem(f"{name} {found} is older than {least}, which is needed", f'pip install -U "{name}>={least}"'))
    return problems


def thread_problems(cores: int, limit: float | None) -> list[Problem]:
    """Whether a container gives less time than its cores suggest: threads that have to wait for it hold up the others."""
    most = math.ceil(limit) if limit is not None else cores
    chosen = os.environ.get(THREADS_VARIABLE, "")
    if most >= cores or (chosen.isdigit() and int(chosen) <= most):
        return []
    what = f"this container shows {cores} cores and gives the time of {limit:.1f}, so that one thread per core is slow"
    return [Problem(what, f"export {THREADS_VARIABLE}={most}")]


def variable_problems() -> list[Problem]:
    """Whether the environment names a model that is not there."""
    model = os.environ.get(MODEL_VARIABLE)
    try:
        if not model or read_name(model) is not None or find_package(model).exists():
            return []
    except OnnxTextgenError:
        pass
    return [Problem(f"{MODEL_VARIABLE} is {model}, and there is no such folder", f"unset {MODEL_VARIABLE}")]


def model_problems(models: dict[str, str]) -> list[Problem]:
    """What is wrong with the embedded models."""
    mend = "pip install --force-reinstall --no-deps onnx-textgen"
    if not models:
        return [Problem("no model is embedded in this installation", mend)]
    return [Problem(f"the embedded model {name} does not verify: {state}", mend) for name, state in models.items() if state != "ok"]


def telemetry_problems(telemetry_off: bool) -> list[Problem]:
    """Whether ONNX Runtime may report to its makers."""
    fix = f"export {TELEMETRY_VARIABLE}=1"
    return [] if telemetry_off else [Problem("ONNX Runtime's telemetry is on, because the environment asks for it", fix)]


def lines(report: Report) -> list[tuple[str, str]]:
    """The report as lines of name and value, for people."""
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
    found += [(name, value) for name, value in report.environment.items()]
    found += [(name, version) for name, version in report.versions.items()]
    return found + [(f"model {name}", state) for name, state in report.models.items()]
