"""Tables of cosines and sines as a formula: a frequency for each pair of channels, and a common factor.

A table over a context of 131,072 tokens takes 34 MB, its frequencies 128 bytes. A runtime computes the table once, when it opens
the graph (constant folding), so the formula only makes the file smaller.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graph.linear import add_constant, free_name, shared_constant
from .probing import Array

Positions = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
NEIGHBOURS = 3
"""Floats to try on either side of an estimate, because the angles of far positions are rounded."""
LIKELY = 64
"""Last positions, by which the best of those is chosen."""
TOLERANCE = 5e-7
"""Difference between libraries in cosines and sines of the same angles."""


@dataclasses.dataclass(frozen=True, slots=True)
class Formula:
    """`factor * cos(position * frequency)`, and the sine alike, all in float32."""

    frequencies: Array
    """[pairs], radians per position."""
    factor: np.float32

    def tables(self, positions: Positions) -> tuple[Array, Array]:
        """Cosines and sines [positions, pairs]."""
        angles = positions.astype(np.float32)[:, None] * self.frequencies
        return self.factor * np.cos(angles), self.factor * np.sin(angles)


def find_formula(cos: Array, sin: Array) -> Formula | None:
    """The formula of tables [positions, pairs] that start at position 0; None if they follow none."""
    factor = cos[0, 0]
    if not factor > 0 or not np.isfinite(factor):
        return None
    likely = candidates(estimate(cos, sin))  # [candidates, pairs]
    last = np.arange(max(len(cos) - LIKELY, 0), len(cos))
    errors = [largest_error(Formula(each, factor), cos, sin, last) for each in likely]
    best = np.argmin(errors, axis=0)
    formula = Formula(likely[best, np.arange(len(best))], factor)
    exact = largest_error(formula, cos, sin, np.arange(len(cos))).max(initial=0.0) <= TOLERANCE * factor
    return formula if exact else None


def estimate(cos: Array, sin: Array) -> Doubles:
    """Frequencies in float64: from the angle at position 1, refined at each power of two."""
    found: Doubles = np.zeros(cos.shape[1])
    position = 1
    while position < len(cos):
        angle = np.arctan2(sin[position].astype(np.float64), cos[position].astype(np.float64))
        turns = np.rint((found * position - angle) / (2 * np.pi))
        found = (angle + 2 * np.pi * turns) / position
        position *= 2
    return found


def candidates(frequencies: Doubles) -> Array:
    """The nearest float32 numbers: [candidates, pairs]."""
    middle = frequencies.astype(np.float32)
    found = [middle]
    for direction in (-np.inf, np.inf):
        step = middle
        for _ in range(NEIGHBOURS):
            step = np.nextafter(step, np.float32(direction), dtype=np.float32)
            found.append(step)
    return np.stack(found)


def largest_error(formula: Formula, cos: Array, sin: Array, positions: Positions) -> Array:
    """Largest difference between a formula and the tables, by pair."""
    errors = np.zeros(cos.shape[1], np.float32)
    for some in np.array_split(positions, max(len(positions) // 4096, 1)):
        for mine, theirs in zip(formula.tables(some), (cos[some], sin[some]), strict=True):
            errors = np.maximum(errors, np.abs(mine - theirs).max(axis=0, initial=0.0))
    return errors


def add_tables(graph: ir.Graph, formula: Formula, length: int, spare: int) -> tuple[ir.Value, ir.Value]:
    """Nodes that compute cosines and sines [length, pairs + spare]; a spare pair does not rotate."""
    frequencies = np.pad(formula.frequencies, (0, spare)).astype(np.float32)
    ends = [shared_constant(graph, f"float.{number}", np.array(number, np.float32)) for number in (0, length, 1)]
    positions = ir.node("Range", ends)
    column = ir.node("Unsqueeze", [positions.outputs[0], shared_constant(graph, "axes.1", np.array([1], np.int64))])
    angles = ir.node("Mul", [column.outputs[0], add_constant(graph, "rotary.frequencies", ir.tensor(frequencies))])
    nodes, tables = [positions, column, angles], list[ir.Value]()
    for kind in ("Cos", "Sin"):
        nodes.append(ir.node(kind, [angles.outputs[0]]))
        if formula.factor != 1:
            factors = np.pad(np.full(len(formula.frequencies), formula.factor), (0, spare), constant_values=1).astype(np.float32)
            factor = add_constant(graph, "rotary.factor", ir.tensor(factors))
            nodes.append(ir.node("Mul", [nodes[-1].outputs[0], factor]))
        tables.append(nodes[-1].outputs[0])
    graph.insert_before(graph[0], nodes)
    for table, name in zip(tables, ("rotary.cos", "rotary.sin"), strict=True):
        table.name = free_name(graph, name)
        table.shape, table.type = ir.Shape([length, len(frequencies)]), ir.TensorType(ir.DataType.FLOAT)
    return tables[0], tables[1]
