"""Texts of many callers go on together, and each is the text that its caller would get alone."""

import asyncio
import contextlib
import itertools
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.errors import BusyError, ModelError, OptionError, PromptError
from onnx_textgen.generation import scheduler
from onnx_textgen.generation.request import Request
from onnx_textgen.generation.scheduler import Scheduler
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import GraphRunner
from onnx_textgen.inference.prefill import Progress
from support.examples import examples

BEGIN = "Once upon a time, there was a little girl called Lily. She had a red ball and a big brown dog. "
PROMPTS = [BEGIN + "One day", "The dog", BEGIN, "Tom and Sue went to the park. They", "A", BEGIN + "One day they", "It was night"]
SETTINGS = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"top_k": 40, "repetition_penalty": 1.2},
    {"temperature": 1.2, "min_p": 0.05, "stop": ["dog"]},
]


@pytest.fixture(scope="module")
def alone() -> Model:
    """The default, which has one caller at a time and remembers nothing; int8 shows the smallest difference."""
    return onnx_textgen.load(threads=1, device="cpu", prefix_cache=0)


@pytest.fixture(params=[0, 2**24], ids=["no store", "a store"])
def model(alone: Model, request: pytest.FixtureRequest) -> Model:
    """Another model over the same graph, for many callers."""
    return Model(alone.folder, alone.manifest, alone.graph, chat_template=None, prefix_cache=request.param, batch_size=4)


def options_of(number: int) -> dict:
    return {**SETTINGS[number % len(SETTINGS)], "seed": number, "max_new_tokens": 5 + 7 * (number % 5)}


@pytest.fixture(scope="module")
def expected(alone: Model) -> list[onnx_textgen.Generation]:
    return [alone.generate(PROMPTS[number % len(PROMPTS)], **options_of(number)) for number in range(28)]


def request_of(model: Model, number: int, **how: object) -> Request:
    """A request for one of the texts."""
    return Request(model.generator.begin(PROMPTS[number], model.generator.config(options_of(number))), CancelScope(), **how)  # type: ignore[arg-type]


def work_off(used: Scheduler, *requests: Request) -> None:
    """Submit requests, and step until none is left."""
    for request in requests:
        used.submit(request)
    while used.rows or used.queue:
        used.step()


def fail_at(patched: pytest.MonkeyPatch, model: Model, at: int) -> None:
    """Let the n-th run of the graph from now on fail."""
    real, left = type(model.graph.ort).run_with_iobinding, [at]

    def run(*given: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("out of memory")
        return real(*given)

    patched.setattr(type(model.graph.ort), "run_with_iobinding", run)


def is_idle(model: Model) -> bool:
    held, turns = model.generator.engine.scheduler, model.generator.engine.turns
    return not (held.rows or held.queue or held.decoder) and turns.leader is None and not turns.followers


def test_many_threads_get_the_texts_they_would_get_alone(model: Model, expected: list) -> None:
    def ask(number: int) -> str:
        prompt, options = PROMPTS[number % len(PROMPTS)], options_of(number)
        if number % 2:
            return "".join(chunk.text for chunk in model.stream(prompt, **options))
        return model.generate(prompt, **options).text

    with ThreadPoolExecutor(7) as pool:
        assert list(pool.map(ask, range(28))) == [each.text for each in expected]
    assert is_idle(model)


@given(
    plan=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 27), st.one_of(st.none(), st.integers(1, 9))), min_size=1, max_size=9)
)
@examples(25)
def test_texts_do_not_depend_on_who_joins_and_leaves_when(alone: Model, expected: list, plan: list) -> None:
    """Requests come after so many turns; some callers leave after so many more."""
    together = Model(alone.folder, alone.manifest, alone.graph, chat_template=None, batch_size=3).generator.engine.scheduler
    requests = list[tuple[int, Request, int | None]]()
    for pause, number, patience in plan:
        for _ in range(pause):
            together.step()
        config = alone.generator.config(options_of(number))
        request = Request(alone.generator.begin(PROMPTS[number % len(PROMPTS)], config), CancelScope())
        together.submit(request)
        requests.append((number, request, patience))
        for _, other, left in requests[::2]:
            if left is not None and len(other.continuation.token_ids) > left:
                other.is_abandoned = True
    while together.rows or together.queue:
        together.step()
    for number, request, _ in requests:
        assert request.error is None
        if not request.is_abandoned:
            assert request.continuation.result().token_ids == expected[number].token_ids
        else:
            count = len(request.continuation.token_ids)
            assert request.continuation.token_ids == list(expected[number].token_ids[:count])
    assert together.decoder is None


