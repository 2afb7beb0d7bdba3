"""What a request needs before its first step is done in its caller's thread: the texts of others do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.cancellation import Cancellation, CancelScope
from onnx_textgen.encoders.encoder import Encoded
from onnx_textgen.generation.engine import Engine
from onnx_textgen.generation.request import Request
from onnx_textgen.inference.prefix_cache import PrefixStore

PATIENCE = 60


class Slow:
    """Saved prefixes, a second engine and an encoder whose work lasts until it is let go."""

    device = None

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)

    def load(self, *_: Any, **__: Any) -> None:
        self.wait()

    def computes(self, tokens: int) -> bool:
        return tokens > 3

    def graph(self) -> None:
        self.wait()

    def encode(self, token_ids: tuple[int, ...], _: CancelScope) -> Encoded:
        self.wait()
        return Encoded(token_ids, {})


@pytest.fixture(scope="module")
def story() -> Model:
    return onnx_textgen.load(threads=1, device="cpu")


def request_for(story: Model, prompt: str, cancel: Cancellation | None = None, source: list[int] | None = None) -> Request:
    generator = story.generator
    continuation = generator.begin(prompt, generator.config({"max_new_tokens": 5, "seed": 1, "ignore_eos": True}))
    continuation.source_ids = source or []
    return Request(continuation, CancelScope(cancel), streams=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda story, slow: Engine(story.generator.opened.new_rows, PrefixStore(0, slow)),
        lambda story, slow: Engine(story.generator.opened.new_rows, PrefixStore(0), prompt_engine=slow),
    ],
    ids=["a saved prefix", "a second engine"],
)
def test_nobody_waits_for_what_another_request_needs_first(story: Model, make: Callable[[Model, Slow], Engine]) -> None:
    slow = Slow()
    engine = make(story, slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = request_for(story, "Once upon a time there was a dog")
        future = pool.submit(engine.finish, [waiting])
        assert slow.begun.wait(PATIENCE)
        other = request_for(story, "The")
        engine.preparation.store.saved = None
        engine.finish([other])
        assert other.has_ended
        assert not waiting.has_ended
        slow.may_end.set()
        future.result(PATIENCE)
        assert waiting.has_ended


def test_samples_of_one_source_read_it_once(story: Model) -> None:
    slow = Slow()
    slow.may_end.set()
    engine = Engine(story.generator.opened.new_rows, PrefixStore(0), encoder=slow)
    first, second, third = (request_for(story, "The", source=source) for source in ([5, 6], [5, 6], [5, 7]))
    for request in (first, second, third):
        engine.submit(request)
    assert first.source is second.source
    assert third.source is not None
    assert third.source.token_ids == (5, 7)


def test_a_cancelled_request_reads_no_source(story: Model) -> None:
    class Ending(Slow):
        def encode(self, token_ids: tuple[int, ...], scope: CancelScope) -> Encoded:
            return scope.run(lambda: pytest.fail("it was cancelled"), lambda: None)

    cancel = Cancellation()
    cancel.cancel()
    engine, request = (
        Engine(story.generator.opened.new_rows, PrefixStore(0), encoder=Ending()),
        request_for(story, "The", cancel, [5]),
    )
    engine.finish([request])
    assert request.continuation.result().finish_reason == "cancelled"
