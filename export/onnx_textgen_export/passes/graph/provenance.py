"""Which parameters of the module a stored matrix is made of, so that its rounding can be applied to them in PyTorch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

KEY = "onnx_textgen.parameters"
PIECES = "onnx_textgen.pieces"
AnyTensor = TypeVar("AnyTensor", bound=ir.TensorProtocol)
Columns = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter within a matrix, which contains its complete columns or rows in any order."""

    name: str
    """Name in the module."""
    transposed: bool = False
    """The matrix contains its transpose."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Adjacent outputs of a matrix that come from one parameter."""

    name: str
    outputs: Columns | None
    """Which outputs of the parameter, in the order of the matrix; None: all, in their own order."""


def made_of(
    tensor: AnyTensor, parameters: Iterable[Parameter], *, transposed: bool = False, pieces: Iterable[Piece] = ()
) -> AnyTensor:
    """Record what a tensor is made of; `transposed`: of the parameters' transposes. `pieces`: the origin of each output."""
    tensor.meta[KEY] = tuple(Parameter(each.name, each.transposed != transposed) for each in parameters)
    tensor.meta[PIECES] = tuple(pieces)
    return tensor


def parameters_of(tensor: ir.TensorProtocol | None) -> tuple[Parameter, ...]:
    """The parameters that a tensor is made of; empty if unknown."""
    found: tuple[Parameter, ...] = tensor.meta.get(KEY, ()) if tensor is not None else ()
    return found


def pieces_of(tensor: ir.TensorProtocol | None) -> tuple[Piece, ...]:
    """The origins of a matrix's outputs, in their order; empty if unknown."""
    found: tuple[Piece, ...] = tensor.meta.get(PIECES, ()) if tensor is not None else ()
    return found


def chosen_pieces(pieces: tuple[Piece, ...], columns: Columns) -> list[Piece]:
    """The pieces of a matrix that consists of some outputs of another one, which is made of `pieces`.

    >>> [(each.name, each.outputs.tolist()) for each in chosen_pieces((Piece("up", None),), np.array([2, 0]))]
    [('up', [2, 0])]
    """
    if len(pieces) == 1 and pieces[0].outputs is None:
        return [Piece(pieces[0].name, columns)]
    known = [each.outputs for each in pieces if each.outputs is not None]
    owners = np.repeat(np.arange(len(known)), [len(outputs) for outputs in known])[columns]
    outputs = np.concatenate(known)[columns]
    starts = [0, *(np.flatnonzero(np.diff(owners)) + 1), len(columns)]
    return [Piece(pieces[int(owners[start])].name, outputs[start:end]) for start, end in itertools.pairwise(starts) if end > start]
