"""Trace a `Source` into an ONNX model whose inputs and outputs carry the names other engines read.

Inputs: `input_ids` and `attention_mask`, `logits_positions` (optional, default [-1]: only the last position's logits are
computed), `past_key_values.{i}.key|value`. Outputs: `logits`, `present.{i}.key|value`, and `hidden_states` on request.
The model is float32; `passes` quantises it and changes it otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import warnings
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnx_textgen.backends.signature import HIDDEN_STATES
from onnx_textgen.errors import first_line
from onnx_textgen.package.manifest import Target

from ..errors import ExportError, innermost
from ..huggingface.experts import experts_for
from ..passes.graph.provenance import Parameter, Piece, made_of
from ..passes.order import Settings, run_passes
from ..sources.output_layer import only_these_positions
from ..sources.source import Source
from ..weights.streamed import UNMATERIALIZED_FROM, OwnWeights, Weights

OPSET = 23


EXAMPLE_LENGTHS = {"batch": 2, "length": 16}


def example_pasts(source: Source) -> list[Tensor]:
    """Zeros in the shapes of the cache."""
    return [
        torch.zeros([EXAMPLE_LENGTHS[size] if isinstance(size, str) else size for size in tensor.shape]) for tensor in source.cache
    ]


def dynamic_dimensions(source: Source) -> list[dict[int, object]]:
    """Which dimensions of the pasts vary."""
    return [
        {index: torch.export.Dim.DYNAMIC for index, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in source.cache
    ]


class FlatDecoder(nn.Module):
    """A source over flat tensors: (input_ids [batch, new], attention_mask [batch, past + new], logits_positions [k], pasts)."""

    def __init__(self, source: Source, target: Target, *, hidden_states: bool = False) -> None:
        super().__init__()
        self.module = source.module  # registers the weights
        self.source, self.target, self.hidden_states = source, target, hidden_states

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, logits_positions: Tensor, pasts: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits [batch, k, vocabulary] at the given positions, presents in the order of the pasts, hidden states on request."""
        with only_these_positions(self.source.head, logits_positions) as taken, experts_for(self.target):
            logits, presents = self.source.call(self.target, input_ids, attention_mask, pasts)
        if self.source.head is None:
            logits = logits[:, logits_positions]
        return logits, presents, taken if self.hidden_states else []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what the tracer prints and logs; its errors are still raised."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def explain(error: BaseException) -> str:
    """Why the tracer failed, in one line."""
    line = first_line(innermost(error))
    if "data-dependent" in line:
        return f"its code branches on computed values (a loop over experts?), which a graph cannot reproduce ({line:.120})"
    return line


def trace(source: Source, target: Target, weights: Weights | None = None, *, hidden_states: bool = False) -> ir.Model:
    """The source as an ONNX model whose large weights are read from `weights` (default: the module's own) on demand.

    With `hidden_states` it has a further output of that name: the input of the output layer. Raises `ExportError` naming what
    could not be traced.
    """
    if hidden_states and source.head is None:
        name = type(source.module).__name__
        raise ExportError(
            f"{name} has no layer whose output is the logits, so it has no hidden states to return; leave out --hidden-states"
        )
    geometry = source.geometry
    new = 1 if source.one_token else 7
    dynamic = torch.export.Dim.DYNAMIC
    example = (
        torch.arange(2 * new).reshape(2, new) % geometry.vocab_size,
        torch.ones(2, EXAMPLE_LENGTHS["length"] + new, dtype=torch.int64),
        torch.tensor([new - 1] if source.one_token else [5, 6]),
        example_pasts(source),
    )
    ids = {0: dynamic} if source.one_token else {0: dynamic, 1: dynamic}
    positions = {} if source.one_token else {0: dynamic}
    shapes = (ids, {0: dynamic, 1: dynamic}, positions, dynamic_dimensions(source))
    try:
        with quiet(), torch.no_grad():
            exported = torch.export.export(
                FlatDecoder(source, target, hidden_states=hidden_states), example, dynamic_shapes=shapes, strict=False
            )
            check_ranges(exported, source)
            program = torch.onnx.export(
                exported,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=["input_ids", "attention_mask", "logits_positions", *(tensor.name for tensor in source.cache)],
                output_names=["logits", *(tensor.present for tensor in source.cache), *([HIDDEN_STATES] if hidden_states else [])],
                optimize=False,  # it would compute with unmaterialized parameters
                verbose=False,
            )
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(source.module).__name__} cannot be traced: {explain(error)}") from error
    if program is None:
        raise ExportError(f"{type(source.module).__name__} cannot be traced: the tracer returned nothing")
    model = program.model
    attach_weights(model, source.module, weights or OwnWeights(source.module))
    run_passes("trace", model, Settings(target))
    finish_interface(model, source, target)
    return model


