"""Ids of pictures: equal for equal pictures, different for others, and found again while anyone needs them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_textgen.cancellation import UNCANCELLED
from onnx_textgen.errors import PromptError
from onnx_textgen.images import image_rows
from onnx_textgen.images.image_rows import ImageRows, ReadImage, ids_of, without_images


def image(number: int, rows: int = 3) -> ReadImage:
    return ReadImage(bytes([number]), np.full((rows, 4), number, np.float32) + np.arange(rows, dtype=np.float32)[:, None] / 10)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), unique=True, min_size=2, max_size=5), st.integers(1, 600))
def test_ids_are_those_of_the_picture(digests: list[bytes], rows: int) -> None:
    every = [each for digest in digests for each in ids_of(digest, rows)]
    assert len(set(every)) == len(every)
    assert min(every) >= -(2**63) and max(every) < 0
    assert ids_of(digests[0], rows) == ids_of(digests[0], rows + 7)[:rows]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_a_run_gets_the_rows_that_its_ids_name(asked: list[tuple[bool, int, int]]) -> None:
    known, images = ImageRows(4), [image(number) for number in range(3)]
    for each in images:
        known.keep(each)
    ids = np.array([[images[one].ids[row] if is_row else 5 + row for is_row, one, row in asked]], np.int64)
    named, rows = known.taken(ids, UNCANCELLED)
    for place, (is_row, one, row) in enumerate(asked):
        if is_row:
            assert np.array_equal(rows[-1 - named[0, place]], images[one].rows()[row])
        else:
            assert named[0, place] == 5 + row


def test_pictures_stay_while_a_request_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows, "KEPT_IMAGES", 2)
    known, first = ImageRows(4), image(0)
    known.keep(first)
    ids = first.ids
    held = known.of([7, *ids, 8])
    del first
    for number in (1, 2, 3):
        known.keep(image(number))
    assert bytes([0]) not in known.kept
    assert known.of(ids) == held
    assert known.known(bytes([0])) is held[0]  # which keeps it again
    del held
    for number in (4, 5):
        known.keep(image(number))
    gc.collect()
    with pytest.raises(PromptError, match="give the picture again"):
        known.of(ids)


def test_large_pictures_leave_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows, "KEPT_BYTES", 2 * image(0).rows().nbytes)
    known = ImageRows(4)
    for number in range(4):
        known.keep(image(number))
    assert list(known.kept) == [bytes([2]), bytes([3])]


def test_text_without_pictures() -> None:
    assert without_images([3, -5, 4]) == [3, 4]
    given_ids = [3, 4]
    assert without_images(given_ids) is given_ids
