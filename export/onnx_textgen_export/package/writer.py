"""Writes a graph and its weights, one tensor at a time in the order of the graph, so that memory holds at most one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from ..passes.graph.encoder_decoder import split_encoder_decoder
from ..passes.quantization.layouts import SameBytes

SMALLEST_OUTSIDE = 1024
"""Tensors of at least this many bytes go to the weights' file; smaller ones stay in the graph, where shape inference sees them."""
ALIGNMENT = 64
"""Bytes; suits SIMD loads."""
LARGEST_FILE = 2_000_000_000
"""Bytes; browsers hold a file in one array, and the largest of some is 2 GiB."""


def goes_outside(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The weights that are written to the external file, in the order of the graph."""
    inputs = set(model.graph.inputs)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None, "an initializer has a value"
        if value not in inputs and tensor.nbytes >= SMALLEST_OUTSIDE:
            yield value, tensor


def weights_bytes(model: ir.Model) -> int:
    """Bytes that the files of weights will have together; reads no weight."""
    end = 0
    for _, tensor in goes_outside(model):
        if not isinstance(tensor, SameBytes):
            end += -end % ALIGNMENT + tensor.nbytes
    return end


class WeightsFiles:
    """The files of a package's weights: the first has the given name, and each further one its number at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.count = folder, name, 0
        self.file = self.next_file()

    def next_file(self) -> BinaryIO:
        """Begin the next file."""
        self.location = f"{self.name}_{self.count}" if self.count else self.name
        self.count += 1
        return (self.folder / self.location).open("wb")

    def close(self) -> None:
        """Close the last file."""
        self.file.close()

    def append(self, tensor: ir.TensorProtocol) -> tuple[str, int, int]:
        """Append a tensor, aligned; returns the name of its file, and where in it the bytes begin and how many they are."""
        if self.file.tell() and self.file.tell() + ALIGNMENT + tensor.nbytes > LARGEST_FILE:
            self.file.close()
            self.file = self.next_file()
        offset = self.file.tell() + -self.file.tell() % ALIGNMENT
        self.file.write(bytes(offset - self.file.tell()))
        write_tensor(tensor, self.file)
        return self.location, offset, self.file.tell() - offset


def write_graph(model: ir.Model, folder: Path, *, weights: str) -> None:
    """Write `model.onnx` to `folder`, and its weights to the file of this name, such as `onnx/model.onnx_data`.

    The encoder of an encoder-decoder becomes a second graph over the same weights.
    """
    write_weights(model, folder, weights)
    for name, graph in split_encoder_decoder(model).items():
        ir.save(graph, folder / name)


def write_weights(model: ir.Model, folder: Path, weights: str) -> None:
    """Write a model's large weights to the file of this name, to which they then refer.

    Beyond `LARGEST_FILE` bytes they continue in `onnx/model.onnx_data_1`.
    """
    (folder / weights).parent.mkdir(exist_ok=True)
    with contextlib.closing(WeightsFiles(folder, weights)) as files:
        for value, tensor in goes_outside(model):
            if isinstance(tensor, SameBytes):
                written = tensor.source.const_value
                assert isinstance(written, ir.ExternalTensor), "it comes first in the graph"
                location, offset, length = str(written.location), written.offset, written.length
            else:
                location, offset, length = files.append(tensor)
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.ExternalTensor(
                location, offset, length, tensor.dtype, shape=shape, name=value.name or "", base_dir=folder
            )


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    """Append a tensor's bytes, without a copy if the tensor supports that."""
    if isinstance(tensor, ir.LazyTensor) and tensor.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        np.ascontiguousarray(tensor.numpy()).tofile(file)  # `tofile` alone writes a transposed matrix number by number
    elif (write := getattr(tensor, "tofile", None)) is not None:
        write(file)
    else:
        file.write(tensor.tobytes())
    file.flush()  # some tensors write past Python's buffer