def attach_weights(model: ir.Model, module: nn.Module, weights: Weights) -> None:
    """Make each parameter in the graph a tensor that is read from `weights` on demand."""
    names = {f"module.{name}": name for name, _ in module.named_parameters(remove_duplicate=False)}
    for value in model.graph.initializers.values():
        name, tensor = names.get(str(value.name)), value.const_value
        if name is None or tensor is None:
            continue
        if tensor.size >= UNMATERIALIZED_FROM:
            read = functools.partial(read_weight, weights, name)
            tensor = ir.LazyTensor(read, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name)
            value.const_value = tensor
        if len(tensor.shape) > 1:
            made_of(tensor, [Parameter(name)], pieces=[Piece(name, None)] if len(tensor.shape) == 2 else ())


def read_weight(weights: Weights, name: str) -> ir.TensorProtocol:
    """A parameter as a tensor of the graph."""
    return ir.tensor(weights.load(name).contiguous().numpy(), name=name)


def check_ranges(exported: torch.export.ExportedProgram, source: Source) -> None:
    """Raise `ExportError` for a trace that is valid only for short texts or few rows, because the model branched on a size."""
    rows, new, total, past = (smallest_bound(exported, sizes) for sizes in named_sizes(exported, source))
    name, context = type(source.module).__name__, source.geometry.context_length
    longest = min(total, past + 2 if past == new else min(past, new))  # a bound on their sum limits both: each is at least 2
    if longest < context:
        raise ExportError(
            f"{name} computes differently above {longest} tokens, which one graph cannot do; "
            f"add --context-length {longest} (in Python: context_length={longest}), or write the two cases as one"
        )
    if rows < context:
        raise ExportError(
            f"{name} computes differently for more than {rows} texts at once, which one graph cannot do; write the two cases as one"
        )


def named_sizes(exported: torch.export.ExportedProgram, source: Source) -> tuple[list[object], ...]:
    """The sizes of the traced inputs: rows, new tokens, all tokens, and the cached length of each layer."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    ids, mask, _, *pasts = (values[name].shape for name in exported.graph_signature.user_inputs)
    rows = [shape[0] for shape in (ids, mask, *pasts)]
    lengths = [
        size for tensor, shape in zip(source.cache, pasts, strict=True) for what, size in zip(tensor.shape, shape, strict=True)
        if what == "length"
    ]  # fmt: skip
    return rows, [ids[1]], [mask[1]], lengths


def smallest_bound(exported: torch.export.ExportedProgram, sizes: list[object]) -> float:
    """The smallest upper bound on any of the sizes; infinite if none has a bound."""
    allowed = {str(symbol): str(bounds.upper) for symbol, bounds in exported.range_constraints.items()}
    bounds = [allowed.get(str(size), "") for size in sizes]
    return min((int(bound) for bound in bounds if bound.isdigit()), default=math.inf)  # the others are called int_oo


def finish_interface(model: ir.Model, source: Source, target: Target) -> None:
    """Name the dimensions, make `logits_positions` optional, and drop inputs that the graph does not read."""
    graph, geometry = model.graph, source.geometry
    shared = target == "ort" and any(node.op_type == "GroupQueryAttention" for node in graph)
    past, present = ("cache_length", "cache_length") if shared else ("past_length", "total_length")
    shapes: dict[str, list[int | str]] = {
        "input_ids": ["batch", 1 if source.one_token else "new"],
        "attention_mask": ["batch", "total_length"],
        "logits_positions": ["positions"],
        "logits": ["batch", "positions", geometry.vocab_size],
    }
    for tensor in source.cache:
        shapes[tensor.name] = [past if size == "length" else size for size in tensor.shape]
        shapes[tensor.present] = [present if size == "length" else size for size in tensor.shape]
    if len(graph.outputs) > 1 + len(source.cache):
        width = graph.outputs[-1].shape[-1] if graph.outputs[-1].shape is not None else None
        shapes[HIDDEN_STATES] = ["batch", "positions", width if isinstance(width, int) else "width"]
    names = ("logits", *(tensor.present for tensor in source.cache), HIDDEN_STATES)
    for value, name in zip(graph.outputs, names, strict=False):
        value.name = name  # a tensor that is returned twice has a copy with another name
    for value in (*graph.inputs, *graph.outputs):
        value.shape = ir.Shape(shapes[str(value.name)])
    for value in list(graph.inputs):
        if value.name == "attention_mask" and not value.uses():
            graph.inputs.remove(value)
        if value.name == "logits_positions":
            value.const_value = ir.tensor(np.array([-1], dtype=np.int64), name="logits_positions")
            graph.register_initializer(value)
    model.producer_name = "onnx-textgen"
    if source.rotary_switch is not None:
        model.metadata_props["rotary_switch"] = str(source.rotary_switch)
    model.graph.name = "decoder"
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
        node.doc_string = None
    for value in graph.initializers.values():
        value.metadata_props.clear()


def weights_of(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """The graph's weights by name, without the defaults of optional inputs."""
    inputs = set(model.graph.inputs)
    for name, value in model.graph.initializers.items():
        if value not in inputs:
            yield name, value
