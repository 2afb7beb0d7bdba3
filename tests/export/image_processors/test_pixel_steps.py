"""Each step of an image processor computes what Pillow and NumPy do, for pictures of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from onnx_textgen_export.image_processors.matching import run_processor
from onnx_textgen_export.image_processors.pixel_steps import (
    BICUBIC,
    BILINEAR,
    LANCZOS,
    CenterCrop,
    Normalization,
    PadToSquare,
    ResizeLongest,
    ResizeShortest,
    ResizeTo,
    Step,
    normalization_of,
    processor_graph,
    steps_of,
)
from onnx_textgen_export.image_processors.processors import trial_pictures

PIXELS = Normalization(1.0, (0.0,) * 3, (1.0,) * 3)
SIDES = st.integers(1, 90)


def through(steps: list[Step], picture: Any, shape: tuple[int, int]) -> Any:
    """What a graph of these steps makes of a picture: [height, width, 3]."""
    (found,) = run_processor(processor_graph(steps, PIXELS, "pixel_values", [1, 3, *shape]), [picture])
    return found[0].transpose(1, 2, 0)


@settings(max_examples=40, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from([BILINEAR, BICUBIC, LANCZOS]))
def test_a_resize_is_that_of_pillow(height: int, width: int, new_height: int, new_width: int, resample: int) -> None:
    (picture,) = trial_pictures([(height, width)])
    found = through([ResizeTo(new_height, new_width, resample)], picture, (new_height, new_width))
    wanted = np.asarray(Image.fromarray(picture).resize((new_width, new_height), resample), np.float32)
    assert np.abs(found - wanted).max() <= 2 and np.abs(found - wanted).mean() < 0.2


@settings(max_examples=25, deadline=None)
@given(SIDES, SIDES)
def test_steps_that_keep_the_shape(height: int, width: int) -> None:
    (picture,) = trial_pictures([(height, width)])
    longest, shortest = max(height, width), min(height, width)
    padded = np.full((longest, longest, 3), (9, 8, 7), np.float32)
    top, left = (longest - height) // 2, (longest - width) // 2
    padded[top : top + height, left : left + width] = picture
    assert np.array_equal(through([PadToSquare((9, 8, 7))], picture, (longest, longest)), padded)
    crop = CenterCrop(shortest, shortest)
    top, left = (height - shortest) // 2, (width - shortest) // 2
    cropped = through([crop], picture, (shortest, shortest))
    assert np.array_equal(cropped, picture[top : top + shortest, left : left + shortest])
    scaled = int(40 * height / shortest), int(40 * width / shortest)
    found = through([ResizeShortest(40, BILINEAR)], picture, scaled)
    wanted = np.asarray(Image.fromarray(picture).resize(scaled[::-1], BILINEAR), np.float32)
    assert np.abs(found - wanted).max() <= 2 and np.abs(found - wanted).mean() < 0.2
    scaled = max(round(height * (40 / longest)), 14), max(round(width * (40 / longest)), 14)
    found = through([ResizeLongest(40, BICUBIC, 14)], picture, scaled)
    wanted = np.asarray(Image.fromarray(picture).resize(scaled[::-1], BICUBIC), np.float32)
    assert np.abs(found - wanted).max() <= 2 and np.abs(found - wanted).mean() < 0.2


def test_the_last_step_normalises_each_channel() -> None:
    (picture,) = trial_pictures([(4, 5)])
    last = Normalization(1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    (found,) = run_processor(processor_graph([], last, "pixel_values", [1, 1, 3, 4, 5]), [picture])
    wanted = (picture / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    assert found.shape == (1, 1, 3, 4, 5)
    assert np.allclose(found[0, 0].transpose(1, 2, 0), wanted, atol=1e-6)


@pytest.mark.parametrize("size", [(3000, 4000)])
def test_a_photograph(size: tuple[int, int]) -> None:
    (picture,) = trial_pictures([size])
    found = through([ResizeShortest(224, BICUBIC), CenterCrop(224, 224)], picture, (224, 224))
    image = Image.fromarray(picture).resize((298, 224), Image.Resampling.BICUBIC)
    wanted = np.asarray(image, np.float32)[:, 37:261]
    assert np.abs(found - wanted).max() <= 2 and np.abs(found - wanted).mean() < 0.2


def test_an_unknown_filter_and_single_numbers_of_settings() -> None:
    settings = {"do_resize": True, "size": {"height": 4, "width": 4}, "resample": 0, "image_mean": 0.5, "image_std": 0.5}
    (steps, *_) = steps_of(settings)
    with pytest.raises(ValueError, match="filter 0"):
        processor_graph(steps, PIXELS, "pixel_values", [1, 3, 4, 4])
    assert normalization_of(settings | {"do_normalize": True}).mean == (0.5,) * 3
