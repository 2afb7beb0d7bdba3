"""Whose quantised forms are compared: the command that makes each, the worker that runs it, and the files that count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from peers import Peer, genai_builder, gguf_quantizer, gguf_writer, openvino_exporter

CONVERTERS = Path(__file__).resolve().parent / "converters"
REFERENCE = Peer(
    "transformers",
    "transformers",
    "fp32",
    worker="torch_worker.py",
    variables=(("PRECISION", "fp32"),),
)
"""What all are compared with: the checkpoint itself in float32."""

SOURCES = {
    "GGUF": Peer("llama.cpp", "conversions", "source", (gguf_writer("OUT"),), suffix=".gguf"),
    "OPENVINO": Peer("OpenVINO", "conversions", "source", (openvino_exporter("fp32"),)),
    "IMPORTANCE": Peer(
        "importance matrix",
        "conversions",
        "source",
        (("conversions:python", str(CONVERTERS / "importance_matrix.py"), "CHECKPOINT", "TOKENS", "OUT"),),
        suffix=".npz",
    ),
}
"""What several converters start from, made once, by the word that stands for it in commands. TOKENS is the calibration text."""

OURS = {
    "int4": ("--precision", "int4"),
    "int4, blocks of 32": ("--precision", "int4", "--block-size", "32"),
    "int4, 4 bits alone": ("--precision", "int4", "--strict-bits"),
    "int4, KL 0.001": ("--precision", "int4", "--max-kl", "0.001"),
    "int4, exact": ("--precision", "int4", "--exact"),
    "int8": ("--precision", "int8"),
    "int8, exact": ("--precision", "int8", "--exact"),
}
"""Options of `onnx-textgen export` by what the table calls the form."""
GENAI = {
    "int4": (),
    "int4 k_quant": ("algo_config=k_quant",),
    "int4 k_quant_last": ("algo_config=k_quant_last",),
    "int4 k_quant_mixed": ("algo_config=k_quant_mixed",),
    "int8": (),
}
"""Options of onnxruntime-genai's model builder."""
LLAMA_CPP = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
WITH_IMPORTANCE = ("Q4_0", "Q4_K_M")
OPENVINO = {
    "int4, AWQ and scale estimation": ("--scale-estimation",),
    "int4, AWQ and GPTQ": ("--gptq",),
}
"""Options of compress_openvino.py; what `optimum-cli` makes without data comes beside them."""

FILES = {
    "onnx-textgen": ("model.onnx", "onnx/model*.onnx_data*"),
    "onnxruntime-genai": ("model.onnx", "model.onnx.data"),
    "OpenVINO": ("openvino_model.xml", "openvino_model.bin"),
    "transformers": ("*.safetensors",),
}
"""The files that count, graph and weights, by whose they are; llama.cpp's file is one."""


def all_variants(width: int) -> list[Peer]:
    """Every form that is measured, ours first; `width` is the model's, which decides what OpenVINO's groups are."""
    return [*ours(), *genai(), *llama_cpp(), *openvino(128 if width % 128 == 0 else 64), REFERENCE]


def ours() -> Iterator[Peer]:
    """Our own packages."""
    for name, options in OURS.items():
        export = ("dev:onnx-textgen", "export", "CHECKPOINT", "--out", "OUT", *options)
        yield Peer("onnx-textgen", "onnx-textgen", name, (export,), "onnx_textgen_worker.py")


def genai() -> Iterator[Peer]:
    """What onnxruntime-genai's builder makes."""
    for name, options in GENAI.items():
        build = genai_builder(name[:4], *options)
        yield Peer("onnxruntime-genai", "onnxruntime-genai", name, (build,), "genai_worker.py")


def llama_cpp() -> Iterator[Peer]:
    """llama.cpp's types, two of them with an importance matrix too."""
    forms = [(kind, kind, ()) for kind in LLAMA_CPP]
    forms += [(f"{kind}, importance matrix", kind, ("IMPORTANCE",)) for kind in WITH_IMPORTANCE]
    for name, kind, importance in forms:
        quantize = gguf_quantizer("GGUF", kind, *importance)
        yield Peer("llama.cpp", "llama.cpp", name, (quantize,), "llama_cpp_worker.py", suffix=".gguf")


def openvino(group: int) -> Iterator[Peer]:
    """optimum-intel's int4 and int8, and NNCF's int4 with data. They compute in float32; left alone some CPUs do in bfloat16."""
    export = ("--group-size", str(group), "--ratio", "1.0")
    commands = {"int4": openvino_exporter("int4", *export)}
    for name, options in OPENVINO.items():
        compress = ("conversions:python", str(CONVERTERS / "compress_openvino.py"), "OPENVINO", "TOKENS", "OUT")
        commands[name] = (*compress, "--group-size", str(group), *options)
    commands["int8"] = openvino_exporter("int8")
    variables = (("INFERENCE_PRECISION", "f32"),)
    for name, command in commands.items():
        yield Peer("OpenVINO", "openvino-genai", name, (command,), "openvino_genai_worker.py", variables=variables)
