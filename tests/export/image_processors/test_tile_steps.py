"""Pictures that are cut into tiles: rows and columns are transformers' for any size, and so are the pixels of each tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.got_ocr2 import image_processing_pil_got_ocr2
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from onnx_textgen_export.image_processors.matching import open_processor_graph, run_on
from onnx_textgen_export.image_processors.pixel_steps import Normalization
from onnx_textgen_export.image_processors.processors import Pixels, trial_pictures
from onnx_textgen_export.image_processors.tile_steps import LongestInTiles, NearestShape, TileSteps, tile_steps_of
from onnx_textgen_export.image_processors.tiling import tile_graph

SIDE, LONGEST, BICUBIC = 8, 26, 3
PLAIN = Normalization(1.0, (0.0,) * 3, (1.0,) * 3)
SHAPE = (3, SIDE, SIDE)
SIDES = st.integers(1, 400)


def opened(way: TileSteps) -> Any:
    return open_processor_graph(tile_graph(way, PLAIN, "pixels", SHAPE))


def grid_of(session: Any, height: int, width: int) -> tuple[int, int]:
    _, (rows, columns) = run_on(session, np.zeros((height, width, 3), np.uint8))
    return int(rows), int(columns)


@pytest.fixture(scope="module")
def nearest() -> Any:
    return opened(NearestShape(SIDE, 1, 12, BICUBIC))


@pytest.fixture(scope="module")
def longest() -> Any:
    return opened(LongestInTiles(LONGEST, SIDE, BICUBIC))


@given(SIDES, SIDES)
@settings(max_examples=200)
def test_the_nearest_shape_is_transformers(nearest: Any, height: int, width: int) -> None:
    columns, rows = image_processing_pil_got_ocr2.get_optimal_tiled_canvas((height, width), (SIDE, SIDE), 1, 12)
    assert grid_of(nearest, height, width) == (rows, columns)


@given(SIDES, SIDES)
@settings(max_examples=200)
def test_the_longest_edge_in_tiles_is_transformers(longest: Any, height: int, width: int) -> None:
    settings_of = {"size": {"longest_edge": LONGEST}, "max_image_size": {"longest_edge": SIDE}}
    image = Image.fromarray(np.zeros((height, width, 3), np.uint8))
    made = Idefics3ImageProcessorPil(**settings_of)(image, return_row_col_info=True)
    assert grid_of(longest, height, width) == (made["rows"][0][0], made["cols"][0][0])


@pytest.mark.parametrize(
    ("way", "own"),
    [
        (
            LongestInTiles(LONGEST, SIDE, BICUBIC),
            Idefics3ImageProcessorPil(size={"longest_edge": LONGEST}, max_image_size={"longest_edge": SIDE}, resample=BICUBIC),
        ),
        (
            NearestShape(SIDE, 1, 12, BICUBIC),
            GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_to_patches=True, resample=BICUBIC),
        ),
    ],
    ids=["longest", "nearest"],
)
def test_tiles_are_transformers(way: TileSteps, own: Any) -> None:
    session = opened(way)
    for picture in trial_pictures([size for _, size in way.sizes()]):
        want = own(Image.fromarray(picture), do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
        found = run_on(session, picture)[0]
        assert np.abs(found - np.asarray(want, np.float32).reshape(found.shape)).max() <= 2


@pytest.mark.parametrize(
    "way", [LongestInTiles(LONGEST, SIDE, BICUBIC), NearestShape(SIDE, 1, 12, BICUBIC)], ids=["longest", "nearest"]
)
@pytest.mark.parametrize("most", [2, 3, 5, 9, 100])
def test_a_limit_of_tiles_is_kept(way: TileSteps, most: int) -> None:
    lower = way.limited(most)
    session, sizes = opened(lower), dict(way.sizes())
    counts = [len(run_on(session, picture)[0]) for picture in trial_pictures(list(sizes.values()))]
    assert max(counts) == lower.most <= max(most, 1)
    assert way.limited(way.most) == way


def test_settings_without_tiles_have_no_way() -> None:
    assert tile_steps_of({"size": {"height": 8, "width": 8}, "resample": 3}) == []
    assert tile_steps_of({"size": {"longest_edge": 8}, "max_image_size": {"longest_edge": 8}}) == []


def test_the_whole_may_come_first() -> None:
    picture: Pixels = np.zeros((SIDE, 2 * SIDE, 3), np.uint8)
    picture[:, :SIDE] = 200
    first, last = (run_on(opened(NearestShape(SIDE, 1, 12, BICUBIC, whole_first=each)), picture)[0] for each in (True, False))
    assert np.array_equal(first[0], last[2]) and np.array_equal(first[1:], last[:2])
    assert last[0].mean() == 200 and last[1].mean() == 0
