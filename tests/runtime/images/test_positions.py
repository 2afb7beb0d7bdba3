"""Positions on three axes: as Qwen2-VL's paper counts them, however a prompt is cut into runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen import Model
from onnx_textgen.errors import PackageError, TemplateError
from onnx_textgen.images.image_rows import ImageRows, ReadImage
from onnx_textgen.images.in_messages import placed
from onnx_textgen.images.positions import position_offsets
from onnx_textgen.package.manifest import ImageRecord, check_images

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


def test_all_rows_of_a_grid_take_the_place_of_its_token() -> None:
    about = ImageRecord("<image>", "<image>", 9, 6, has_grid=True, row_break_ids=(8,))
    images = [ReadImage(bytes([number]), np.zeros((6, 2), np.float32), (2, 3), (8,)) for number in range(2)]
    assert placed([1, 9, 2, 9], images, about) == [1, *images[0].ids, 2, *images[1].ids]
    for ids in ([1, 9], [9, 9, 9]):
        with pytest.raises(TemplateError, match="take it out"):
            placed(ids, images, about)


@pytest.mark.parametrize("wrong", [-5, 2**70])
def test_ids_between_lines_are_ids_of_the_vocabulary(wrong: int, digits: Model) -> None:
    assert digits.manifest.images is not None
    record = dataclasses.replace(digits.manifest.images, has_grid=True, row_break_ids=(wrong,))
    with pytest.raises(PackageError, match=r"images\.row_break_ids"):
        check_images(dataclasses.replace(digits.manifest, images=record))
