"""Numbers that follow the grid of a picture: seen for pictures of several sizes, and written as a formula of height and width.

A processor makes such numbers (counts of patches, shapes), and the code of a vision part reads them out of tensors. A graph
computes them from the sizes of its input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ExportError

Grid = tuple[int, int]
"""Tokens of a picture down and across."""
Whole = Any
"""A whole number, or a symbol of the tracer for one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Formula:
    """A whole number c0 + c1 height + c2 width + c3 height width."""

    factors: tuple[int, int, int, int]

    def __call__(self, height: Whole, width: Whole) -> Whole:
        """The number of a grid.

        >>> Formula((0, 0, 2, 4))(3, 5)
        70
        """
        constant, down, across, both = self.factors
        terms = [factor * size for factor, size in ((down, height), (across, width)) if factor]
        terms += [both * (height * width)] if both else []
        terms += [constant] if constant or not terms else []
        return sum(terms[1:], start=terms[0])


def formula_of(numbers: Sequence[int], grids: Sequence[Grid]) -> Formula:
    """The formula of a number seen for each of these grids; raises `ExportError` if there is none.

    >>> formula_of([12, 20, 30, 56, 40], [(2, 3), (4, 2), (3, 4), (4, 7), (5, 4)])
    Traceback (most recent call last):
        ...
    onnx_textgen_export.errors.ExportError: a number of its code does not follow the size of a picture in a way that is known
    >>> formula_of([13, 17, 25, 57, 41], [(2, 3), (4, 2), (3, 4), (4, 7), (5, 4)])
    Formula(factors=(1, 0, 0, 2))
    """
    if len(set(numbers)) == 1:
        return Formula((int(numbers[0]), 0, 0, 0))
    table = np.array([[1, height, width, height * width] for height, width in grids], np.float64)
    found, _, rank, _ = np.linalg.lstsq(table, np.array(numbers, np.float64))
    factors = tuple(round(each) for each in found)
    formula = Formula((factors[0], factors[1], factors[2], factors[3]))
    if rank < len(factors) or any(formula(*grid) != number for grid, number in zip(grids, numbers, strict=True)):
        raise ExportError("a number of its code does not follow the size of a picture in a way that is known")
    return formula


Made = Callable[[Whole, Whole], Any]


def made_of(values: Sequence[Any], grids: Sequence[Grid]) -> Made:
    """What makes a value (numbers, tensors, or lists of them) for any grid, from those seen; raises `ExportError`."""
    first = values[0]
    if isinstance(first, list | tuple):
        if any(len(each) != len(first) for each in values):
            raise ExportError("a list of its code is longer for larger pictures")
        parts = [made_of(each, grids) for each in zip(*values, strict=True)]
        kind = type(first) if type(first) in (list, tuple) else list
        return lambda height, width: kind(each(height, width) for each in parts)
    if isinstance(first, Tensor):
        return tensor_of(values, grids)
    if all(each == first for each in values):
        return lambda height, width: first
    if not isinstance(first, int) or isinstance(first, bool):
        raise ExportError("its code decides by the size of a picture")
    return formula_of(values, grids)


def tensor_of(values: Sequence[Tensor], grids: Sequence[Grid]) -> Made:
    """What makes a tensor of whole numbers for any grid."""
    first = values[0]
    if all(torch.equal(each, first) for each in values):
        return lambda height, width: first
    if first.is_floating_point() or any(each.shape != first.shape for each in values):
        raise ExportError("a tensor of its code depends on the size of a picture in a way that is not known")
    formulas = [formula_of(each, grids) for each in zip(*(value.flatten().tolist() for value in values), strict=True)]

    def make(height: Whole, width: Whole) -> Tensor:
        numbers = [torch.scalar_tensor(each(height, width), dtype=first.dtype) for each in formulas]
        return torch.stack(numbers).reshape(first.shape)

    return make


def grid_in(shape: Sequence[int | str], sizes: Sequence[Whole]) -> tuple[Whole, Whole]:
    """Height and width of a grid, from the sizes of a tensor; `shape`: the same with names for these two dimensions.

    >>> grid_in(("grid_height", "grid_width", 48), (5, 9, 48))
    (5, 9)
    """
    height, width = (size for size, named in zip(sizes, shape, strict=True) if isinstance(named, str))
    return height, width


@dataclasses.dataclass(frozen=True, slots=True)
class GridForm:
    """How what a processor makes of a picture follows its grid."""

    split: tuple[int | str, ...]
    """The shape of the numbers in the graph, where height and width of the grid are dimensions, see `patch_steps.Layout`."""
    shape: tuple[Formula, ...]
    """The shape of the same numbers as the model takes them."""
    constants: dict[str, Made]
    """What else the model takes."""

    def as_split(self, pixels: Tensor, grid: Grid) -> Tensor:
        """Numbers as the model takes them, in the shape `split`."""
        sizes = iter(grid)
        return pixels.reshape([next(sizes) if isinstance(each, str) else each for each in self.split])