def test_streams_of_one_thread_take_turns(model: Model, expected: list) -> None:
    streams = {number: model.stream(PROMPTS[number], **options_of(number)) for number in range(6)}  # two wait for a row
    texts = dict.fromkeys(streams, "")
    while streams:
        for number, stream in list(streams.items()):
            chunk = next(stream, None)
            if chunk is None:
                del streams[number]
            else:
                texts[number] += chunk.text
    assert list(texts.values()) == [each.text for each in expected[:6]]
    assert is_idle(model)


def test_a_stream_that_is_closed_makes_room(model: Model, expected: list) -> None:
    streams = [model.stream(BEGIN, max_new_tokens=200, seed=1, ignore_eos=True) for _ in range(4)]
    for stream in streams:
        next(stream)
    for stream in streams[1:]:
        stream.close()
    found = model.generate(PROMPTS[1], **options_of(1))
    assert found.text == expected[1].text
    assert len(model.generator.engine.scheduler.rows) == 1
    streams[0].close()
    assert is_idle(model)


def test_a_stream_that_is_closed_leaves_nothing_behind_though_nobody_calls_again(model: Model) -> None:
    cancel, threads = Cancellation(), set(threading.enumerate())
    stream = model.stream(BEGIN, max_new_tokens=200, ignore_eos=True, cancel=cancel, max_time=1000)
    next(stream)
    timers = set(threading.enumerate()) - threads
    assert len(timers) == len(cancel._scopes) == 1
    stream.close()
    assert is_idle(model)
    assert not cancel._scopes
    for timer in timers:
        timer.join(60)
        assert not timer.is_alive()


def test_a_stream_that_python_closes_while_its_thread_looks_up_a_prompt_is_no_stall(model: Model) -> None:
    """As where it was part of a cycle that nobody holds any more."""
    stream = model.stream(BEGIN, max_new_tokens=200, ignore_eos=True)
    next(stream)

    def look_up() -> None:
        with model.generator.prefixes._lock, model.generator.engine.turns.lock:
            stream.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(look_up).result(60)
    assert is_idle(model)


def test_a_list_that_fails_leaves_nothing_behind_though_nobody_calls_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = Cancellation()
    with monkeypatch.context() as patched:
        fail_at(patched, model, 1)
        with pytest.raises(ModelError, match="out of memory"):
            model.generate(["A", *[BEGIN] * 9], max_new_tokens=200, ignore_eos=True, cancel=cancel)
    assert is_idle(model)
    assert not cancel._scopes


def test_a_stream_that_is_closed_at_the_end_of_anothers_last_turn_is_let_go_by_that_one(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, used = model.stream(BEGIN, max_new_tokens=200, ignore_eos=True), model.generator.engine.turns
    next(stream)
    real, closed = used.stays_leader, list[bool]()

    def at_the_end() -> bool:
        if not closed:
            closer = threading.Thread(target=stream.close)
            closer.start()
            closer.join(60)
            closed.append(not closer.is_alive())
        return real()

    monkeypatch.setattr(used, "stays_leader", at_the_end)
    model.generate("A", max_new_tokens=2)
    assert closed == [True]
    assert is_idle(model)


def test_a_stream_that_nobody_takes_rests_until_somebody_does(model: Model, alone: Model) -> None:
    wish = {"max_new_tokens": 300, "seed": 1, "ignore_eos": True}
    stream, used = model.stream(BEGIN, **wish), model.generator.engine.scheduler
    texts = [next(stream).text]
    (request,) = used.rows
    for length in (40, 100):
        model.generate("The dog", max_new_tokens=length, seed=2, ignore_eos=True)
        assert len(request.chunks) == min(length, scheduler.MOST_CHUNKS_AHEAD)
    texts += [chunk.text for chunk in stream]
    assert "".join(texts) == alone.generate(BEGIN, **wish).text
    assert is_idle(model)


def test_streams_that_nobody_takes_make_room_for_those_who_wait(model: Model, alone: Model) -> None:
    wishes = [{"max_new_tokens": 200 + number, "seed": number, "ignore_eos": True} for number in range(4)]
    streams = [model.stream(BEGIN, **wish) for wish in wishes]
    texts = [next(stream).text for stream in streams]
    assert model.generate("A", max_new_tokens=5, seed=1).text == alone.generate("A", max_new_tokens=5, seed=1).text
    for text, stream, wish in zip(texts, streams, wishes, strict=True):
        assert text + "".join(chunk.text for chunk in stream) == alone.generate(BEGIN, **wish).text
    assert is_idle(model)


@given(plan=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=30))
@examples(25)
def test_texts_do_not_depend_on_who_takes_them_when(alone: Model, expected: list, plan: list) -> None:
    """Five streams for three rows, of which now this one is taken on, now that one; none gets more than two chunks ahead."""
    model = Model(alone.folder, alone.manifest, alone.graph, chat_template=None, batch_size=3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduler, "MOST_CHUNKS_AHEAD", 2)
        streams = [model.stream(PROMPTS[number], **options_of(number)) for number in range(5)]
        texts = [""] * 5
        for number, count in [*plan, *((number, 1000) for number in range(5))]:
            for chunk in itertools.islice(streams[number], count):
                texts[number] += chunk.text
    assert texts == [each.text for each in expected[:5]]
    assert is_idle(model)


