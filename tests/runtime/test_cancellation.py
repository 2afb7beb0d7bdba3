"""Ending a generation before its time: it returns what there is, soon, and the model goes on working."""

import asyncio
import contextlib
import threading
import time

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen import Cancellation
from onnx_textgen.cancellation import CancelScope, InterruptedRunError
from onnx_textgen.inference.decoder import Decoder

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def plain(story):
    return story.generate(PROMPT, max_new_tokens=40, temperature=0).token_ids


def test_a_call_with_a_cancelled_cancellation_gives_an_empty_text(story):
    cancel = Cancellation()
    cancel.cancel()
    result = story.generate(PROMPT, cancel=cancel)
    assert (result.finish_reason, result.text, result.token_ids) == ("cancelled", "", ())
    assert [chunk.finish_reason for chunk in story.stream(PROMPT, cancel=cancel)] == ["cancelled"]
    assert [one.finish_reason for one in story.generate([PROMPT, "The dog"], cancel=cancel)] == ["cancelled"] * 2


@pytest.mark.parametrize("count", [1, 2, 7])
def test_cancelling_a_stream_ends_it_before_the_next_token(story, plain, count):
    cancel, chunks = Cancellation(), []
    for chunk in story.stream(PROMPT, max_new_tokens=40, temperature=0, cancel=cancel):
        chunks.append(chunk)
        if len(chunks) == count:
            cancel.cancel()
    assert chunks[-1].finish_reason == "cancelled" and chunks[-1].stats.generated_tokens == count
    assert [i for chunk in chunks for i in chunk.token_ids] == list(plain[:count])


def test_a_list_is_cancelled_from_another_thread_with_what_each_text_has(story):
    cancel = Cancellation()
    timer = threading.Timer(0.15, cancel.cancel)
    timer.start()
    results = story.generate([PROMPT, "The dog"], max_new_tokens=400, temperature=0, ignore_eos=True, cancel=cancel)
    assert {result.finish_reason for result in results} == {"cancelled"}
    whole = story.generate([PROMPT, "The dog"], max_new_tokens=len(results[0].token_ids) + 1, temperature=0, ignore_eos=True)
    for result, other in zip(results, whole, strict=True):
        assert 0 < len(result.token_ids) < 400
        assert result.token_ids == other.token_ids[: len(result.token_ids)]


def test_a_deadline_ends_a_text_and_counts_from_the_call(story):
    start = time.monotonic()
    result = story.generate(PROMPT, max_new_tokens=100_000, temperature=0, ignore_eos=True, context_limit="shift", max_time=0.3)
    assert result.finish_reason == "deadline" and result.token_ids
    assert time.monotonic() - start < 3
    assert story.generate(PROMPT, max_new_tokens=2, max_time=1e12).finish_reason == "length", "longer than a timer waits"


class SlowRun:
    """A session whose runs take long, and which, like ONNX Runtime, looks at the flag now and then."""

    def __init__(self, real, seconds):
        self.real, self.seconds, self.begun = real, seconds, threading.Event()

    def __getattr__(self, name):
        return getattr(self.real, name)

    def run_with_iobinding(self, binding, options=None):
        self.begun.set()
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if options is not None and options.terminate:
                raise RuntimeError("Exiting due to terminate flag being set to true.")
            time.sleep(0.002)
        self.real.run_with_iobinding(binding, options)


def slow_model(story, seconds):
    import dataclasses  # noqa: PLC0415

    session = dataclasses.replace(story.graph, ort=SlowRun(story.graph.ort, seconds))
    return onnx_textgen.Model(story.folder, story.manifest, session, chat_template=None), session.ort


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_a_run_that_is_under_way_is_ended_and_leaves_the_cache_as_it_was(story, plain, how):
    model, session = slow_model(story, 30)
    context, cancel = model.new_context(), Cancellation()
    if how == "cancelled":
        threading.Thread(target=lambda: (session.begun.wait(), cancel.cancel())).start()
    start = time.monotonic()
    options = {"cancel": cancel} if how == "cancelled" else {"max_time": 0.2}
    chunks = list(model.stream(PROMPT, max_new_tokens=5, temperature=0, context=context, **options))
    assert time.monotonic() - start < 10
    assert [chunk.finish_reason for chunk in chunks] == [how]
    assert context.token_ids == [[]]
    session.seconds = 0
    again = [i for chunk in model.stream(PROMPT, max_new_tokens=40, temperature=0, context=context) for i in chunk.token_ids]
    assert tuple(again) == plain


def test_onnx_runtime_itself_ends_a_long_run_at_the_flag(story):
    """On the real session: a prompt of 500 tokens is ended in the middle of its one run, or was finished before."""
    ids = np.random.default_rng(0).integers(5, 4000, 500).tolist()
    endings = set()
    for delay in (0.0, 0.002, 0.01, 0.02):
        context, cancel = story.new_context(), Cancellation()
        timer = threading.Timer(delay, cancel.cancel)
        timer.start()
        chunks = list(story.stream(ids[:500], max_new_tokens=2, temperature=0, context=context, cancel=cancel))
        timer.join()
        endings.add(chunks[-1].finish_reason)
        assert len(context.token_ids[0]) in (0, 128, 256, 384, 500, 501)  # whole parts of the prompt
        fresh = story.generate(ids[:500], max_new_tokens=2, temperature=0).token_ids
        assert (
            tuple(i for one in story.stream(ids, max_new_tokens=2, temperature=0, context=context) for i in one.token_ids) == fresh
        )
    assert "cancelled" in endings


