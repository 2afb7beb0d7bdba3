"""A picture is read for as long as its request may take, and no other request waits for it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.images.image_rows import without_images

LONG = 20.0
"""Seconds."""
OPTIONS: dict[str, Any] = {"temperature": 0, "max_new_tokens": 6}


class Slow:
    """A vision part that needs long, unless its run is ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def run(self, names: list[str], feeds: dict[str, Any], options: Any) -> list[Any]:
        self.begun.set()
        end = time.monotonic() + LONG
        while time.monotonic() < end and not options.terminate:
            time.sleep(0.01)
        raise RuntimeError("Exiting due to terminate flag being set to true.")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Slow]:
    model, ends = onnx_textgen.load("digits", threads=1, device="cpu"), Slow()
    reader = model._encoder.opened.images
    assert reader is not None
    whole = reader.vision
    monkeypatch.setattr(reader, "vision", SimpleNamespace(ort=ends, inputs=whole.inputs, outputs=whole.outputs))
    return model, ends


def picture() -> Any:
    return np.full((40, 40, 3), 200, np.uint8)


def question() -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": picture()}, {"type": "text", "text": "What number is this?"}]}]


def test_a_prompt_is_counted_before_its_pictures_are_read(slow: tuple[Model, Slow]) -> None:
    model, ends = slow
    ids = model.encode_chat(question())
    assert sum(each < 0 for each in ids) == 64 and without_images(ids)
    assert not ends.begun.is_set()


@pytest.mark.parametrize("beams", [1, 2])
def test_a_limit_of_time_ends_it(slow: tuple[Model, Slow], beams: int) -> None:
    model, ends = slow
    start = time.monotonic()
    found = model.generate(model.encode_chat(question()), max_time=0.2, num_beams=beams, **OPTIONS)
    assert time.monotonic() - start < LONG / 2 and ends.begun.is_set()
    assert found.finish_reason == "deadline" and found.text == ""


def test_cancelling_ends_it(slow: tuple[Model, Slow]) -> None:
    model, ends = slow
    cancel, start = Cancellation(), time.monotonic()
    threading.Thread(target=lambda: (ends.begun.wait(), cancel.cancel())).start()
    found = model.chat(question(), cancel=cancel, **OPTIONS)
    assert time.monotonic() - start < LONG / 2
    assert found.generation.finish_reason == "cancelled"


def test_texts_of_others_go_on(slow: tuple[Model, Slow]) -> None:
    model, ends = slow
    cancel = Cancellation()
    thread = threading.Thread(target=lambda: model.chat(question(), cancel=cancel, **OPTIONS))
    thread.start()
    ends.begun.wait()
    try:
        assert model.generate("1 2 3", ignore_eos=True, **OPTIONS).token_ids
        assert thread.is_alive()
    finally:
        cancel.cancel()
        thread.join()


def test_a_picture_whose_reading_was_ended_is_read_later(slow: tuple[Model, Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = slow
    wanted = onnx_textgen.load("digits", threads=1, device="cpu").chat(question(), **OPTIONS)
    model.chat(question(), max_time=0.1, **OPTIONS)
    monkeypatch.undo()
    assert model.chat(question(), **OPTIONS).generation.token_ids == wanted.generation.token_ids
