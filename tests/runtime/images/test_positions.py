"""Positions on three axes: as Qwen2-VL's paper counts them, however a prompt is cut into runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.images.image_rows import ImageRows, ReadImage
from onnx_textgen.images.positions import position_offsets

SIDES = st.integers(1, 6)
PARTS = st.lists(st.one_of(st.integers(1, 5), st.tuples(SIDES, SIDES)), min_size=1, max_size=6)
"""Numbers of text tokens, and grids of pictures."""


def by_definition(parts: list[int | tuple[int, int]]) -> np.ndarray:
    """Each part begins after the largest position before it; a picture counts time, lines and columns from there."""
    found: list[np.ndarray] = []
    start = 0
    for part in parts:
        if isinstance(part, int):
            made = np.tile(np.arange(part), (3, 1))
        else:
            lines, columns = np.divmod(np.arange(part[0] * part[1]), part[1])
            made = np.stack([np.zeros_like(lines), lines, columns])
        found.append(start + made)
        start = int(found[-1].max()) + 1
    return np.concatenate(found, axis=1)


@given(PARTS, st.data())
def test_positions_are_those_of_the_definition_in_any_pieces(parts: list[int | tuple[int, int]], data: st.DataObject) -> None:
    known, ids, kept = ImageRows(2), list[int](), list[ReadImage]()
    for number, part in enumerate(parts):
        if isinstance(part, int):
            ids += [7] * part
            continue
        kept.append(ReadImage(bytes([number]), np.zeros((part[0] * part[1], 2), np.float32), part))
        known.keep(kept[-1])
        ids += kept[-1].ids
    wanted = by_definition(parts)
    cut = data.draw(st.integers(0, len(ids) - 1))
    found = [position_offsets(ids[:start], ids[start:end], known) for start, end in ((0, cut), (cut, len(ids)))]
    assert np.array_equal(np.concatenate(found, axis=1) + np.arange(len(ids)), wanted)


def test_between_lines_of_a_picture_are_the_ids_of_a_break() -> None:
    image = ReadImage(b"", np.zeros((6, 2), np.float32), (2, 3), (9, 8))
    assert [each for each in image.ids if each >= 0] == [9, 8] and len(image.ids) == 8 and image.ids[3:5] == (9, 8)
