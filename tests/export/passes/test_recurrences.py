"""Recurrences in a graph: the operators of both targets against PyTorch, and against themselves however a text is split."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from onnx_textgen_export.passes.recurrences import lower_recurrences
from onnx_textgen_export.sources.recurrence import (
    causal_convolution,
    decayed_sum,
    linear_attention,
    running_maximum,
    selective_scan,
)

TOKENS, ROWS = 150, 2
PARTS = (1, 7, 1, 64, 77)

Inputs = dict[str, Tensor]


def random_inputs(**shapes: Sequence[int]) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(*shape, generator=generator) / 2 for name, shape in shapes.items()}


def heads_of(options: str, key_heads: int, heads: int, size: int, value_size: int) -> Inputs:
    made = random_inputs(
        query=(ROWS, TOKENS, key_heads, size),
        key=(ROWS, TOKENS, key_heads, size),
        value=(ROWS, TOKENS, heads, value_size),
        state=(ROWS, heads, size, value_size),
        beta=(ROWS, TOKENS, heads),
        decay=(ROWS, TOKENS, heads),
        by_row=(ROWS, TOKENS, heads, size),
    )
    made["key"] = nn.functional.normalize(made["key"], dim=-1)
    made |= {"beta": made["beta"].sigmoid(), "decay": -made["decay"].exp(), "by_row": -made["by_row"].exp()}
    return {name.replace("by_row", "decay"): made[name] for name in ["query", "key", "value", "state", *options.split()]}


Recurrence = Callable[..., tuple[Tensor, Tensor]]


def with_last_state(call: Callable[..., Tensor]) -> Recurrence:
    """A recurrence whose outputs are its states."""

    def both(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = call(**inputs)
        return output, output[:, -1].clone()

    return both


FIXED = {"state", "rate", "weight", "bias"}
"""Inputs without tokens."""
CASES: dict[str, tuple[Recurrence, Inputs]] = {
    "linear": (linear_attention, heads_of("", 4, 4, 16, 8)),
    "gated": (linear_attention, heads_of("decay", 4, 4, 16, 8)),
    "gated, one key for all heads": (linear_attention, heads_of("decay", 1, 6, 8, 16)),
    "delta": (linear_attention, heads_of("beta", 4, 4, 8, 16)),
    "gated delta": (linear_attention, heads_of("decay beta", 4, 4, 16, 16)),
    "gated delta, two heads for each key": (linear_attention, heads_of("decay beta", 2, 4, 16, 8)),
    "gated delta, a decay for each row": (linear_attention, heads_of("by_row beta", 2, 2, 16, 8)),
    "selective": (
        selective_scan,
        random_inputs(
            x=(ROWS, TOKENS, 24),
            step=(ROWS, TOKENS, 24),
            rate=(24, 8),
            write=(ROWS, TOKENS, 8),
            read=(ROWS, TOKENS, 8),
            state=(ROWS, 24, 8),
        ),
    ),
    "decayed sum": (
        with_last_state(decayed_sum),
        random_inputs(value=(ROWS, TOKENS, 24), factor=(ROWS, TOKENS, 24), state=(ROWS, 24)),
    ),
    "running maximum": (
        with_last_state(running_maximum),
        random_inputs(value=(ROWS, TOKENS, 24), decay=(ROWS, TOKENS, 24), state=(ROWS, 24)),
    ),
    "convolution": (causal_convolution, random_inputs(x=(ROWS, TOKENS, 24), state=(ROWS, 3, 24), weight=(24, 4), bias=(24,))),
}
CASES["running maximum"][1]["decay"].abs_().neg_()
CASES["selective"][1]["step"].abs_()
CASES["selective"][1]["rate"].abs_().neg_()


class Layer(nn.Module):
    """A recurrence as a module of flat inputs."""

    def __init__(self, call: Recurrence, names: Sequence[str]) -> None:
        super().__init__()
        self.call, self.names = call, names

    def forward(self, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        return self.call(**dict(zip(self.names, given, strict=True)))


def sizes_that_vary(name: str) -> dict[int, object]:
    dynamic = torch.export.Dim.DYNAMIC
    return {} if name in FIXED - {"state"} else {0: dynamic} if name == "state" else {0: dynamic, 1: dynamic}


def traced(call: Recurrence, inputs: Inputs, target: str) -> tuple[onnxruntime.InferenceSession, set[str]]:
    example = [tensor if name in FIXED else tensor[:, :7] for name, tensor in inputs.items()]
    shapes = ([sizes_that_vary(name) for name in inputs],)
    exported = torch.export.export(Layer(call, list(inputs)), (example,), dynamic_shapes=shapes, strict=False)
    program = torch.onnx.export(
        exported, (), dynamo=True, opset_version=23, input_names=list(inputs), optimize=False, verbose=False
    )
    assert program is not None
    model = program.model
    lower_recurrences(model, target)  # type: ignore[arg-type]
    model.opset_imports.pop("onnx_textgen", None)
    operators = {f"{node.domain}::{node.op_type}" for node in model.graph}
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]), operators


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("case", CASES)
def test_a_graph_computes_what_pytorch_does_however_the_text_is_split(case: str, target: str) -> None:
    call, inputs = CASES[case]
    session, operators = traced(call, inputs, target)
    if target == "standard":
        assert all(name.startswith("::") for name in operators)
    elif "key" in inputs:
        assert "com.microsoft::LinearAttention" in operators
    want = [part.numpy() for part in call(**inputs)]
    feeds = {name: tensor.numpy() for name, tensor in inputs.items()}
    whole = session.run(None, feeds)
    for got, expected in zip(whole, want, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)
    state, outputs, start = feeds["state"], list[np.ndarray](), 0
    for size in PARTS:
        part = {name: feeds[name] if name in FIXED else feeds[name][:, start : start + size] for name in inputs}
        output, state = session.run(None, part | {"state": state})
        outputs.append(output)
        start += size
    np.testing.assert_array_equal(np.concatenate(outputs, axis=1), whole[0])
    np.testing.assert_array_equal(state, whole[1])
