"""One Gather for the chosen positions."""

import numpy as np
import onnx_ir as ir

from onnx_textgen_export.passes.positions import gather_positions
from support.small_graphs import Small, check_pass, tokens

FEEDS = {"x": tokens(4, new=5), "positions": np.array([-1, 2])}


def chosen(perm: list[int], *, expanded: bool = False, rows: int = 0) -> ir.Model:
    small = Small()
    x, positions = small.input("x", ["batch", "new", 4]), small.input("positions", ["count"], ir.DataType.INT64)
    if expanded:
        positions = small.op("Expand", positions, small.op("Shape", small.op("Max", positions), start=0))
    if rows:
        positions = small.op("Expand", positions, small.constant("rows", [rows], int))
    places = small.op("Unsqueeze", positions, small.constant("last", [-1], int))
    gathered = small.op("GatherND", small.op("Transpose", x, perm=perm), places)
    return small.finish(small.op("Transpose", gathered, perm=[1, 0, 2]))


def test_four_nodes_become_one_gather() -> None:
    assert check_pass(chosen([1, 0, 2]), gather_positions, FEEDS) == ["Gather"]


def test_an_expansion_to_the_same_shape_goes_too() -> None:
    assert check_pass(chosen([1, 0, 2], expanded=True), gather_positions, FEEDS) == ["Gather"]


def test_an_expansion_that_repeats_stays() -> None:
    left = check_pass(chosen([1, 0, 2], rows=3), gather_positions, FEEDS | {"positions": np.array([2])})
    assert left == ["Expand", "Gather"]


def test_other_axes_are_left_alone() -> None:
    assert "GatherND" in check_pass(chosen([2, 0, 1]), gather_positions, FEEDS | {"positions": np.array([-1, 2])})
