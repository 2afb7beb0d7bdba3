"""Writes a graph and its weights, one tensor at a time in the order of the graph, so that memory holds at most one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from onnx_textgen.package.manifest import GRAPH, WEIGHTS

from ..passes.quantization.layouts import SameBytes

SMALLEST_OUTSIDE = 1024
"""Tensors of at least this many bytes go to the weights' file; smaller ones stay in the graph, where shape inference sees them."""
ALIGNMENT = 64
"""Bytes; suits SIMD loads."""


def goes_outside(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The weights that are written to the external file, in the order of the graph."""
    inputs = set(model.graph.inputs)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None, "an initializer has a value"
        if value not in inputs and tensor.nbytes >= SMALLEST_OUTSIDE:
            yield value, tensor


def weights_bytes(model: ir.Model) -> int:
    """Bytes that `model.onnx.data` will have; reads no weight."""
    end = 0
    for _, tensor in goes_outside(model):
        if not isinstance(tensor, SameBytes):
            end += -end % ALIGNMENT + tensor.nbytes
    return end


def write_graph(model: ir.Model, folder: Path) -> None:
    """Write `model.onnx` and `model.onnx.data` to `folder`; afterwards the model's large weights refer to the file."""
    with (folder / WEIGHTS).open("wb") as file:
        for value, tensor in goes_outside(model):
            if isinstance(tensor, SameBytes):
                written = tensor.source.const_value
                assert isinstance(written, ir.ExternalTensor), "it comes first in the graph"
                offset, length = written.offset, written.length
            else:
                offset = file.tell() + -file.tell() % ALIGNMENT
                file.write(bytes(offset - file.tell()))
                write_tensor(tensor, file)
                length = file.tell() - offset
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.ExternalTensor(
                WEIGHTS, offset, length, tensor.dtype, shape=shape, name=value.name or "", base_dir=folder
            )
    ir.save(model, folder / GRAPH)


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    """Append a tensor's bytes, without a copy if the tensor supports that."""
    if (write := getattr(tensor, "tofile", None)) is not None:
        write(file)
    else:
        file.write(tensor.tobytes())
    file.flush()  # some tensors write past Python's buffer
