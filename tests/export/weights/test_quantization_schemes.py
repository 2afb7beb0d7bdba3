"""Layers of quantised checkpoints, packed by their makers' libraries, are read as those libraries read them.

The layers in `quantized_layers` are [32, 128]. auto-gptq 0.7.1, autoawq 0.2.9, compressed-tensors 0.20.0, bitsandbytes 0.50.2 and
transformers 5.23.0 packed them, and `expected` is what each of them dequantises to in float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.passes.quantization.lossless import find_form
from onnx_textgen_export.weights.bit_packing import unpack
from onnx_textgen_export.weights.quantized_files import QuantizedFiles

LAYERS = Path(__file__).with_name("quantized_layers")
KEPT = {
    "awq4": (4, 32),
    "gptq2": (4, 64),
    "gptq3": (4, 64),
    "gptq4": (4, 32),
    "gptq4_asymmetric": (4, 64),
    "gptq4_act_order": (4, 32),
    "gptq8": (8, 64),
    "ct_int4": (4, 32),
    "ct_int4_asymmetric": (4, 32),
    "ct_int8": (8, 128),
    "bnb_int8": (8, 128),
    "bitnet_bitlinear": (2, 128),
    "bitnet_autobitlinear": (2, 128),
}
"""Layers whose numbers have a form of ours: its bits and its block size."""
LOST = ["bnb_nf4", "bnb_nf4_nested", "bnb_fp4", "bnb_fp4_nested", "ct_float8", "fp8"]


class Layer:
    """The tensors of one file, as a checkpoint has them."""

    def __init__(self, name: str) -> None:
        with safe_open(LAYERS / f"{name}.safetensors", framework="pt") as file:
            self.settings = json.loads(file.metadata()["quantization_config"])
            self.tensors = {each: file.get_tensor(each) for each in list(file.keys())}
        self.expected = self.tensors.pop("expected").numpy()

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def opened(self, *, is_transposed: bool = False) -> QuantizedFiles:
        return QuantizedFiles(self, self.settings, lambda name: is_transposed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_a_matrix_has_the_numbers_that_its_makers_library_gives(name: str) -> None:
    layer = Layer(name)
    opened = layer.opened()
    assert opened.names() == ["layer.weight"]
    found = opened.read("layer.weight").numpy()
    if name in ("bnb_int8", "bitnet_bitlinear"):  # their libraries multiply and divide in another order
        np.testing.assert_allclose(found, layer.expected, rtol=3e-7, atol=0)
    else:
        np.testing.assert_array_equal(found, layer.expected)
    np.testing.assert_array_equal(layer.opened(is_transposed=True).read("layer.weight").numpy(), found.T)


@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_what_can_be_kept_has_a_form(name: str) -> None:
    opened = Layer(name).opened()
    matrix, order = opened.read("layer.weight").numpy(), opened.order("layer.weight")
    assert (order is not None) == (name == "gptq4_act_order")
    form = find_form(matrix if order is None else matrix[:, order], inputs_first=False)
    assert (form and (form.bits, form.block_size)) == KEPT.get(name)


@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_a_damaged_layer_is_refused_in_one_line(name: str) -> None:
    sizes = Layer(name).expected.shape
    for lost in (each for each, tensor in Layer(name).tensors.items() if tensor.ndim):
        layer = Layer(name)
        layer.tensors[lost] = layer.tensors[lost][: len(layer.tensors[lost]) // 2]
        try:
            found = layer.opened().read("layer.weight")
        except ExportError as error:
            assert re.fullmatch(
                r"layer\.weight (cannot be read as|has numbers that) .*; .*copy (it|the checkpoint) again", str(error)
            )
        else:  # of another shape, which does not fit the model
            assert tuple(found.shape) != sizes


DAMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another type": lambda tensor: tensor.float() if not tensor.is_floating_point() else tensor.to(torch.int32),
    "half of its columns": lambda tensor: tensor[..., : tensor.shape[-1] // 2],
    "surplus rows": lambda tensor: torch.cat([tensor, tensor]),
    "surplus columns": lambda tensor: torch.cat([tensor, tensor], -1),
    "one below zero": lambda tensor: torch.cat([tensor[:-1], -1 - tensor[-1:]]),
}
ANY_VALUE = ("quant_map", "quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
NOT_NEGATIVE = ("scales", "weight_scale", "weight_scale_inv", "SCB", "g_idx")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_no_damaged_layer_gives_other_numbers_without_a_word(name: str, damage: str) -> None:
    original = Layer(name)
    original.settings["config_groups"] = {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}
    expected = original.opened().read("layer.weight")
    for part, tensor in original.tensors.items():
        if part.endswith(ANY_VALUE) or not tensor.ndim or (damage == "one below zero" and not part.endswith(NOT_NEGATIVE)):
            continue
        layer = Layer(name)
        layer.settings, layer.tensors[part] = original.settings, DAMAGES[damage](tensor)
        try:
            found = layer.opened().read("layer.weight")
        except ExportError as error:
            assert "\n" not in str(error)
        else:
            assert found.shape != expected.shape or torch.equal(found, expected), part


def test_another_method_is_refused_by_its_name() -> None:
    layer = Layer("awq4")
    layer.settings = {"quant_method": "aqlm"}
    with pytest.raises(ExportError, match="quantised by aqlm, which cannot be read"):
        layer.opened()


@given(bits=st.integers(1, 8), counts=st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_integers_are_those_of_the_stream_of_bits(bits: int, counts: list[int]) -> None:
    wanted = [count % 2**bits for count in counts]
    stream = sum(value << (bits * place) for place, value in enumerate(wanted))
    words = stream.to_bytes(-(-bits * len(wanted) // 32) * 4, "little")
    assert unpack(np.frombuffer(words, np.int32)[None], bits, len(wanted)).tolist() == [wanted]
