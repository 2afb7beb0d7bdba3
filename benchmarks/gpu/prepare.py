"""Make what a machine with a GPU needs for `run.py`, on a machine without one, in parts that can be carried one by one.

    python benchmarks/gpu/prepare.py --out build/gpu          # writes build/gpu/part-00, part-01, ...
    cat part-* | tar -xJ -C /tmp/kit                          # there

The parts hold the distributions that `run.py` needs and the other machine lacks, small packages of every kind of graph, and
SmolLM2-135M-Instruct as a GGUF file. The other machine has Linux on x86-64, CPython 3.12, CUDA 13, PyTorch and the libraries of
`HAS`. Of the CUDA provider, code for other GPUs than the one named is blanked: 53 MB remain of 205.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests"))
from onnx_textgen_export import export  # noqa: E402
from onnx_textgen_export.passes.quantization.options import Quantization  # noqa: E402
from support.smollm2 import smollm2_file  # noqa: E402
from support.tiny_encoder_decoders import tiny_encoder_decoder  # noqa: E402
from support.tiny_models import tiny_model  # noqa: E402

PART_BYTES = 40_000_000
PYTHON = "3.12"
WHEELS = ("onnxruntime-gpu==1.31.1", "onnxruntime-genai-cuda==0.18.0")
PACKAGES = (
    *("typer", "platformdirs", "llguidance", "gguf", "fastapi", "starlette", "uvicorn", "pydantic", "pydantic-core"),
    *("annotated-types", "typing-inspection", "annotated-doc", "transformers", "filelock", "prometheus-client", "rich"),
    "opentelemetry-api",
)
"""In the versions that are installed here."""
HAS = ("torch", "onnx", "onnxscript", "onnx-ir", "tokenizers", "numpy", "safetensors", "jinja2", "regex", "accelerate", "protobuf")
"""What the other machine has by itself."""
PROVIDER = Path("onnxruntime", "capi", "libonnxruntime_providers_cuda.so")
FATBIN = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""How a file of machine code for several GPUs begins: its magic number, its version, and the bytes of this header."""

INT4 = Quantization(4, method="k_quant", activations="fp16")
INT8 = Quantization(8, method="k_quant", activations="fp16")
FORMS: dict[str, dict[str, Any]] = {
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8", "quantization": INT8},
    "int4": {"precision": "int4", "quantization": INT4},
    "standard-fp32": {"precision": "fp32", "target": "standard"},
    "standard-fp16": {"precision": "fp16", "target": "standard"},
    "standard-int4": {"precision": "int4", "quantization": INT4, "target": "standard"},
}
GRAPHS = (
    *(("llama", form) for form in FORMS),
    *(("gpt2", "fp16"), ("gemma3_text", "fp16"), ("gemma3_text", "int4"), ("mistral", "fp16"), ("qwen3_moe", "fp16")),
    *(("gpt_oss", "int4"), ("lfm2", "fp16"), ("mamba", "fp16"), ("qwen3_next", "int4"), ("bloom", "fp16"), ("phi3", "int4")),
    *(("t5", "standard-fp32"), ("bart", "fp16"), ("deepseek_v3", "fp16")),
)
"""Every kind of graph: forms, added positions, windows, experts, sinks, convolutions, recurrent layers, ALiBi, encoders."""


def blank_others(library: Path, architecture: int) -> None:
    """Overwrite the machine code for other GPUs by zeros, which compress to nothing; CUDA loads only what fits its GPU."""
    data, place = bytearray(library.read_bytes()), 0
    while (place := data.find(FATBIN, place)) >= 0:
        entry = place + 16
        place = end = entry + struct.unpack_from("<Q", data, place + 8)[0]
        while entry < end:
            header, size = struct.unpack_from("<IQ", data, entry + 4)
            if struct.unpack_from("<I", data, entry + 28)[0] != architecture:
                data[entry + header : entry + header + size] = bytes(size)
            entry += header + size
    library.write_bytes(data)


def fetch(site: Path, architecture: int) -> None:
    """Install the distributions for the other machine into a folder."""
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
    platforms = [part for number in (34, 31, 28, 27, 17, 12, 5) for part in ("--platform", f"manylinux_2_{number}_x86_64")]
    options = ("--only-binary", ":all:", "--no-compile", "--python-version", PYTHON, "--implementation", "cp")
    more = ("--platform", "manylinux2014_x86_64", "--target", str(site))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    subprocess.run([*pip, *options, *platforms, *more, *WHEELS, *pinned], check=True)
    subprocess.run([*pip, "--target", str(site), str(HERE.parents[1])], check=True)
    blank_others(site / PROVIDER, architecture)
    (site / PROVIDER).with_name("libonnxruntime_providers_tensorrt.so").unlink()


def make_packages(folder: Path) -> Iterator[str]:
    """Export small random models, and say which could not be."""
    for model_type, form in GRAPHS:
        make = tiny_encoder_decoder if model_type in ("t5", "bart") else tiny_model
        try:
            export(make(model_type), folder / f"{model_type}-{form}", context_length=256, **FORMS[form])
        except Exception as error:  # noqa: BLE001 - the others are worth a lease without it
            yield f"{model_type} {form}: {error}"


def main() -> None:
    """Prepare, pack and divide."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU: 80 is A100, 89 RTX 40, 90 H100, 120 RTX 50")
    asked = parser.parse_args()
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=asked.out) as made:
        kit = Path(made)
        fetch(kit / "site", asked.architecture)
        for refusal in make_packages(kit / "packages"):
            print(refusal)
        shutil.copy(smollm2_file(), kit / "smollm2.gguf")
        export(kit / "smollm2.gguf", kit / "made" / "int4", requantise=True, **FORMS["int4"])
        pack = subprocess.Popen(["tar", "-C", made, "-cJf", "-", "."], stdout=subprocess.PIPE, env={"XZ_OPT": "-3 -T0"})
        assert pack.stdout is not None
        number = 0
        while part := pack.stdout.read(PART_BYTES):
            (asked.out / f"part-{number:02}").write_bytes(part)
            number += 1
        if pack.wait():
            raise SystemExit("tar failed")
    print(f"{number} parts in {asked.out}")


if __name__ == "__main__":
    main()
