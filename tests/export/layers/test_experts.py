"""Mixtures of experts: each form that they are traced in computes what transformers' own code does, in memory that tokens bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation

from onnx_textgen_export import export
from onnx_textgen_export.huggingface import probed_model  # noqa: F401  (tells transformers of the experts)
from onnx_textgen_export.layers.experts import EXPERTS, GATES, Gate, experts_for, find_gate, weights_tell_all
from onnx_textgen_export.passes.experts import SharedRead, lower_experts
from onnx_textgen_export.passes.quantization.options import DEFAULTS
from onnx_textgen_export.passes.quantization.stored_experts import qmoe_attributes
from onnx_textgen_export.proof import measures
from onnx_textgen_export.tracing.tracer import quiet
from support.costs import by_cost
from support.tiny_models import tiny_model

COUNT, CHOSEN, WIDTH, INNER = 5, 2, 24, 16


@dataclasses.dataclass
class Config:
    """What the interface reads."""

    _experts_implementation: str = "eager"


def make_layer(
    gate: Callable[[Tensor], Tensor] | None = None, *, has_gate: bool = True, bias: bool = False, transposed: bool = False
):
    """A layer of experts in transformers' manner, with random weights."""

    class Layer(nn.Module):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.num_experts = COUNT
            first = "gate_up_proj" if has_gate else "up_proj"
            for name, outputs, inputs in ((first, INNER * (2 if has_gate else 1), WIDTH), ("down_proj", WIDTH, INNER)):
                sizes = (inputs, outputs) if transposed else (outputs, inputs)
                setattr(self, name, nn.Parameter(torch.randn(COUNT, *sizes) * 0.3))
                if bias:
                    setattr(self, f"{name}_bias", nn.Parameter(torch.randn(COUNT, outputs)))
            self.act_fn = nn.functional.silu if has_gate else torch.relu

        def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
            raise AssertionError("the interface is asked, never this")

    if gate is not None:
        Layer._apply_gate = lambda self, pairs: gate(pairs)
    return use_experts_implementation(Layer, has_gate=has_gate, has_bias=bias, is_transposed=transposed)(Config()).eval()


def halves(formula: Callable[[Tensor, Tensor], Tensor], *, turns: bool = False) -> Callable[[Tensor], Tensor]:
    """A gate of two halves, or of pairs."""
    return lambda x: formula(x[..., ::2], x[..., 1::2]) if turns else formula(*x.chunk(2, dim=-1))


def clamped(gate: Tensor, up: Tensor) -> Tensor:
    """gpt-oss's, with a limit that random numbers reach."""
    gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


LAYERS = {
    "gated": make_layer,
    "gated, transposed, with biases": lambda: make_layer(bias=True, transposed=True),
    "clamped, in turns, transposed, with biases": lambda: make_layer(halves(clamped, turns=True), bias=True, transposed=True),
    "clamped, halves": lambda: make_layer(halves(clamped)),
    "another gate": lambda: make_layer(halves(lambda gate, up: nn.functional.gelu(gate) * up), bias=True),
    "no gate": lambda: make_layer(has_gate=False),
}


