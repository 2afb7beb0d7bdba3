"""The size that is announced is the size that is written, and a disk without room is refused before anything is."""

import dataclasses
import functools
import itertools
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from onnx_textgen.package.manifest import Precision, weights_files
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import DecoderConfig, ExportError, TinyTransformer, export
from onnx_textgen_export.calibration.attempts import Budget
from onnx_textgen_export.package.forecast import Stored, check_disk, estimate_export, file_bytes, stored_parameters, weight_bytes
from onnx_textgen_export.passes.quantization.options import Quantization, default_for

Usage = namedtuple("Usage", "total used free")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=1500, n_embd=96, n_layer=2, n_head=4, n_positions=128, tie_word_embeddings=False)
    return transformers.GPT2LMHeadModel(config)


def own() -> nn.Module:
    return TinyTransformer(DecoderConfig(vocab_size=1100, width=64, layers=2, heads=4, context_length=128))


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        vocab_size=1500,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=128,
    )
    return transformers.MixtralForCausalLM(config)


@functools.cache
def built(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "precision"),
    [*itertools.product((llama, gpt2, mixtral), ("fp32", "int8", "int4")), (own, "fp32")],
)
def test_the_forecast_is_within_two_percent_of_what_is_written(tmp_path: Path, build, precision: Precision) -> None:
    module = built(build)
    options = default_for(precision, next(module.parameters()).shape[1])  # the embedding comes first
    expected = estimate_export(stored_parameters(module), layers=2, precision=precision, options=options)
    budget = Budget(strict_bits=True) if options is not None else None  # more bits for a budget are not in the forecast
    folder = export(module, tmp_path / "package", precision=precision, budget=budget).folder
    sizes = [weight_bytes(each, precision, options) for each in stored_parameters(module)]
    assert file_bytes(sizes) == pytest.approx(
        sum((folder / name).stat().st_size for name in weights_files(read_manifest(folder))),
        rel=0.02,
        abs=15_000,  # small scales lie in the graph
    )
    whole = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert expected.package_bytes == pytest.approx(whole, abs=0.02 * whole + 100_000)  # the graph is most of such small packages


