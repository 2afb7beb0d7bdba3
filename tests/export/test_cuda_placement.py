"""Which packages a GPU computes whole, said by ONNX Runtime's CUDA provider without a GPU: see `support.cuda_placement`.

It places nodes and computes nothing, so it says nothing about numbers. Every kind of graph is opened that this project writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_textgen.backends.adapter_file import read_adapter
from onnx_textgen.backends.adapter_graph import linear_layers, with_adapters
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.package.locate import embedded_packages
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, adapter_file
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.options import Quantization
from support.cuda_placement import Placement, UnavailableError, placement, prepare
from support.tiny_models import tiny_model

pytestmark = pytest.mark.slow

FORMS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8", "quantization": Quantization(8, method="k_quant")},
    "int4": {"precision": "int4", "quantization": Quantization(4, method="k_quant")},
    "int8 with float16": {"precision": "int8", "quantization": Quantization(8, method="k_quant", activations="fp16")},
    "int4 with float16": {"precision": "int4", "quantization": Quantization(4, method="k_quant", activations="fp16")},
}
SIZES = {"Add", "Cast", "Concat", "Gather", "Mul", "Neg", "Reshape", "Shape", "Squeeze", "Sub"}
"""Arithmetic of sizes, which ONNX Runtime leaves to the CPU by choice."""


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """The CUDA provider, fetched once."""
    try:
        prepare()
    except UnavailableError as error:
        pytest.skip(str(error))


def exported(folder: Path, model_type: str, form: str, target: Any = "ort", **options: Any) -> Path:
    """Export a tiny model of this type."""
    return export(tiny_model(model_type), folder / "package", target=target, genai=False, **FORMS[form], **options).folder


def check_whole(found: Placement, copies: int = 0) -> None:
    """Everything but arithmetic of sizes is on CUDA, and nothing is copied inside a layer."""
    assert not found.without_kernel
    assert set(found.on_cpu) <= SIZES
    assert len(found.copies) <= copies, f"copied in every run: {found.copies}"
    assert found.answer == "cuda:0"


@pytest.mark.parametrize(
    ("model_type", "form"),
    [
        ("llama", "fp16"),
        ("llama", "int8 with float16"),
        ("llama", "int4 with float16"),
        ("gpt2", "fp16"),  # positions that are added, layer norm, biases
        ("gemma3_text", "int4 with float16"),  # windows
        ("gpt_oss", "int4 with float16"),  # experts, and sinks of attention
        ("lfm2", "fp16"),  # states of convolutions
        ("qwen3_next", "int4 with float16"),  # recurrent layers
    ],
)
def test_float16_packages_are_computed_on_cuda_whole(tmp_path: Path, model_type: str, form: str) -> None:
    found = placement(exported(tmp_path, model_type, form) / GRAPH)
    check_whole(found)
    assert "GroupQueryAttention" in found.on_cuda


@pytest.mark.parametrize("form", ["fp32", "fp16", "int8", "int4 with float16"])
def test_packages_of_the_standard_are_computed_on_cuda_whole_and_copy_the_number_of_tokens(tmp_path: Path, form: str) -> None:
    found = placement(exported(tmp_path, "llama", form, "standard") / GRAPH)
    check_whole(found, copies=1)
    assert "Attention" in found.on_cuda


@pytest.mark.parametrize("form", ["fp32", "int8", "int4"])
def test_float32_packages_for_onnx_runtime_are_refused_with_the_export_that_is_not(tmp_path: Path, form: str) -> None:
    check_refused(placement(exported(tmp_path, "llama", form) / GRAPH), "float32")


@pytest.mark.parametrize("name", embedded_packages())
def test_the_embedded_models_are_refused(name: str) -> None:
    check_refused(placement(embedded_packages()[name] / GRAPH), "float32")


def check_refused(found: Placement, types: str) -> None:
    """Attention alone has no kernel, each layer would copy, and the runtime says what to export instead."""
    assert set(found.without_kernel) == {"GroupQueryAttention"}
    assert len(found.copies) > found.without_kernel.total()
    assert f"does not suit cuda:0: GroupQueryAttention over {types} has no kernel there" in found.answer
    assert "--precision fp16, at int8 or int4 with --activations fp16, or with --target standard" in found.answer


def test_the_graph_with_a_cache_of_8_bits_is_refused(tmp_path: Path) -> None:
    check_refused(placement(exported(tmp_path, "llama", "int8", int8_cache=True) / INT8_CACHE_GRAPH), "int8")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT 0.21 with transformers 5.23
def test_the_graph_with_adapters_is_computed_on_cuda_whole(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2))
    adapted.save_pretrained(tmp_path / "adapter")
    package = exported(tmp_path, "llama", "int4 with float16", adapters={"one": tmp_path / "adapter"})
    session = open_session(package / GRAPH, device="cpu")
    changes = read_adapter(package / adapter_file("one"))
    (package / "with_adapters.onnx").write_bytes(with_adapters(session.model(), linear_layers(session), [changes]))
    found = placement(package / "with_adapters.onnx")
    check_whole(found)
    assert found.on_cuda["MatMul"] >= 2, "products of low rank"