def routed(tokens: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, their experts (one of them chosen by nobody) and weights."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(COUNT - 1, generator=generator)[:CHOSEN] for _ in range(tokens)])
    return torch.randn(tokens, WIDTH, generator=generator), index, torch.rand(tokens, CHOSEN, generator=generator)


def run_as(layer: nn.Module, implementation: str, inputs: tuple[Tensor, ...]) -> Tensor:
    """The layer's output with an implementation of experts."""
    layer.config._experts_implementation = implementation
    with torch.no_grad():
        return layer(*inputs)


class Around(nn.Module):
    """A model of one layer, whose tokens lie in a buffer of the graph's own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return self.layer(hidden + 1, index, weights) - 1


def traced(layer: nn.Module, target: str) -> ir.Model:
    """The layer as a graph, lowered."""
    run_as(layer, EXPERTS, routed(4))  # as the trial of a path does
    inputs, tokens = routed(6), torch.export.Dim("tokens")
    with experts_for(target), quiet(), torch.no_grad():
        program = torch.export.export(Around(layer), inputs, dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}), strict=False)
        model = torch.onnx.export(program, (), dynamo=True, opset_version=23, optimize=False, verbose=False).model
    lower_experts(model)
    return model


def run_graph(model: ir.Model, inputs: tuple[Tensor, ...]) -> np.ndarray:
    """In ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return session.run(None, {each.name: value.numpy() for each, value in zip(session.get_inputs(), inputs, strict=True)})[0]


@pytest.mark.parametrize("target", by_cost(["ort"], ["standard"]))
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_computes_the_same_eagerly_in_transformers_form_and_as_a_graph(kind: str, target: str) -> None:
    torch.manual_seed(1)
    layer = LAYERS[kind]()
    model = traced(layer, target)
    operators = {node.op_type for node in model.graph}
    assert ("MoE" in operators) == (target == "ort" and kind not in ("another gate", "no gate"))
    assert target == "ort" or not any(node.domain for node in model.graph)
    for tokens in (1, 9):
        hidden, *routing = routed(tokens, seed=tokens)
        want = run_as(layer, "batched_mm", (hidden + 1, *routing))
        torch.testing.assert_close(run_as(layer, EXPERTS, (hidden + 1, *routing)), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(run_graph(model, (hidden, *routing)), want.numpy() - 1, rtol=1e-4, atol=1e-4)


def test_the_standard_form_runs_in_the_reference_evaluator() -> None:
    layer = LAYERS["gated"]()
    model, (hidden, *routing) = traced(layer, "standard"), routed(3)
    evaluator = ReferenceEvaluator(ir.to_proto(model))
    feeds = {name: value.numpy() for name, value in zip(evaluator.input_names, (hidden, *routing), strict=True)}
    want = run_as(layer, "batched_mm", (hidden + 1, *routing)) - 1
    np.testing.assert_allclose(evaluator.run(None, feeds)[0], want.numpy(), rtol=1e-4, atol=1e-4)


def test_no_tensor_of_tokens_times_weights_is_made() -> None:
    for target in ("ort", "standard"):
        model = traced(LAYERS["gated"](), target)
        weights = [value for value in model.graph.initializers.values() if value.name.startswith("layer")]
        assert not [node for node in model.graph if node.op_type.startswith("Gather") and node.inputs[0] in weights]


def test_gates_are_found_by_trying_them() -> None:
    assert find_gate(LAYERS["gated"]()) == Gate(1.0, 0.0, None, interleaved=False)
    assert find_gate(LAYERS["clamped, in turns, transposed, with biases"]()) == Gate(1.702, 1.0, 1.5, interleaved=True)
    assert find_gate(LAYERS["clamped, halves"]()) == Gate(1.702, 1.0, 1.5, interleaved=False)
    assert find_gate(LAYERS["another gate"]()) is None
    assert find_gate(make_layer(halves(lambda gate, up: up * torch.sigmoid(gate) * gate.abs()))) is None
    assert find_gate(make_layer(halves(lambda gate, up: nn.functional.silu(up) * gate))) is None, "the halves the other way round"


def test_routing_that_a_row_of_weights_does_not_tell_takes_the_other_form() -> None:
    assert weights_tell_all(torch.tensor([[0, 3]]), torch.tensor([[0.0, 2.0]]))
    assert not weights_tell_all(torch.tensor([[3, 3]]), torch.tensor([[0.5, 2.0]]))
    assert not weights_tell_all(torch.tensor([[0, 3]]), torch.tensor([[-0.5, 2.0]]))
    layer = LAYERS["gated"]()
    hidden, index, weights = routed(3)
    run_as(layer, EXPERTS, (hidden, index, -weights))
    assert GATES[layer] is None


def test_weights_of_zero_give_zero_and_no_nan() -> None:
    layer = LAYERS["gated"]()
    model, (hidden, index, weights) = traced(layer, "ort"), routed(3)
    weights[0], weights[1, 0] = 0, 0
    want = run_as(layer, "batched_mm", (hidden + 1, index, weights)) - 1
    np.testing.assert_allclose(run_graph(model, (hidden, index, weights)), want.numpy(), rtol=1e-4, atol=1e-5)


def test_a_stack_is_read_once_for_all_its_experts_and_then_forgotten() -> None:
    reads = []

    def load() -> ir.TensorProtocol:
        reads.append(1)
        return ir.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))

    shared = SharedRead(ir.LazyTensor(load, dtype=ir.DataType.FLOAT, shape=ir.Shape([3, 2])), 3)
    assert [shared.part(index).tolist() for index in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert (len(reads), shared.array) == (1, None)
    assert shared.part(0).tolist() == [0, 1]
    assert len(reads) == 2


def test_stored_experts_for_gpus_say_that_their_codes_are_in_the_order_of_the_file() -> None:
    """CUDA takes them for its own order otherwise (microsoft/onnxruntime#28749), and computes nonsense."""
    node = ir.node("MoE", [], {"k": 2}, domain="com.microsoft")
    for activations, wanted in (("fp16", 0), (None, None)):
        attributes = qmoe_attributes(node, dataclasses.replace(DEFAULTS["int4"], activations=activations))
        assert attributes.get("weights_prepacked") == wanted


@pytest.mark.slow
def test_experts_keep_one_width_where_other_layers_have_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime has no experts of two widths on the CPU; what is stored is proved with equal weights all the same."""
    monkeypatch.setitem(measures.TOLERANCES, "int4", measures.Tolerance(float("inf"), 0, float("inf")))  # the weights are random
    options = dataclasses.replace(DEFAULTS["int4"], sensitive_bits=8, head_bits=8)
    made = export(tiny_model("mixtral"), tmp_path / "out", precision="int4", quantization=options)
    assert {"QMoE"} <= {node.op_type for node in onnx.load(made.folder / "model.onnx", load_external_data=False).graph.node}
    assert made.manifest.certificate["same_weights"]
