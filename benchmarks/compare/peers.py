"""Who is compared: each peer's environment, how it gets its model from a checkpoint, and the script that runs it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from machine import instructions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TORCH = "torch==2.13.0"

ENVIRONMENTS = {
    "onnx-textgen": [str(ROOT)],
    "onnx-textgen+openvino": [f"{ROOT}[openvino]"],
    "onnxruntime-genai": ["onnxruntime-genai==0.18.0"],
    "llama.cpp": ["--no-binary=llama-cpp-python", "llama-cpp-python==0.3.36"],
    "gguf": ["gguf==0.19.0", "safetensors", "ml_dtypes"],
    "openvino-genai": ["openvino-genai==2026.4.1.0"],
    "transformers": ["transformers==5.23.0", TORCH],
    "conversions": ["optimum-intel[openvino]==2.2.0", TORCH],
}
"""What pip is asked for, by environment; `gguf` and `conversions` make files for llama.cpp and OpenVINO, and are not measured."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """One engine with one kind of model."""

    name: str
    environment: str
    precision: str
    convert: tuple[tuple[str, ...], ...] = ()
    """Commands that turn CHECKPOINT into OUT; the first word is an environment's program."""
    worker: str = ""
    suffix: str = ""
    """Of the converted file or folder."""
    variables: tuple[tuple[str, str], ...] = ()
    base: str = ""
    """Whose converted model this one opens, if not its own."""

    @property
    def key(self) -> str:
        """A name for files."""
        return f"{self.name}-{self.precision}".replace(" ", "-").replace(",", "").replace(".", "")


LLAMA_CPP_OPTIONS = {
    "AVX": ("avx",),
    "AVX2": ("avx2",),
    "AVX_VNNI": ("avx_vnni",),
    "FMA": ("fma",),
    "F16C": ("f16c",),
    "BMI2": ("bmi2",),
    "AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "AVX512_VBMI": ("avx512vbmi",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
}
"""Options of llama.cpp's build, with the instruction sets that each needs.

AMX is left out: its kernels ended the process on a virtual machine that has it (SIGSEGV in the first product of 4 or 8 bits)."""


def genai_builder(precision: str, *options: str) -> tuple[str, ...]:
    """onnxruntime-genai's model builder; each option is `key=value`."""
    build = ("dev:python", "-m", "onnxruntime_genai.models.builder", "-i", "CHECKPOINT", "-o", "OUT", "-p", precision)
    return (*build, "-e", "cpu", "-c", "CACHE", *(("--extra_options", *options) if options else ()))


def gguf_writer(out: str) -> tuple[str, ...]:
    """The checkpoint as llama.cpp's file, float32."""
    return ("gguf:python", str(HERE / "convert_gguf.py"), "CHECKPOINT", out)


def gguf_quantizer(source: str, kind: str, *importance: str) -> tuple[str, ...]:
    """llama.cpp's quantisation of such a file; `importance` is the file of an importance matrix, if there is one."""
    return ("llama.cpp:python", str(HERE / "quantize_gguf.py"), source, "OUT", kind, *importance)


def openvino_exporter(precision: str, *options: str) -> tuple[str, ...]:
    """optimum-intel's command."""
    export = ("conversions:optimum-cli", "export", "openvino", "-m", "CHECKPOINT", "--task", "text-generation-with-past")
    return (*export, "--weight-format", precision, *options, "OUT")


def all_peers() -> list[Peer]:
    """Every combination that is measured, ours first."""
    peers = []
    for precision in ("int4", "int8", "fp32"):
        export = ("dev:onnx-textgen", "export", "CHECKPOINT", "--out", "OUT", "--precision", precision, "--int8-cache")
        peers.append(Peer("onnx-textgen", "onnx-textgen", precision, (export,), "onnx_textgen_worker.py"))
        if precision == "int4":
            larger = ((*export[:-1], "--block-size", "64"),)
            peers.append(Peer("onnx-textgen, blocks of 64", "onnx-textgen", precision, larger, "onnx_textgen_worker.py"))
        codes, hybrid = ("GRAPH", "int8_cache_model.onnx"), ("DEVICE", "hybrid")
        for title, environment, variables in (
            ("onnx-textgen, without its kernels", "onnx-textgen", (("ONNX_TEXTGEN_KERNELS", "0"),)),
            ("onnx-textgen, cache of 8 bits", "onnx-textgen", (codes,)),
            ("onnx-textgen, hybrid", "onnx-textgen+openvino", (hybrid,)),
            ("onnx-textgen, hybrid, cache of 8 bits", "onnx-textgen+openvino", (hybrid, codes)),
            ("onnx-textgen, hybrid bf16", "onnx-textgen+openvino", (("DEVICE", "hybrid:bf16"),)),
            ("onnx-textgen, OpenVINO", "onnx-textgen+openvino", (("DEVICE", "openvino"),)),
            ("onnx-textgen, OpenVINO bf16", "onnx-textgen+openvino", (("DEVICE", "openvino:bf16"),)),
        ):
            peers.append(
                Peer(
                    title,
                    environment,
                    precision,
                    worker="onnx_textgen_worker.py",
                    variables=variables,
                    base=f"onnx-textgen-{precision}",
                )
            )
        build = genai_builder(precision, "prune_lm_head=true", "fuse_mlp_gate_up=true")
        peers.append(Peer("onnxruntime-genai, best build", "onnxruntime-genai", precision, (build,), "genai_worker.py"))
        kind = {"int4": "Q4_0", "int8": "Q8_0", "fp32": ""}[precision]
        commands = (gguf_writer("OUT.fp32"), gguf_quantizer("OUT.fp32", kind)) if kind else (gguf_writer("OUT"),)
        peers.append(Peer("llama.cpp", "llama.cpp", precision, commands, "llama_cpp_worker.py", suffix=".gguf"))
        intel = openvino_exporter(precision, *(("--group-size", "64", "--ratio", "1.0") if precision == "int4" else ()))
        peers.append(Peer("OpenVINO GenAI", "openvino-genai", precision, (intel,), "openvino_genai_worker.py"))
    for precision in ("fp32", "bf16"):
        variables = (("PRECISION", precision),)
        peers.append(Peer("transformers", "transformers", precision, (), "torch_worker.py", variables=variables))
    return peers


