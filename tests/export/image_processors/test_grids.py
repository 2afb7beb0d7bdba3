"""Pictures that keep their shape: sizes, windows and numbers of the code, compared with transformers' for any size."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import vision_utils
from transformers.models.glm4v import image_processing_pil_glm4v
from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.image_processors import patch_steps
from onnx_textgen_export.image_processors.grids import Formula, formula_of, made_of
from onnx_textgen_export.image_processors.patch_steps import Patches, ResizeToGrid, ResizeWithin
from onnx_textgen_export.image_processors.pixel_steps import Operators, Picture
from onnx_textgen_export.images.packed_attention import window_index

FACTOR, LEAST, MOST, BICUBIC = 28, 56 * 56, 1280 * 28 * 28, 3
SIDES = st.integers(8, 3000)
GRIDS = [(5, 9), (7, 3), (4, 11), (2, 4), (3, 15)]


def size_after(step: Any) -> onnxruntime.InferenceSession:
    """A graph from height and width of a picture to those after a step."""
    ops = Operators()
    sides = [ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64)) for name in ("height", "width")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patch_steps, "resized", lambda ops, picture, height, width, resample: Picture(picture.pixels, height, width))
        found = step(ops, Picture(sides[0], sides[0], sides[1]))
    out = ops.op("Concat", found.height, found.width, axis=0)
    out.name, out.shape, out.type = "size", ir.Shape([2]), ir.TensorType(ir.DataType.INT64)
    graph = ir.Graph(sides, [out], nodes=ops.tape.nodes, initializers=ops.tape.initializers, opset_imports={"": 20})
    data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def of_qwen(module: ModuleType, height: int, width: int) -> tuple[int, int]:
    found: tuple[int, int] = module.smart_resize(height, width, FACTOR, LEAST, MOST)
    return found


def of_glm(module: ModuleType, height: int, width: int) -> tuple[int, int]:
    found: tuple[int, int] = module.smart_resize(2, height, width, 2, FACTOR, LEAST, MOST)
    return found


def of_pixtral(module: ModuleType, height: int, width: int) -> tuple[int, int]:
    found: tuple[int, int] = module.get_resize_output_image_size(np.zeros((3, height, width)), 1024, 16, "channels_first")
    return found


STEPS = {
    "qwen2_vl": (image_processing_pil_qwen2_vl, of_qwen, ResizeToGrid(FACTOR, LEAST, MOST, BICUBIC)),
    "glm4v": (image_processing_pil_glm4v, of_glm, ResizeToGrid(FACTOR, LEAST, MOST, BICUBIC, frames=2, enlarging="both")),
    "paddleocr_vl": (image_processing_pil_paddleocr_vl, of_qwen, ResizeToGrid(FACTOR, LEAST, MOST, BICUBIC, enlarging="each")),
    "pixtral": (image_processing_pil_pixtral, of_pixtral, ResizeWithin(16, 1024, BICUBIC)),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_graph_fits_a_picture_to_the_size_that_transformers_does(name: str) -> None:
    module, wanted, step = STEPS[name]
    session = size_after(step)

    @settings(max_examples=200)
    @given(SIDES, SIDES)
    def check(height: int, width: int) -> None:
        if max(height, width) > 150 * min(height, width):
            return  # refused, by transformers beyond 200
        found = session.run(None, {"height": np.array([height]), "width": np.array([width])})[0]
        assert tuple(found.tolist()) == wanted(module, height, width)

    check()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_windows_are_those_of_transformers(height: int, width: int, side: int) -> None:
    grid = torch.tensor([[1, 2 * height, 2 * width]])
    order, ends = window_index(grid, 2, side * 28, 14)
    wanted, their_ends = vision_utils.get_vision_window_index(grid, 2, side * 28, 14)
    assert torch.equal(order, wanted)
    assert torch.equal(torch.unique_consecutive(ends), their_ends)


@given(st.tuples(*[st.integers(-9, 9)] * 4))
def test_a_number_that_follows_the_grid_is_found(factors: tuple[int, int, int, int]) -> None:
    formula = Formula(factors)
    found = formula_of([formula(*grid) for grid in GRIDS], GRIDS)
    assert all(found(*grid) == formula(*grid) for grid in itertools.product(range(1, 6), range(1, 6)))


def test_other_values_are_refused() -> None:
    for values in (
        [height // 2 for height, _ in GRIDS],
        [[0] * height for height, _ in GRIDS],
        [height > width for height, width in GRIDS],
        [torch.arange(height) for height, _ in GRIDS],
    ):
        with pytest.raises(ExportError):
            made_of(values, GRIDS)


def test_lists_and_tensors_follow_the_grid() -> None:
    values = [[[1, height], torch.tensor([2 * width])] for height, width in GRIDS]
    made = made_of(values, GRIDS)(6, 8)
    assert made[0] == [1, 6] and torch.equal(made[1], torch.tensor([16]))


def test_the_dimensions_of_a_grid_stand_alone() -> None:
    assert Patches(2, 14, 2, by_token=True).shape == ("grid_height", "grid_width", 4 * 3 * 2 * 14 * 14)
    assert Patches(2, 14, 1, by_token=False).shape == ("grid_height", 2, "grid_width", 2 * 3 * 14 * 14)
