"""Where the inputs of an attention operator come from: the value from which they differ only by moves and rotations."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import onnx_ir as ir

from ..graph.linear import find_linear, is_constant
from ..graph.provenance import Columns
from .rotary import Movement, Rotation, find_columns, find_rotation, only_moves

MOVING = frozenset({"Reshape", "Transpose", "Slice", "Split", "Squeeze", "Unsqueeze", "Identity", "Concat", "Expand"})
ROTATING = frozenset({"Mul", "Add", "Sub", "Neg", "RotaryEmbedding"})


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where an attention input comes from."""

    root: ir.Value
    columns: Columns
    """For each column of the input, its column in the root."""
    rotation: Rotation | None
    angles: tuple[ir.Value, ...]
    """Values other than the root that the rotation reads."""
    move: Movement

    @property
    def stays(self) -> bool:
        """Whether every column stays in its place."""
        return np.array_equal(self.columns, np.arange(self.move.width))


def find_origin(
    graph: ir.Graph, value: ir.Value, head_size: int, tokens: set[ir.Value], order: dict[ir.Node, int]
) -> Origin | None:
    """The earliest value from which an attention input differs only by moves and rotations."""
    for root, angles in reversed(roots_of(value, tokens, order)):
        with contextlib.suppress(ValueError):  # nodes that cannot run separately
            if (found := understood(Movement(graph, root, value), root, angles, head_size)) is not None:
                return found
    return None


def understood(move: Movement, root: ir.Value, angles: tuple[ir.Value, ...], head_size: int) -> Origin | None:
    """The origin of an attention input, if the nodes after its root only move columns and rotate pairs of them."""
    columns = find_columns(move)
    if columns is None:
        return None
    if only_moves(move, columns):
        return Origin(root, columns, None, (), move)
    rotation = find_rotation(move, columns, head_size) if angles else None
    return Origin(root, columns, rotation, angles, move) if rotation is not None else None


def roots_of(value: ir.Value, tokens: set[ir.Value], order: dict[ir.Node, int]) -> list[tuple[ir.Value, tuple[ir.Value, ...]]]:
    """Values through which all of `value` that depends on the tokens passes, nearest first, with the angles read after them."""
    angles: dict[ir.Value, None] = {}
    found: list[tuple[ir.Value, tuple[ir.Value, ...]]] = [(value, ())]
    frontier = {value}
    while not (len(frontier) == 1 and find_linear(next(iter(frontier)))):
        producers = [one.producer() for one in frontier]
        nodes = [node for node in producers if node is not None]
        node = max(nodes, key=order.__getitem__) if len(nodes) == len(producers) else None
        if node is None or node.domain or node.op_type not in MOVING | ROTATING:
            break
        before = {one for one in node.inputs if one is not None and one in tokens}
        if node.op_type in ROTATING:
            angles.update(dict.fromkeys(v for v in node.inputs if v is not None and v not in tokens and not is_constant(v)))
        frontier = frontier.difference(node.outputs) | before
        if len(frontier) == 1:
            found.append((next(iter(frontier)), tuple(sorted(angles, key=lambda v: v.name or ""))))
    return found