class LateCancelScope(CancelScope):
    """Its cancel comes at the last moment: the run has ended, and nobody has seen so yet."""

    def run(self, action, stop):
        found = action()
        stop()
        return found


def test_a_cancel_at_the_end_of_a_run_ends_no_later_run(exact):
    ids = [5, 9, 1, 7]
    want, context = exact.new_context().feed(ids), exact.new_context()
    for token_id in ids:
        late = context.feed([token_id], scope=LateCancelScope())
        context.rewind(len(context.token_ids[0]) - 1)
        np.testing.assert_array_equal(context.feed([token_id]), late)
    np.testing.assert_allclose(late, want, atol=1e-5)


def test_an_error_that_no_one_asked_for_stays_an_error():
    scope = CancelScope(Cancellation())
    with pytest.raises(ZeroDivisionError), scope.active():
        scope.run(lambda: 1 // 0, print)


def test_a_scope_returns_what_the_run_returns():
    assert CancelScope().run(lambda: 7, print) == CancelScope(Cancellation()).run(lambda: 7, print) == 7


def test_a_scope_that_several_texts_share_ends_runs_until_the_last_of_them_is_over():
    cancel, ended = Cancellation(), []
    scope = CancelScope(cancel)
    with scope.active():
        with scope.active():
            pass
        with pytest.raises(InterruptedRunError):
            scope.run(lambda: cancel.cancel() or ended.append(True) or 1 / (not ended), lambda: ended.append(False))
    assert ended == [False, True]
    assert not cancel._scopes


def test_a_cancellation_cancels_those_made_from_it_and_not_the_other_way_round():
    whole = Cancellation()
    part, other = Cancellation(whole), Cancellation(whole)
    part.cancel()
    assert (whole.cancelled, part.cancelled, other.cancelled) == (False, True, False)
    stopped, scope = [], CancelScope(other)
    with scope.active(), pytest.raises(InterruptedRunError):
        scope.run(lambda: whole.cancel() or 1 / (not stopped), lambda: stopped.append(True))
    assert other.cancelled and stopped
    assert not whole._scopes and not other._scopes


def test_asyncio_calls_that_end_leave_the_callers_cancellation_as_it_is(story, plain):
    async def one_after_the_other(cancel):
        whole = await story.agenerate(PROMPT, max_new_tokens=40, temperature=0, cancel=cancel)
        streamed = [chunk async for chunk in story.astream(PROMPT, max_new_tokens=40, temperature=0, cancel=cancel)]
        async with contextlib.aclosing(story.astream(PROMPT, ignore_eos=True, cancel=cancel)) as left:
            await anext(left)
        return [whole.token_ids, tuple(i for chunk in streamed for i in chunk.token_ids)]

    cancel = Cancellation()
    assert asyncio.run(one_after_the_other(cancel)) == [plain, plain]
    assert not cancel.cancelled


def test_one_cancellation_ends_all_asyncio_calls_that_share_it(story):
    async def together(cancel):
        endless = {"max_new_tokens": 100_000, "context_limit": "shift", "ignore_eos": True, "temperature": 0, "cancel": cancel}
        calls = [asyncio.create_task(story.agenerate(prompt, **endless)) for prompt in (PROMPT, "The dog")]
        short = await story.agenerate(PROMPT, max_new_tokens=2, temperature=0, cancel=cancel)
        assert short.finish_reason == "length"
        async with contextlib.aclosing(story.astream("A", **endless)) as chunks:
            reasons = [(await anext(chunks)).finish_reason]
            cancel.cancel()
            reasons += [chunk.finish_reason async for chunk in chunks if chunk.finish_reason]
        return reasons + [(await each).finish_reason for each in calls]

    assert asyncio.run(together(Cancellation())) == [None, *["cancelled"] * 3]


def test_cancelling_twice_and_after_the_end_is_no_trouble(story, plain):
    cancel = Cancellation()
    assert story.generate(PROMPT, max_new_tokens=40, temperature=0, cancel=cancel).token_ids == plain
    cancel.cancel()
    cancel.cancel()
    assert not cancel._scopes
    assert story.generate(PROMPT, max_new_tokens=40, temperature=0).token_ids == plain


def test_a_hundred_cancels_at_random_moments_leave_the_model_as_it_was(story, plain):
    random = np.random.default_rng(1)
    decoder = Decoder(story.graph, story.manifest.geometry)
    for _ in range(100):
        cancel = Cancellation()
        timer = threading.Timer(float(random.uniform(0, 0.02)), cancel.cancel)
        timer.start()
        ids = [i for chunk in story.stream(PROMPT, temperature=0, context=decoder, cancel=cancel) for i in chunk.token_ids]
        timer.join()
        assert tuple(ids[:40]) == plain[: len(ids[:40])]
    assert story.generate(PROMPT, max_new_tokens=40, temperature=0).token_ids == plain


def test_interrupted_runs_say_why():
    with pytest.raises(InterruptedRunError, match="deadline"):
        CancelScope(max_time=1e-9).run(lambda: None, print)
