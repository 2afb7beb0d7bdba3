"""Angles for GroupQueryAttention and RotaryEmbedding: tables over the whole context, or values that the graph computes once."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.signature import POSITION_OFFSETS

from ..graph.linear import add_constant, shared_constant
from .origins import Origin
from .probing import Array, Piece, asked_by, plain_text
from .rotary import FEW, Rotation, agrees, close, independent_of_length, make_tables, read_angles
from .rotary_formula import add_tables, find_formula

MULTIPLE = 16
"""GroupQueryAttention rotates a multiple of this many channels per head, in heads whose size is a multiple of it too."""
LARGEST_TABLES = 256 << 20
"""Tables with more bytes of cosines and sines are computed in every run instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Cosines and sines of every position: initializers, or nodes that compute them when the graph is opened."""

    cos: ir.Value
    sin: ir.Value
    arrays: tuple[Array, Array]
    """Cosines and sines that the model multiplies with, without padding."""
    order: npt.NDArray[np.int64]
    """The order of a head's channels in which the rotating ones fill a multiple of 16; queries and keys are reordered alike, which
    does not change their products."""


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """Cosines and sines that the graph computes."""

    cos: ir.Value
    sin: ir.Value
    arrays: tuple[Array, Array]
    """Their values at the first positions."""


def filled_order(rotation: Rotation, head_size: int) -> npt.NDArray[np.int64] | None:
    """The order of a head's channels in which the rotating pairs, padded with fixed ones, make up a multiple of 16.

    >>> filled_order(Rotation(8, interleaved=False), 16).tolist()
    [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    """
    filled = -(-rotation.size // MULTIPLE) * MULTIPLE
    if filled > head_size or head_size % MULTIPLE:
        return None
    if rotation.interleaved or filled == rotation.size:
        return np.arange(head_size)
    half, spare = rotation.size // 2, (filled - rotation.size) // 2
    first, second = np.arange(half), np.arange(half, 2 * half)
    still = np.arange(rotation.size, head_size)
    return np.concatenate([first, still[:spare], second, still[spare : 2 * spare], still[2 * spare :]])


@dataclasses.dataclass(slots=True)
class Angles:
    """Cosines and sines by which the layers of a graph rotate, shared between layers."""

    graph: ir.Graph
    context_length: int
    tables: dict[tuple[object, ...], Table | None] = dataclasses.field(default_factory=dict)
    values: dict[tuple[object, ...], Computed | None] = dataclasses.field(default_factory=dict)

    @property
    def has_offsets(self) -> bool:
        """Whether positions may differ from places in the text, as those of pictures do."""
        return any(value.name == POSITION_OFFSETS for value in self.graph.inputs)

    def table_for(self, origins: list[Origin], head_size: int) -> Table | None:
        """The table by which all these inputs rotate, if their angles depend on the position alone."""
        key = key_of(origins[0])
        if key not in self.tables:
            self.tables[key] = self.make_table(origins[0], head_size)
        table = self.tables[key]
        return table if table is not None and all_rotate_by(table.arrays, origins, head_size) else None

    def make_table(self, origin: Origin, head_size: int) -> Table | None:
        """Tabulate the angles; equal tables are stored once."""
        rotation = origin.rotation
        order = filled_order(rotation, head_size) if rotation is not None else None
        if rotation is None or order is None or self.has_offsets or self.context_length * rotation.size * 4 > LARGEST_TABLES:
            return None
        try:
            constant = independent_of_length(self.graph, origin.angles, self.context_length)
            arrays = make_tables(origin.move, origin.columns, rotation, head_size, self.context_length) if constant else None
        except ValueError:  # angles that need more than positions
            return None
        if arrays is None:
            return None
        for other in self.tables.values():
            if other is not None and all(np.array_equal(a, b) for a, b in zip(arrays, other.arrays, strict=True)):
                return dataclasses.replace(other, order=order)
        spare = -rotation.size % MULTIPLE // 2
        formula = find_formula(*arrays)
        if formula is not None:
            return Table(*add_tables(self.graph, formula, len(arrays[0]), spare), arrays, order)
        return Table(*self.store_tables(arrays, spare), arrays, order)

    def store_tables(self, arrays: tuple[Array, Array], spare: int) -> tuple[ir.Value, ir.Value]:
        """The tables as initializers; a spare pair does not rotate."""
        kinds = zip(("rotary.cos", "rotary.sin"), arrays, (1, 0), strict=True)
        padded = {name: np.pad(array, ((0, 0), (0, spare)), constant_values=still) for name, array, still in kinds}
        cos, sin = (add_constant(self.graph, name, ir.tensor(array)) for name, array in padded.items())
        return cos, sin

    def values_for(self, origins: list[Origin], head_size: int) -> tuple[ir.Value, ir.Value] | None:
        """Cosines and sines [batch, new, size / 2] in the graph, for angles that cannot be tabulated."""
        key = key_of(origins[0])
        if key not in self.values:
            self.values[key] = self.find_values(origins[0], head_size)
        found = self.values[key]
        return (found.cos, found.sin) if found is not None and all_rotate_by(found.arrays, origins, head_size) else None

    def find_values(self, origin: Origin, head_size: int) -> Computed | None:
        """Find cosine and sine among the values that the rotation reads, by comparing numbers."""
        if origin.rotation is None or len(origin.angles) != 2:
            return None
        start, new = 4, 3
        feeds = plain_text(2, new, np.ones((2, start + new), np.int64))
        try:
            found = Piece(self.graph, asked_by(self.graph), origin.angles).run(feeds)
        except ValueError:  # angles that need more than positions
            return None
        for value, array in zip(origin.angles, found, strict=True):
            if value.shape is None:  # the library's fusions leave it unset
                value.shape = ir.Shape([None, *array.shape[1:-2], None, array.shape[-1]])
                value.type = ir.TensorType(ir.DataType.FLOAT)
        wanted = read_angles(origin.move, origin.columns, origin.rotation, head_size, range(start, start + new))
        picked = []
        for want in wanted:
            steps = [(value, step) for value, array in zip(origin.angles, found, strict=True) if (step := step_to(array, want))]
            if not steps:
                return None
            picked.append(self.cut(*steps[0], origin.rotation.size // 2))
        arrays = read_angles(origin.move, origin.columns, origin.rotation, head_size, range(FEW))
        return Computed(picked[0], picked[1], arrays)

    def cut(self, value: ir.Value, step: int, count: int) -> ir.Value:
        """[batch, 1 (optional), new, width] -> [batch, new, count]: the first numbers, or every second."""
        nodes: list[ir.Node] = []
        producer, rank = value.producer(), len(value.shape or ())
        assert producer is not None, "constants are no angles"
        if rank == 4 and producer.op_type == "Unsqueeze" and producer.inputs[0] is not None:
            value = producer.inputs[0]
        elif rank == 4:
            nodes.append(ir.node("Squeeze", [value, shared_constant(self.graph, "axes.1", np.array([1], np.int64))]))
        if value.shape is None or value.shape[-1] != count:
            bounds = {"starts.0": 0, f"ends.{step * count}": step * count, "axes.last": -1, f"steps.{step}": step}
            constants = [shared_constant(self.graph, name, np.array([number], np.int64)) for name, number in bounds.items()]
            nodes.append(ir.node("Slice", [nodes[-1].outputs[0] if nodes else value, *constants]))
        if not nodes:
            return value
        self.graph.insert_after(producer, nodes)
        out = nodes[-1].outputs[0]
        out.type = ir.TensorType(ir.DataType.FLOAT)
        return out


def key_of(origin: Origin) -> tuple[object, ...]:
    """Inputs with equal keys rotate alike."""
    return (origin.rotation, *(value.name for value in origin.angles))


def step_to(array: Array, want: Array) -> int:
    """1 if the first numbers of [batch, 1 (optional), new, width] are `want` [new, count], 2 if every second one is, else 0."""
    if array.ndim not in {3, 4} or (array.ndim == 4 and array.shape[1] != 1) or array.shape[0] != 2:
        return 0
    rows, count = array.reshape(2, -1, array.shape[-1]), want.shape[1]
    for step in (1, 2):
        cut = rows[:, :, : step * count : step]
        if cut.shape == (2, *want.shape) and all(close(row, want) for row in cut):
            return step
    return 0


def all_rotate_by(arrays: tuple[Array, Array], origins: list[Origin], head_size: int) -> bool:
    """Return whether all inputs of one key are rotated and scaled by these tables; the key does not determine the scale."""
    return all(
        key_of(one) == key_of(origins[0])
        and one.rotation is not None
        and agrees(one.move, one.columns, one.rotation, head_size, arrays)
        for one in origins
    )
