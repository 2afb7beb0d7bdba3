"""A picture is read for as long as its request may take, and no other request waits for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
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
    slow_down(model, ends, monkeypatch)
    return model, ends


def slow_down(model: Model, ends: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = model._encoder.opened.images
    assert reader is not None
    whole = reader.vision
    monkeypatch.setattr(reader, "vision", SimpleNamespace(ort=ends, inputs=whole.inputs, outputs=whole.outputs))


def picture(seed: int = 0) -> Any:
    return np.full((40, 40, 3), 200 + seed, np.uint8)


def question(seed: int = 0) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": picture(seed)}, {"type": "text", "text": "What number is this?"}]
    return [{"role": "user", "content": parts}]


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


@pytest.mark.parametrize("seed", [0, 1])
def test_a_limit_of_time_holds_while_another_picture_is_read(slow: tuple[Model, Slow], seed: int) -> None:
    model, ends = slow
    cancel = Cancellation()
    thread = threading.Thread(target=lambda: model.chat(question(), cancel=cancel, **OPTIONS))
    thread.start()
    ends.begun.wait()
    start = time.monotonic()
    found = model.chat(question(seed), max_time=0.2, **OPTIONS)  # the same picture, and another one
    assert time.monotonic() - start < LONG / 2 and found.generation.finish_reason == "deadline"
    cancel.cancel()
    thread.join()


def test_a_text_does_not_wait_for_a_picture_where_prefixes_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ends = onnx_textgen.load("digits", threads=1, device="cpu", prefix_folder=tmp_path), Slow()
    slow_down(model, ends, monkeypatch)
    cancel = Cancellation()
    thread = threading.Thread(target=lambda: model.chat(question(), cancel=cancel, **OPTIONS))
    thread.start()
    ends.begun.wait()
    start = time.monotonic()
    assert model.generate("1 2 3", ignore_eos=True, **OPTIONS).token_ids
    assert time.monotonic() - start < LONG / 2 and thread.is_alive()
    cancel.cancel()
    thread.join()


def test_a_picture_that_two_requests_read_at_once_is_one() -> None:
    model = onnx_textgen.load("digits", threads=1, device="cpu")
    reader = model._encoder.opened.images
    assert reader is not None
    own, found, busy, most = reader.processor, list[object](), list[int](), list[int]()

    def run(*given: Any) -> Any:
        busy.append(1)
        most.append(len(busy))
        time.sleep(0.1)  # so that the other one has looked for the picture too
        busy.pop()
        return own.ort.run(*given)

    reader.processor = SimpleNamespace(ort=SimpleNamespace(run=run), inputs=own.inputs, outputs=own.outputs)  # type: ignore[assignment]
    threads = [threading.Thread(target=lambda: found.append(reader.read(picture()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, other = found
    assert one is other is reader.rows.image(one.ids[0])  # type: ignore[attr-defined]
    assert max(most) == 1  # large pictures are not prepared side by side


def test_a_picture_whose_reading_was_ended_is_read_later(slow: tuple[Model, Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = slow
    wanted = onnx_textgen.load("digits", threads=1, device="cpu").chat(question(), **OPTIONS)
    model.chat(question(), max_time=0.1, **OPTIONS)
    monkeypatch.undo()
    assert model.chat(question(), **OPTIONS).generation.token_ids == wanted.generation.token_ids