def test_who_is_called_with_the_chunks_gets_those_of_a_stream_and_all_of_them_before_the_end(model: Model, expected: list) -> None:
    gotten: dict[int, list[onnx_textgen.Chunk]] = {number: [] for number in range(3)}

    def finish(number: int) -> str | None:
        model.generator.engine.finish([request_of(model, number, on_chunks=gotten[number].extend)])
        return gotten[number][-1].finish_reason

    with ThreadPoolExecutor(3) as pool:
        assert None not in pool.map(finish, gotten)
    for number, chunks in gotten.items():
        assert "".join(chunk.text for chunk in chunks) == expected[number].text
        assert sum((chunk.token_ids for chunk in chunks), ()) == expected[number].token_ids


def test_an_error_of_who_is_called_with_the_chunks_ends_that_text_alone(model: Model, expected: list) -> None:
    def fail(chunks: object) -> None:
        raise ValueError("cannot take them")

    gotten = list[onnx_textgen.Chunk]()
    failing, other = (request_of(model, number, on_chunks=on) for number, on in enumerate((fail, gotten.extend)))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.generator.engine.finish, [other])
        with pytest.raises(ValueError, match="cannot take them"):
            model.generator.engine.finish([failing])
    assert "".join(chunk.text for chunk in gotten) == expected[1].text
    assert is_idle(model)


def test_a_stream_that_is_never_begun_costs_nothing(model: Model) -> None:
    model.stream(BEGIN, max_new_tokens=5)
    assert is_idle(model)


def test_a_list_of_more_prompts_than_rows_is_worked_off(model: Model, alone: Model) -> None:
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(40)]
    found = model.generate(prompts, max_new_tokens=6, seed=3)
    assert [each.text for each in found] == [alone.generate(prompt, max_new_tokens=6, seed=3).text for prompt in prompts]
    assert is_idle(model)


