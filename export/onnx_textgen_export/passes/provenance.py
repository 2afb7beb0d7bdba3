"""Which parameters of the module a stored matrix is made of, so that what is done to it can be done to them in PyTorch too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import onnx_ir as ir

KEY = "onnx_textgen.parameters"
AnyTensor = TypeVar("AnyTensor", bound=ir.TensorProtocol)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter within a matrix: its columns or rows lie there whole, in any order."""

    name: str
    """In the module."""
    turned: bool = False
    """The matrix holds its transpose."""


def made_of(tensor: AnyTensor, parameters: Iterable[Parameter], *, turned: bool = False) -> AnyTensor:
    """The tensor, with a note of what it is made of; `turned`: of their transposes."""
    tensor.meta[KEY] = tuple(Parameter(each.name, each.turned != turned) for each in parameters)
    return tensor


def parameters_of(tensor: ir.TensorProtocol | None) -> tuple[Parameter, ...]:
    """What a tensor is made of; nothing where that is not known."""
    found: tuple[Parameter, ...] = tensor.meta.get(KEY, ()) if tensor is not None else ()
    return found
