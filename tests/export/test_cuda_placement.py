"""Which packages a GPU computes whole, said by ONNX Runtime's CUDA provider without a GPU: see `support.cuda_placement`.

It places nodes and computes nothing, so it says nothing about numbers. Every kind of graph is opened that this project writes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import peft
import pytest

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.backends.variants.adapter_file import read_adapter
from onnx_textgen.backends.variants.adapter_graph import linear_layers, with_adapters
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
    return export(tiny_model(model_type), folder / "package", target=target, **FORMS[form], **options).folder


@pytest.fixture(scope="module")
def with_int8_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package at int8 with the graph whose cache has 8 bits."""
    return exported(tmp_path_factory.mktemp("int8-cache"), "llama", "int8", int8_cache=True)


@pytest.fixture(scope="module")
def with_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package at int4 with float16, with an adapter of PEFT."""
    folder = tmp_path_factory.mktemp("adapter")
    settings = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT 0.21 with transformers 5.23
        peft.get_peft_model(tiny_model("llama"), settings).save_pretrained(folder / "trained")
    return exported(folder, "llama", "int4 with float16", adapters={"one": folder / "trained"})


def check_whole(found: Placement, copies: int = 0) -> None:
    """Everything but arithmetic of sizes is on CUDA, and nothing is copied inside a layer."""
    assert not found.without_kernel
    assert set(found.on_cpu) <= SIZES
    assert len(found.copies) <= copies, f"copied in every run: {found.copies}"
    assert found.answer == "cuda:0"


@pytest.mark.parametrize(
    ("model_type", "form"),
    [
        ("llama", "int8 with float16"),
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


def test_all_graphs_of_a_float16_package_are_computed_on_cuda_whole(tmp_path: Path) -> None:
    tokenizer = Path(__file__).parents[1] / "packages" / "ort" / "tokenizer.json"
    package = exported(tmp_path, "llama", "fp16", hidden_states=True, tokenizer=tokenizer, eos_ids=(1,))
    for name in (GRAPH, "onnx/model_fp16.onnx"):
        check_whole(placement(package / name))


@pytest.mark.parametrize("form", ["fp32", "fp16", "int8", "int4 with float16"])
def test_packages_of_the_standard_are_computed_on_cuda_whole_and_copy_the_number_of_tokens(tmp_path: Path, form: str) -> None:
    found = placement(exported(tmp_path, "llama", form, "standard") / GRAPH)
    check_whole(found, copies=1)
    assert "Attention" in found.on_cuda


@pytest.mark.parametrize("form", ["fp32", "int4"])
def test_float32_packages_for_onnx_runtime_are_refused_with_the_export_that_is_not(tmp_path: Path, form: str) -> None:
    check_refused(placement(exported(tmp_path, "llama", form) / GRAPH), "float32")


def test_both_graphs_of_a_package_with_a_cache_of_8_bits_are_refused(with_int8_cache: Path) -> None:
    check_refused(placement(with_int8_cache / GRAPH), "float32")
    check_refused(placement(with_int8_cache / INT8_CACHE_GRAPH), "int8")


@pytest.mark.parametrize("name", embedded_packages())
def test_the_embedded_models_are_refused(name: str) -> None:
    check_refused(placement(embedded_packages()[name] / GRAPH), "float32")


def check_refused(found: Placement, types: str) -> None:
    """Attention alone has no kernel, each layer would copy, and the runtime says what to export instead."""
    assert set(found.without_kernel) == {"GroupQueryAttention"}
    assert len(found.copies) > found.without_kernel.total()
    assert f"does not suit cuda:0: GroupQueryAttention over {types} has no kernel there" in found.answer
    assert "--precision fp16, at int8 or int4 with --activations fp16, or with --target standard" in found.answer


def test_a_package_with_adapters_is_computed_on_cuda_whole_with_them_and_without(with_adapter: Path) -> None:
    check_whole(placement(with_adapter / GRAPH))
    session = open_session(with_adapter / GRAPH, device="cpu")
    changes = read_adapter(with_adapter / adapter_file("one"))
    changed = with_adapter / "with_adapters.onnx"
    changed.write_bytes(with_adapters(session.model(), linear_layers(session), [changes]))
    found = placement(changed)
    check_whole(found)
    assert found.on_cuda["MatMul"] >= 2, "products of low rank"