def test_a_long_prompt_does_not_hold_up_the_others(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    used: Scheduler = model.generator.engine.scheduler
    first = Request(
        model.generator.begin("The dog", model.generator.config({"max_new_tokens": 60, "seed": 1, "ignore_eos": True})),
        CancelScope(),
    )
    used.submit(first)
    used.step()
    long = Request(
        model.generator.begin(list(range(2, 400)), model.generator.config({"max_new_tokens": 3, "seed": 1})), CancelScope()
    )
    used.submit(long)
    counts = []
    while long.logits is None and not long.is_done:
        used.step()
        counts.append(len(first.continuation.token_ids))
    assert counts == list(range(counts[0], counts[0] + len(counts)))
    assert len(counts) >= 398 // 64
    first.is_abandoned = long.is_abandoned = True
    used.step()
    assert is_idle(model)


def test_who_wants_many_texts_does_not_hold_up_the_others(model: Model) -> None:
    many, used = object(), model.generator.engine.scheduler
    lengths = [5 + 3 * number for number in range(4)] + [5] * 8

    def wish(length: int, caller: object = None) -> Request:
        config = model.generator.config({"max_new_tokens": length, "min_new_tokens": length, "seed": 1})
        return Request(model.generator.begin("A", config), CancelScope(), caller=caller)

    texts, other = [wish(length, many) for length in lengths], wish(3)
    for each in texts:
        used.submit(each)
    while len(used.rows) < 4:
        used.step()
    used.submit(other)
    while other not in used.rows:
        used.step()
    assert [each.is_done for each in texts] == [True] + [False] * 11
    assert sum(each in used.queue for each in texts) == 8
    while used.rows:
        used.step()
    assert all(each.is_done for each in [*texts, other])
    assert is_idle(model)


def test_too_many_requests_are_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MOST_WAITING", 3)
    streams = [model.stream("The dog", max_new_tokens=3) for _ in range(9)]
    requests = [Request(model.generator.begin("A", model.generator.config({})), CancelScope()) for _ in range(3)]
    for request in requests:
        model.generator.engine.scheduler.submit(request)
    with pytest.raises(BusyError, match="3 requests are waiting already; try again later"):
        next(streams[0])
    for request in requests:
        request.is_abandoned = True
    assert model.generate("A", max_new_tokens=2, temperature=0).token_ids


def test_short_prompts_that_wait_together_are_fed_together(alone: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(alone.folder, alone.manifest, alone.graph, chat_template=None, batch_size=8)
    prompts = [f"{one} and they all went home to eat." for one in ("The dog ran", "Lily sang", "It was a cold night", "Tom fell")]
    runs, real = [], GraphRunner.run

    def run(runner: GraphRunner, cache, ids, *given: object, **more: object):
        runs.append(ids.shape)
        return real(runner, cache, ids, *given, **more)

    monkeypatch.setattr(GraphRunner, "run", run)
    together = model.generate(prompts, max_new_tokens=6, temperature=0)
    lengths = [len(text.prompt_ids) for text in together]
    assert runs == [(4, max(lengths) + max(lengths) % 2), *[(4, 1)] * 5]
    for prompt, text in zip(prompts, together, strict=True):
        assert text.token_ids == alone.generate(prompt, max_new_tokens=6, temperature=0).token_ids
    again = model.generate(prompts, max_new_tokens=2, temperature=0)
    assert [text.stats.reused_tokens for text in again] == [(length - 2) // 2 * 2 for length in lengths]


@pytest.mark.parametrize(("at", "steps_together"), [*((at, True) for at in range(1, 14)), (9, False)])
def test_a_run_that_fails_fails_those_it_was_for_and_no_others(
    at: int, steps_together: bool, model: Model, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th run of the graph raises; whoever is told so may ask again, the others have their texts.

    Rows do not step together in graphs of others, which may not leave padding out: then a run is one caller's.
    """

    def rows(count: int) -> Decoder:
        made = model.generator.opened.new_rows(count)
        made.can_batch_decode &= steps_together
        return made

    used, requests = model.generator.engine.scheduler, [request_of(model, number) for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(used, "new_decoder", rows)
        fail_at(patched, model, at)
        work_off(used, *requests)
    for number, request in enumerate(requests):
        if request.error is not None:
            assert isinstance(request.error, ModelError)
        else:
            assert request.continuation.result().token_ids == expected[number].token_ids
    failed = sum(request.error is not None for request in requests)
    assert failed == 1 or (steps_together and failed)
    assert model.generate(PROMPTS[1], **options_of(1)).text == expected[1].text


def test_an_interrupt_in_the_middle_of_a_run_is_told_to_all_and_leaves_the_model_usable(
    model: Model, expected: list, monkeypatch
) -> None:
    other = model.stream(BEGIN, max_new_tokens=50, seed=2, ignore_eos=True)
    next(other)
    with monkeypatch.context() as patched:
        patched.setattr(type(model.graph.ort), "run_with_iobinding", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            model.generate("A", max_new_tokens=3)
    with pytest.raises(ModelError, match=r"another call was interrupted \(KeyboardInterrupt\) in the middle"):
        list(other)
    assert model.generate(PROMPTS[1], **options_of(1)).text == expected[1].text
    assert is_idle(model)


def test_what_goes_wrong_with_one_request_is_its_own(model: Model, expected: list) -> None:
    def complain(progress: object) -> None:
        raise ValueError("enough")

    stream = model.stream(PROMPTS[1], **options_of(1))
    texts = [next(stream).text]
    with pytest.raises(ValueError, match="enough"):
        list(model.stream(BEGIN, max_new_tokens=3, on_progress=complain))
    with pytest.raises(OptionError):
        model.generate("A", top_k=-1)
    with pytest.raises(PromptError):
        model.generate("")
    texts += [chunk.text for chunk in stream]
    assert "".join(texts) == expected[1].text


def test_cancels_at_random_moments_leave_every_other_text_as_it_is(model: Model, expected: list) -> None:
    random.seed(5)

    def ask(number: int) -> str:
        return model.generate(PROMPTS[number % len(PROMPTS)], **options_of(number)).text

    def give_up(_: int) -> str | None:
        cancel = Cancellation()
        threading.Timer(random.uniform(0, 0.03), cancel.cancel).start()
        return model.generate(list(range(2, 300)), max_new_tokens=100, cancel=cancel, ignore_eos=True).finish_reason

    with ThreadPoolExecutor(2) as impatient, ThreadPoolExecutor(4) as patient:
        reasons, texts = impatient.map(give_up, range(50)), patient.map(ask, range(28))
        assert list(texts) == [each.text for each in expected]
        assert set(reasons) <= {"cancelled", "length"}
    assert is_idle(model)


def test_a_deadline_holds_for_those_who_wait_for_a_row(model: Model) -> None:
    streams = [model.stream(BEGIN, max_new_tokens=300, seed=1, ignore_eos=True) for _ in range(4)]
    for stream in streams:
        next(stream)
    assert model.generate("A", max_new_tokens=5, max_time=0.05).finish_reason == "deadline"
    for stream in streams:
        stream.close()


def test_asyncio_calls_run_side_by_side(model: Model, expected: list) -> None:
    async def one(number: int) -> str:
        prompt, options = PROMPTS[number % len(PROMPTS)], options_of(number)
        if number % 2:
            return "".join([chunk.text async for chunk in model.astream(prompt, **options)])
        return (await model.agenerate(prompt, **options)).text

    async def everything() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(12)))

    assert asyncio.run(everything()) == [each.text for each in expected[:12]]
    assert [each.text for each in asyncio.run(model.agenerate(PROMPTS[:2], max_new_tokens=3, seed=1))] == [
        model.generate(prompt, max_new_tokens=3, seed=1).text for prompt in PROMPTS[:2]
    ]
    with pytest.raises(OptionError):
        asyncio.run(model.agenerate("A", top_k=-1))


def test_a_task_that_is_cancelled_and_a_stream_that_is_left_end_the_work(model: Model) -> None:
    async def leave() -> int:
        task = asyncio.create_task(model.agenerate(BEGIN, max_new_tokens=400, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        count = 0
        async with contextlib.aclosing(model.astream(BEGIN, max_new_tokens=400, ignore_eos=True)) as chunks:
            async for _ in chunks:
                count += 1
                if count == 3:
                    break
        return count

    assert asyncio.run(leave()) == 3
    deadline = time.monotonic() + 20
    while not is_idle(model) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_idle(model)


def test_the_number_of_rows_is_checked() -> None:
    for wrong in (0, 257, "4"):
        with pytest.raises(OptionError, match="batch_size should be"):
            onnx_textgen.load(batch_size=wrong)


@pytest.mark.slow
def test_thirty_two_threads_of_fifty_short_requests_never_stall(exact: Model) -> None:
    """The last ones have nobody but each other to lead."""
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, batch_size=5)

    def ask(number: int, *, streams: bool = False) -> tuple[int, ...]:
        prompt, options = [7 + number, 9], {"max_new_tokens": 1 + number % 4, "seed": number}
        if streams:
            return tuple(i for chunk in model.stream(prompt, **options) for i in chunk.token_ids)
        return model.generate(prompt, **options).token_ids

    want = {number: ask(number) for number in range(16)}
    with ThreadPoolExecutor(32) as pool:
        asked = [(7 * turn % 16, pool.submit(ask, 7 * turn % 16, streams=turn % 3 == 0)) for turn in range(1600)]
        assert all(each.result() == want[number] for number, each in asked)
    assert is_idle(model)


def test_a_thread_that_is_interrupted_lets_another_lead(model: Model, expected: list) -> None:
    """It may have been chosen to lead the moment before, or have begun to."""
    turns, used = model.generator.engine.turns, model.generator.engine.scheduler
    gone, other = requests = [request_of(model, 1) for _ in range(2)]
    for request in requests:
        used.submit(request)
    other_waits = threading.Thread(target=turns.wait_for, args=(other,), daemon=True)
    turns.leader = gone  # as a thread that is interrupted before its first turn
    other_waits.start()
    turns.join = lambda request: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        turns.wait_for(gone)
    del turns.join  # type: ignore[method-assign]
    gone.is_abandoned = True
    other_waits.join(60)
    assert not other_waits.is_alive()
    while not other.is_done:
        used.step()
    assert other.continuation.result().text == expected[1].text


def test_progress_is_told_in_the_callers_own_thread_and_may_ask_the_model(model: Model, expected: list) -> None:
    told: list[tuple[int, str]] = []

    def tell(progress: Progress) -> None:
        told.append((threading.get_ident(), model.generate(PROMPTS[1], **options_of(1)).text))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.generate, BEGIN, max_new_tokens=60, seed=1, ignore_eos=True)
        list(model.stream(list(range(2, 300)), max_new_tokens=3, on_progress=tell))
    assert set(told) == {(threading.get_ident(), expected[1].text)}
    assert is_idle(model)


def test_progress_that_ends_the_process_is_the_callers_alone(model: Model, expected: list) -> None:
    stream = model.stream(PROMPTS[1], **options_of(1))
    texts = [next(stream).text]
    with pytest.raises(SystemExit):
        list(model.stream(BEGIN, max_new_tokens=3, on_progress=lambda progress: sys.exit(3)))
    assert "".join([*texts, *(chunk.text for chunk in stream)]) == expected[1].text


def test_asking_the_model_in_a_signal_handler_is_an_error_and_no_stall(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real, caught = type(model.graph.ort).run_with_iobinding, list[str]()

    def run(*given: object) -> object:  # where a handler would run: in the thread that leads, in the middle of a turn
        with pytest.raises(OptionError) as refused:
            model.generate("A", max_new_tokens=1)
        caught.append(str(refused.value))
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(type(model.graph.ort), "run_with_iobinding", run)
        model.generate("The dog", max_new_tokens=2)
    assert all("inside a run of the model" in each for each in caught)
    assert model.generate("A", max_new_tokens=1).finish_reason
    assert is_idle(model)


def test_rows_that_cannot_be_made_are_an_error_of_the_request(
    model: Model, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            model.generator.engine.scheduler, "new_decoder", lambda rows: (_ for _ in ()).throw(ModelError("no memory"))
        )
        for _ in range(2):
            with pytest.raises(ModelError, match="no memory"):
                model.generate("A", max_new_tokens=1)
    assert model.generate(PROMPTS[1], **options_of(1)).text == expected[1].text
    assert is_idle(model)


def test_a_cancellation_may_come_while_its_own_thread_is_inside_it() -> None:
    """As from a signal handler."""
    cancel = Cancellation()
    scope = CancelScope(cancel)
    with cancel._lock, scope._lock, scope.active():
        cancel.cancel()
    assert scope.reason == "cancelled"


def test_a_stream_never_loses_its_last_chunk(exact: Model) -> None:
    """The thread that leads may end a text in between any two lines of the thread that takes its chunks."""
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, batch_size=4)

    def ask(number: int) -> tuple[str | None, int]:
        chunks = list(model.stream([5, 9], max_new_tokens=2, seed=number, ignore_eos=True))
        return chunks[-1].finish_reason, sum(len(chunk.token_ids) for chunk in chunks)

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(5e-6)
        with ThreadPoolExecutor(6) as pool:
            assert set(pool.map(ask, range(900))) == {("length", 2)}
    finally:
        sys.setswitchinterval(before)


def test_a_copy_that_cannot_be_kept_costs_no_text(model: Model, expected: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.generator.prefixes, "keep", lambda *given, **options: (_ for _ in ()).throw(MemoryError()))
    assert model.generate(PROMPTS[1], **options_of(1)).text == expected[1].text