def program(work: Path, environment: str, name: str) -> str:
    """The path of a program in an environment; `dev` is the one that runs this."""
    folder = Path(sys.executable).parent if environment == "dev" else work / "environments" / environment / "bin"
    return str(folder / name)


def use_environment(work: Path, name: str, folder: Path) -> None:
    """Let a virtual environment that is there already serve as `name`, in this run and later ones."""
    link = work / "environments" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder.resolve())


def llama_cpp_options() -> str:
    """Compile llama.cpp for the instructions that this processor has."""
    has = instructions()
    return " ".join(f"-DGGML_{name}={'ON' if has.issuperset(needed) else 'OFF'}" for name, needed in LLAMA_CPP_OPTIONS.items())


def environments_of(peers: Iterable[Peer]) -> list[str]:
    """The environments that run these peers and make their models."""
    found = dict[str, None]()
    for peer in peers:
        found |= dict.fromkeys([peer.environment, *(command[0].partition(":")[0] for command in peer.convert)])
    return [name for name in found if name != "dev"]


def make_environment(work: Path, name: str) -> None:
    """A virtual environment with what `ENVIRONMENTS` names; kept for later runs."""
    folder = work / "environments" / name
    if folder.is_symlink() or (folder / "ready").exists():
        return
    print(f"environment {name} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    variables = {"CMAKE_ARGS": f"-DGGML_NATIVE=OFF {llama_cpp_options()}"} if name == "llama.cpp" else {}
    subprocess.run([*pip, *ENVIRONMENTS[name]], check=True, env=os.environ | variables)
    if name == "conversions":  # the torchvision that pip chose does not fit a CPU build of torch; nothing here needs it
        subprocess.run([*pip[:3], "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    (folder / "ready").touch()


def converted(work: Path, peer: Peer, checkpoint: Path) -> Path:
    """Where the peer's model of a checkpoint is, or will be."""
    return work / "models" / checkpoint.name / (peer.base or peer.key + peer.suffix)


def conversion_log(work: Path, peer: Peer, checkpoint: Path) -> Path:
    """What the peer's converter printed."""
    return work / "models" / checkpoint.name / f"{peer.key}.log"


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def convert(work: Path, peer: Peer, checkpoint: Path, sources: Mapping[str, Path] | None = None) -> Path:
    """The peer's model of a checkpoint; made the first time. Raises `CalledProcessError` where the peer's converter fails.

    `sources`: files that commands name by a word, beside CHECKPOINT and OUT.
    """
    if not peer.convert and not peer.base:
        return checkpoint
    out = converted(work, peer, checkpoint)
    if out.exists():
        return out
    print(f"{peer.name} {peer.precision}: {checkpoint.name} ...", file=sys.stderr, flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    words = {"CHECKPOINT": str(checkpoint), "OUT": str(out), "OUT.fp32": f"{out}.fp32", "CACHE": str(work / "cache")}
    words |= {word: str(path) for word, path in (sources or {}).items()}
    log, cost, costs = conversion_log(work, peer, checkpoint), cost_file(work, peer, checkpoint), list[dict[str, float]]()
    try:
        for command in peer.convert:
            environment, _, name = command[0].partition(":")
            line = [program(work, environment, name), *(words.get(word, word) for word in command[1:])]
            with log.open("a") as file:
                measured = [sys.executable, str(HERE / "measured.py"), str(cost), *line]
                subprocess.run(measured, check=True, stdout=file, stderr=file, env=os.environ | {"HF_HUB_OFFLINE": "1"})
                costs.append(json.loads(cost.read_text()))
    except BaseException:
        remove(out)
        raise
    finally:
        Path(words["OUT.fp32"]).unlink(missing_ok=True)
    cost.write_text(json.dumps(together(costs)))
    return out


def cost_file(work: Path, peer: Peer, checkpoint: Path) -> Path:
    """What it took to make the peer's model: `made_seconds`, and `made_bytes` of memory."""
    return work / "models" / checkpoint.name / f"{peer.key}.cost.json"


def together(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What commands cost that run one after the other."""
    return {name: how(cost[name] for cost in costs) for name, how in (("made_seconds", sum), ("made_bytes", max))}