def test_every_parameter_is_counted_once_by_what_its_layer_does() -> None:
    kinds = {each.kind for each in stored_parameters(llama())}
    assert kinds == {"shared", "matrix", "other"}
    found = stored_parameters(gpt2())
    assert [each.kind for each in found if each.shape == (1500, 96)] == ["table", "head"]
    assert Stored((288, 96), "matrix") in found  # queries, keys and values, turned to (outputs, inputs)
    assert sum(each.elements for each in found) == sum(parameter.numel() for parameter in gpt2().parameters())


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (Quantization(8), 64 * 64 + 64 * (2 + 4)),
        (Quantization(4), 64 * 64 // 2 + 64 * (2 + 4)),
        (Quantization(4, block_size=16), 64 * 64 // 2 + 64 * (4 + 4)),
        (Quantization(4, symmetric=False), 64 * 64 // 2 + 64 * (2 + 4) + 64),
        (Quantization(4, symmetric=False, method="hqq"), 64 * 64 // 2 + 64 * (2 + 4) + 64 * 2 * 4),
        (Quantization(8, symmetric=False), 64 * 64 + 64 * (2 + 4) + 64 * 2),
    ],
)
def test_a_quantised_matrix_has_codes_scales_and_zero_points(options: Quantization, size: int) -> None:
    assert weight_bytes(Stored((64, 64), "matrix"), "int4", options) == size


def test_what_is_not_quantised_is_counted_as_it_is() -> None:
    small, odd = Stored((1000, 64), "table"), Stored((2000, 40), "table")
    for each in (small, odd, Stored((4, 64, 64), "other"), Stored((64,), "other")):
        assert weight_bytes(each, "int4", Quantization(4)) == 4 * each.elements
        assert weight_bytes(each, "fp16", None) == 2 * each.elements
    assert weight_bytes(Stored((2000, 64), "table"), "int4", Quantization(4), "standard") == 2000 * (64 + 2 + 4)
    assert weight_bytes(Stored((2000, 64), "head"), "int4", Quantization(4, head_bits=8)) == 2000 * (64 + 2 + 4)


def test_tensors_lie_at_multiples_of_64_bytes() -> None:
    assert file_bytes([1025, 10, 2048, 1024]) == 1088 + 2048 + 1024  # 10 bytes lie in the graph


def llama_shape(width: int, inputs: int, layers: int, vocabulary: int, kv: int) -> list[Stored]:
    """The parameters of a Llama with a tied embedding."""
    shapes = [(width, width), (kv, width), (kv, width), (width, width), (inputs, width), (inputs, width), (width, inputs)]
    return [Stored((vocabulary, width), "shared"), *(Stored(shape, "matrix") for _ in range(layers) for shape in shapes)]


SMOLLM2 = llama_shape(576, 1536, 30, 49_152, 192)
LLAMA_1B = llama_shape(2048, 8192, 16, 128_256, 512)
CODER = [
    Stored((151_936, 896), "table", "Q8_0"),
    Stored((151_936, 896), "head", "Q8_0"),
    *(dataclasses.replace(each, form="Q5_0") for each in llama_shape(896, 4864, 24, 151_936, 128)[1:]),
]
LLAMA_8B = [
    Stored((128_256, 4096), "table", "Q4_K"),
    Stored((128_256, 4096), "head", "Q6_K"),
    *(dataclasses.replace(each, form="Q4_K") for each in llama_shape(4096, 14_336, 32, 128_256, 1024)[1:]),
]


@pytest.mark.parametrize(
    ("parameters", "layers", "precision", "options", "tokens", "gigabytes"),
    [
        (SMOLLM2, 30, "fp32", None, 0, 1.59),
        (SMOLLM2, 30, "int8", default_for("int8", 576), 0, 1.72),
        (SMOLLM2, 30, "int4", default_for("int4", 576), 6656 * 576, 1.68),
        (LLAMA_1B, 16, "int4", default_for("int4", 2048), 1024 * 2048, 4.06),
        (CODER, 24, "int8", Quantization(8, keeps_stored=True), 0, 3.51),
        (LLAMA_8B, 32, "int8", Quantization(8, keeps_stored=True), 0, 18.0),
        (CODER, 24, "int8", default_for("int8", 896), 0, 4.62),
        (CODER, 24, "int4", default_for("int4", 896), 1900 * 896, 3.58),
    ],
)
def test_the_forecast_of_memory_is_within_a_quarter_of_what_was_measured(
    *, parameters: list[Stored], layers: int, precision: Precision, options: Quantization | None, tokens: int, gigabytes: float
) -> None:
    """Largest resident memory of exports of SmolLM2-135M, Qwen2.5-Coder-0.5B, and random models of the shapes of Llama 3."""
    found = estimate_export(parameters, layers=layers, precision=precision, options=options, calibrated_numbers=tokens)
    assert found.memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.25)


def test_memory_does_not_grow_with_depth_but_with_the_largest_tensor_and_with_weights_that_stay() -> None:
    def memory(layers: int, width: int = 512, resident: int = 0) -> int:
        parameters = llama_shape(width, 2 * width, layers, 32_000, width)
        options = default_for("int4", width)
        return estimate_export(parameters, layers=layers, precision="int4", options=options, resident_bytes=resident).memory_bytes

    assert memory(16) < 1.1 * memory(4)
    assert memory(4, 2048) > memory(4) + 32_000 * (2048 - 512) * 4
    assert memory(4, resident=10**9) == memory(4) + 10**9


def test_a_forecast_is_one_line() -> None:
    line = estimate_export([Stored((128_256, 2048), "shared")], layers=16).describe()
    assert line.startswith("about 1.1 GB on disk, ")
    assert "\n" not in line
    options = default_for("int4", 2048)
    calibrated = estimate_export([Stored((128_256, 2048), "shared")], layers=16, precision="int4", options=options).describe()
    assert calibrated.startswith("about 144.5 MB on disk (932.5 MB until it is done), "), "three codes for each weight"


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(2**40, 2**40, 50_000_000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    check_disk(tmp_path / "not" / "there", 30_000_000)
    with pytest.raises(ExportError, match=r"will take 1\.2 GB and its disk has 50\.0 MB free; free some space"):
        check_disk(tmp_path / "not" / "there", 1_200_000_000)
    assert asked == [tmp_path, tmp_path]
    assert list(tmp_path.iterdir()) == []
