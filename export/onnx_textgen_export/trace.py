"""Trace a `Source` into an ONNX model whose inputs and outputs carry the names other engines read.

Inputs: `input_ids` and `attention_mask`, `logits_positions` (optional, default [-1]: only the last position's logits are
computed), `past_key_values.{i}.key|value`. Outputs: `logits`, `present.{i}.key|value`. What comes out is fp32; quantisation and
other changes to the graph are `passes`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnx_textgen.artifact import Target
from onnx_textgen.errors import first_line

from .errors import ExportError
from .sources import Pasts, Source

OPSET = 23


def past_names(layers: int) -> list[str]:
    """`past_key_values.0.key`, `past_key_values.0.value`, `past_key_values.1.key` ..."""
    return [f"past_key_values.{index}.{part}" for index in range(layers) for part in ("key", "value")]


def present_names(layers: int) -> list[str]:
    """`present.0.key`, `present.0.value`, `present.1.key` ..."""
    return [f"present.{index}.{part}" for index in range(layers) for part in ("key", "value")]


class FlatDecoder(nn.Module):
    """A source behind flat tensors: (input_ids [batch, new], attention_mask [batch, past + new], logits_positions [k], pasts)."""

    def __init__(self, source: Source, target: Target) -> None:
        super().__init__()
        self.module = source.module  # registers the weights
        self.source, self.target = source, target

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, logits_positions: Tensor, pasts: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits [batch, k, vocabulary] at the asked positions, and the presents in the order of the pasts."""
        pairs: Pasts = list(zip(pasts[::2], pasts[1::2], strict=True))
        with only_these_positions(self.source.head, logits_positions):
            logits, presents = self.source.call(self.target, input_ids, attention_mask, pairs)
        if self.source.head is None:
            logits = logits[:, logits_positions]
        return logits, presents


@contextlib.contextmanager
def only_these_positions(head: nn.Module | None, positions: Tensor) -> Iterator[None]:
    """Give the output layer only some positions of its input, so that no logits are computed which nobody asked for."""
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda _, args: (args[0][:, positions], *args[1:]))
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the tracer's own chatter off the terminal; its errors are raised all the same."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def innermost(error: BaseException) -> BaseException:
    """The cause of the cause ... of an error: what the model's own code raised, under all that the tracer wraps it in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def trace(source: Source, target: Target) -> ir.Model:
    """The source as an ONNX model in memory; raises `ExportError` naming what could not be traced."""
    geometry = source.geometry
    names = past_names(geometry.layers)
    past = [torch.zeros(2, geometry.kv_heads, 16, geometry.head_size) for _ in names]
    dynamic = torch.export.Dim.DYNAMIC
    example = (
        torch.arange(14).reshape(2, 7) % geometry.vocab_size,
        torch.ones(2, 23, dtype=torch.int64),
        torch.tensor([5, 6]),
        past,
    )
    shapes = ({0: dynamic, 1: dynamic}, {0: dynamic, 1: dynamic}, {0: dynamic}, [{0: dynamic, 2: dynamic} for _ in names])
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                FlatDecoder(source, target),
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=["input_ids", "attention_mask", "logits_positions", *names],
                output_names=["logits", *present_names(geometry.layers)],
                verbose=False,
            )
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(source.module).__name__} cannot be traced: {first_line(innermost(error))}") from error
    if program is None:
        raise ExportError(f"{type(source.module).__name__} cannot be traced: the tracer returned nothing")
    check_ranges(program, source)
    model = program.model
    finish_interface(model, source, target)
    return model


def check_ranges(program: torch.onnx.ONNXProgram, source: Source) -> None:
    """Refuse a trace that holds for short texts only, because the model's code branched on a length."""
    exported = program.exported_program
    for allowed in exported.range_constraints.values() if exported is not None else ():
        if allowed.upper < source.geometry.context_length:
            raise ExportError(
                f"{type(source.module).__name__} takes another path above {allowed.upper} tokens, which one graph cannot follow; "
                f"export it with context_length={allowed.upper}, or write the two paths as one"
            )


def finish_interface(model: ir.Model, source: Source, target: Target) -> None:
    """Name the dimensions, make `logits_positions` optional, and drop inputs that the graph does not read."""
    graph, geometry = model.graph, source.geometry
    shared = target == "ort" and any(node.op_type == "GroupQueryAttention" for node in graph)
    past, present = ("cache_length", "cache_length") if shared else ("past_length", "total_length")
    shapes: dict[str, list[int | str]] = {
        "input_ids": ["batch", "new"],
        "attention_mask": ["batch", "total_length"],
        "logits_positions": ["positions"],
        "logits": ["batch", "positions", geometry.vocab_size],
    }
    shapes |= {name: ["batch", geometry.kv_heads, past, geometry.head_size] for name in past_names(geometry.layers)}
    shapes |= {name: ["batch", geometry.kv_heads, present, geometry.head_size] for name in present_names(geometry.layers)}
    for value in (*graph.inputs, *graph.outputs):
        value.shape = ir.Shape(shapes[str(value.name)])
    for value in list(graph.inputs):
        if value.name == "attention_mask" and not value.uses():
            graph.inputs.remove(value)
        if value.name == "logits_positions":
            value.const_value = ir.tensor(np.array([-1], dtype=np.int64), name="logits_positions")
            graph.register_initializer(value)
    model.producer_name = "onnx-textgen"
    model.graph.name = "decoder"
    for node in graph.all_nodes():
        node.metadata_props.clear()  # stack traces with the maker's paths
        node.doc_string = None
    for value in graph.initializers.values():
        value.metadata_props.clear()


def weights_of(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """The graph's weights by name, without the defaults of optional inputs."""
    inputs = set(model.graph.inputs)
    for name, value in model.graph.initializers.items():
        if value not in inputs:
            yield name, value
