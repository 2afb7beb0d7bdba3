"""A picture that is cut into tiles has one run of the vision part for each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from onnx_textgen.cancellation import Cancellation, CancelScope, InterruptedRunError
from onnx_textgen.errors import ModelError, PackageError
from onnx_textgen.images.image_reader import IMAGE_ROWS, TILE_GRID, ImageReader
from onnx_textgen.images.pictures import PICTURE
from onnx_textgen.package.manifest import ImageRecord, TileText

WIDTH, TOKENS, SIDE = 3, 2, 4
WAYS = (TileText(1, 1, 1, "<image>"), TileText(1, 2, 3, "<image><image>+<image>"))
ABOUT = ImageRecord("<image>", "<image><image>", 9, 3 * TOKENS, tiles=WAYS)


class Processor:
    """Cuts a picture into columns, and adds the whole as a tile of its mean."""

    inputs = {PICTURE: (["height", "width", 3], np.uint8)}  # noqa: RUF012 - of a stand-in
    outputs = {"pixels": (["tiles", SIDE], np.float32), TILE_GRID: ([2], np.int64)}  # noqa: RUF012

    @property
    def ort(self) -> Processor:
        return self

    def run(self, names: list[str], feeds: dict[str, Any], options: Any) -> list[Any]:
        picture = feeds[PICTURE].astype(np.float32)
        columns = picture.shape[1] // SIDE
        tiles = [picture[0, column * SIDE : (column + 1) * SIDE, 0] for column in range(columns)]
        tiles += [np.full(SIDE, picture.mean(), np.float32)] if columns > 1 else []
        made = {"pixels": np.stack(tiles), TILE_GRID: np.array([1, columns])}
        return [made[name] for name in names]


class Vision:
    """Rows that repeat the first pixel of a tile."""

    inputs = {"pixels": ([SIDE], np.float32)}  # noqa: RUF012
    outputs = {IMAGE_ROWS: ([TOKENS, WIDTH], np.float32)}  # noqa: RUF012

    def __init__(self) -> None:
        self.runs, self.ends = 0, Cancellation()

    @property
    def ort(self) -> Vision:
        return self

    def run(self, names: list[str], feeds: dict[str, Any], options: Any) -> list[Any]:
        self.runs += 1
        if self.runs == 2:
            self.ends.cancel()
        return [np.full((TOKENS, WIDTH), feeds["pixels"][0], np.float32)]


@pytest.fixture
def vision() -> Vision:
    return Vision()


@pytest.fixture
def reader(vision: Vision) -> ImageReader:
    return ImageReader(cast(Any, Processor()), cast(Any, vision), ABOUT, WIDTH)


def wide(*columns: int) -> Any:
    return np.repeat(np.array(columns, np.uint8), SIDE)[None, :, None] * np.ones((SIDE, 1, 3), np.uint8)


def test_rows_follow_the_order_of_tiles(reader: ImageReader, vision: Vision) -> None:
    image = reader.read_pixels(wide(10, 20))
    assert (image.tiles, image.count, vision.runs) == (WAYS[1], 3 * TOKENS, 0)
    assert image.rows()[:, 0].tolist() == [10, 10, 20, 20, 15, 15]
    assert vision.runs == 3
    assert reader.read_pixels(wide(7)).rows()[:, 0].tolist() == [7, 7]


def test_a_way_without_a_text_is_refused(reader: ImageReader) -> None:
    with pytest.raises(ModelError, match="no text for a picture in tiles of \\[1, 3\\]"):
        reader.read_pixels(wide(1, 2, 3))


def test_reading_ends_between_tiles_and_begins_again(reader: ImageReader, vision: Vision) -> None:
    image = reader.read_pixels(wide(10, 20))
    with pytest.raises(InterruptedRunError):
        image.rows(CancelScope(cancel=vision.ends))
    assert vision.runs == 2
    assert image.rows()[:, 0].tolist() == [10, 10, 20, 20, 15, 15]


def test_graphs_that_do_not_fit_are_refused(vision: Vision) -> None:
    lacks = SimpleNamespace(inputs=Processor.inputs, outputs={"pixels": Processor.outputs["pixels"]})
    with pytest.raises(PackageError, match="do not fit each other"):
        ImageReader(cast(Any, lacks), cast(Any, vision), ABOUT, WIDTH)
