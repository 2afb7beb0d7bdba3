"""Decoders of every kind of cache compute what NumPy computes without one: head sizes of their own, states, one token at a time."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession
from onnx_textgen.errors import ModelError, PackageError, PromptError
from onnx_textgen.inference.capabilities import check_graph
from onnx_textgen.inference.graph_runner import GraphRunner
from onnx_textgen.inference.prefill import Progress, prefill
from onnx_textgen.kv_cache.recurrent_states import States
from support.cache_graphs import CONTEXT, GRAPHS, VOCAB_SIZE, Attention, Recurrent, Tiny
from support.examples import examples

IDS = [5, 9, 1, 0, 28, 3, 3, 7, 11, 2, 4, 8, 19, 19, 6, 21, 13, 2]
TEXTS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24)
ROWS = 3
SETTINGS = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])

Case = tuple[Tiny, OnnxRuntimeSession]


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    tiny = GRAPHS[request.param]
    return tiny, tiny.open(tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Case:
    tiny = GRAPHS["states and a growing cache"]
    return tiny, tiny.open(tmp_path_factory.mktemp("graph"))


def check(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@given(ids=TEXTS, data=st.data())
@SETTINGS
def test_a_text_fed_at_once_and_in_any_pieces_has_the_same_logits(case: Case, ids: list[int], data: st.DataObject) -> None:
    tiny, session = case
    want = tiny.logits(ids)
    check(tiny.decoder(session).feed(ids, every_position=True), want)
    check(tiny.decoder(session).feed(ids)[0], want[-1])
    decoder, start = tiny.decoder(session), 0
    while start < len(ids):
        size = data.draw(st.integers(1, len(ids) - start))
        check(decoder.feed(ids[start : start + size], every_position=True), want[start : start + size])
        start += size
    assert decoder.token_ids == [ids]


ACTIONS = st.one_of(
    st.tuples(st.just("feed"), st.integers(0, ROWS - 1), st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=5)),
    st.tuples(
        st.just("step"),
        st.lists(st.booleans(), min_size=1, max_size=ROWS),  # of so many rows, from the first on
        st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=ROWS, max_size=ROWS),
    ),
    st.tuples(st.sampled_from(["fork", "restore"]), st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)),
    st.tuples(st.just("rewind"), st.integers(0, ROWS - 1), st.floats(0, 1)),
    st.tuples(st.just("keep"), st.integers(0, ROWS - 1), st.none()),
)


@given(actions=st.lists(ACTIONS, max_size=14))
@SETTINGS
def test_rows_that_feed_step_idle_and_rewind_in_any_order_are_rows_alone(case: Case, actions: list) -> None:
    tiny, session = case
    decoder = tiny.decoder(session, ROWS)
    for action, which, value in actions:
        if action == "feed":
            check(decoder.feed(value, row=which)[0], tiny.logits(decoder.token_ids[which])[-1])
        elif action == "rewind":
            held = decoder.token_ids[which]
            decoder.rewind(decoder.reusable(held[: int(value * len(held))], row=which), row=which)
        elif action == "keep":
            decoder.keep(row=which)
        elif action == "fork":
            decoder.fork(which, value)
            assert decoder.token_ids[which] == decoder.token_ids[value]
        elif action == "restore":
            snapshot = decoder.snapshot(row=which)
            decoder.restore(snapshot, snapshot.usable(len(snapshot.token_ids)), row=value)
        else:
            logits = decoder.step(value[: len(which)], which)
            for row in np.flatnonzero(which):
                check(logits[row], tiny.logits(decoder.token_ids[row])[-1])
        assert decoder.cache.lengths == [len(ids) for ids in decoder.token_ids]


def test_rows_of_a_batch_are_stepped_together_in_one_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, session = case
    decoder, shapes = tiny.decoder(session, ROWS), []
    run = GraphRunner.run
    monkeypatch.setattr(GraphRunner, "run", lambda *given, **more: shapes.append(given[2].shape) or run(*given, **more))
    decoder.step([1, 2, 3], [True, False, True])
    assert shapes == [(ROWS, 1)]


def test_a_graph_that_takes_one_token_is_run_once_per_token_and_stops_where_it_fails(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, session = case
    if not tiny.one_by_one:
        pytest.skip("takes several tokens at a time")
    decoder, end = tiny.decoder(session), States.end

    def fail_at_the_fourth(self: States, *args: object) -> None:
        if len(decoder.token_ids[0]) == 3:
            raise MemoryError
        end(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(States, "end", fail_at_the_fourth)
        with pytest.raises(ModelError):
            decoder.feed(IDS)
    assert decoder.token_ids == [IDS[:3]]
    check(decoder.feed(IDS[3:])[0], tiny.logits(IDS)[-1])


def test_a_failed_run_leaves_the_states_as_they_were(stateful: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, session = stateful
    decoder = tiny.decoder(session, ROWS)
    for row in range(ROWS):
        for token in IDS[: row + 1]:  # so many runs that their states lie in different buffers
            decoder.feed([token], row=row)

    def fail(*args: object) -> None:
        raise MemoryError

    for name in ("read", "write", "bind", "end"):
        with monkeypatch.context() as patch:
            patch.setattr(States, name, fail)
            with pytest.raises(ModelError):
                decoder.step([1, 2, 3], [True, True, False])
    logits = decoder.step([4, 5, 6], [True] * ROWS)
    for row in range(ROWS):
        check(logits[row], tiny.logits(decoder.token_ids[row])[-1])


def test_states_go_back_to_the_beginning_or_to_what_was_kept_and_say_so_elsewhere(stateful: Case) -> None:
    tiny, session = stateful
    decoder = tiny.decoder(session)
    decoder.feed(IDS[:6])
    decoder.keep()
    decoder.feed(IDS[6:])
    with pytest.raises(PromptError, match="cannot rewind to 9 tokens: this model's states cannot return there; rewind to 0"):
        decoder.rewind(9)
    assert decoder.token_ids == [IDS]
    assert [decoder.reusable(IDS[:length]) for length in (len(IDS), 9, 6, 5)] == [6, 6, 0, 0]
    for again in ([1, 2, 3], [4]):
        decoder.rewind(6)
        check(decoder.feed(again)[0], tiny.logits(IDS[:6] + again)[-1])
    decoder.rewind(0)
    check(decoder.feed(IDS[9:])[0], tiny.logits(IDS[9:])[-1])  # longer than what was kept of the text before
    assert [decoder.reusable(IDS[9:][:length]) for length in (6, 7)] == [0, 0]


def test_keys_and_values_alone_go_back_to_any_length(case: Case) -> None:
    tiny, session = case
    decoder = tiny.decoder(session)
    if decoder.capabilities.has_states:
        pytest.skip("has states")
    decoder.feed(IDS)
    for length in (11, 4, 1, 0):
        assert decoder.reusable(IDS[:length]) == max(0, length - 2) // 2 * 2  # two are fed at least, from an even place on
        decoder.rewind(length)
        check(decoder.feed([9])[0], tiny.logits([*IDS[:length], 9])[-1])
        decoder.rewind(length)


def test_a_row_that_was_rewound_has_memory_of_its_own(tmp_path) -> None:
    tiny = Tiny((Attention(0, 1, 6, 4),))  # with one head, the beginning of a tensor is one piece of its memory
    decoder = tiny.decoder(tiny.open(tmp_path))
    decoder.feed(IDS)
    before = decoder.cache.per_row[0]
    decoder.rewind(len(IDS) - 1)
    for name, value in decoder.cache.per_row[0].items():
        assert not before[name].data_ptr() <= value.data_ptr() < before[name].data_ptr() + before[name].tensor_size_in_bytes()


def test_a_prompt_that_comes_again_or_goes_on_is_not_computed_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, session = case
    decoder, fed = tiny.decoder(session), []
    run = GraphRunner.run
    monkeypatch.setattr(GraphRunner, "run", lambda *given, **more: fed.append(given[2].size) or run(*given, **more))
    longer, other = [*IDS[:9], 17, 18, 20], [1, 2, 3, 4]
    odd, even = (1, 1) if decoder.capabilities.has_states else (3, 2)  # keys and values are gone on from at an even place
    for prompt, new in ((IDS[:9], 9), (IDS[:9], odd), (longer, 4), (longer, even), (other, 4)):
        fed.clear()
        check(prefill(decoder, prompt), tiny.logits(prompt)[-1])
        assert (decoder.token_ids, sum(fed)) == ([prompt], new)
        for token in IDS[9:12]:
            decoder.feed([token])


def test_a_long_prompt_reports_and_can_be_stopped_between_its_parts(case: Case) -> None:
    tiny, session = case
    decoder, prompt, told = tiny.decoder(session), (IDS * 5)[:40], list[Progress]()

    def stop(progress: Progress) -> None:
        told.append(progress)
        if tiny.one_by_one:
            raise KeyboardInterrupt

    if tiny.one_by_one:
        with pytest.raises(KeyboardInterrupt):
            prefill(decoder, prompt, on_progress=stop)
        assert decoder.token_ids == [prompt[:16]]
    check(prefill(decoder, prompt), tiny.logits(prompt)[-1])
    assert prefill(tiny.decoder(session), prompt, on_progress=told.append) is not None
    assert told[-1] == Progress(40, 40)
    assert told[-2].done < 40 if decoder.capabilities.has_states else len(told) > 0


def test_a_text_may_fill_the_context_and_no_more(case: Case) -> None:
    tiny, session = case
    decoder, ids = tiny.decoder(session), [i % VOCAB_SIZE for i in range(CONTEXT)]
    check(decoder.feed(ids)[0], tiny.logits(ids)[-1])
    with pytest.raises(PromptError, match="do not fit in the context"):
        decoder.feed([1])


@pytest.mark.parametrize("alone", [False, True])
def test_float16_in_the_graph_is_float16_in_the_cache_and_float32_outside(alone: bool, tmp_path) -> None:
    layers = (Recurrent(0, kept_as=np.float16),) if alone else (Recurrent(0, kept_as=np.float16), Attention(1, 2, 6, 4))
    tiny = Tiny(layers, element=np.float16)
    decoder = tiny.decoder(tiny.open(tmp_path), ROWS)
    assert {tensor.dtype for tensor in decoder.cache.tensors if "conv" not in tensor.past} == {np.dtype(np.float16)}
    decoder.feed(IDS[:5], row=1)
    logits = decoder.step([1, 2, 3], [True] * ROWS)
    assert logits.dtype == np.float32
    for row in range(ROWS):
        want = tiny.logits(decoder.token_ids[row])[-1]
        np.testing.assert_allclose(logits[row], want, atol=1e-2 * np.abs(want).max())


def changed(session: OnnxRuntimeSession, **shapes: tuple[list, str] | None) -> OnnxRuntimeSession:
    """The session as if some of its inputs and outputs had other shapes and types, or were missing."""
    names = {name.replace("__", "."): value for name, value in shapes.items()}
    sides = [
        {name: names.get(name, value) for name, value in side.items() if names.get(name, value) is not None}
        for side in (session.inputs, session.outputs)
    ]
    return dataclasses.replace(session, inputs=sides[0], outputs=sides[1])


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"present__1__key": None}, "lacks the output 'present.1.key'"),
        ({"present__1__key": (["batch", 3, "total_length", 6], "tensor(float)")}, "does not fit its input"),
        ({"present__1__key": (["batch", 2, "total_length", 6], "tensor(float16)")}, "does not fit its input"),
        ({"present_conv__0": (["batch", 2], "tensor(float)")}, "does not fit its input"),
        ({"past_conv__0": (["batch", 2, "a", "b"], "tensor(float)")}, "does not fit its input"),
        ({"past_conv__0": (["batch", 2, 8], "tensor(int64)")}, r"holds tensor\(int64\), not float"),
        ({"input_ids": (["batch", 4], "tensor(int64)")}, r"takes input_ids as \['batch', 4\], not \[batch, tokens\]"),
        ({"logits": (["batch", "tokens", 7], "tensor(float)")}, r"requires \[any, any, 29\]"),
        ({"present__1__value": (["batch", 2, "past_length", 4], "tensor(float)")}, "updates some keys and values in place"),
        (dict.fromkeys(f"past_{x}" for x in ("conv__0", "recurrent__0", "conv__2", "recurrent__2")), None),
    ],
)
def test_a_graph_whose_cache_is_not_whole_is_refused_in_one_line(stateful: Case, shapes: dict, expected: str | None) -> None:
    tiny, session = stateful
    if expected is None:
        check_graph(changed(session, **shapes), tiny.geometry)  # fewer states are still a cache
        return
    with pytest.raises(PackageError, match=expected) as caught:
        check_graph(changed(session, **shapes), tiny.geometry)
    assert "\n" not in str(caught.value)


def test_a_graph_of_one_row_steps_its_rows_one_after_the_other(stateful: Case) -> None:
    tiny, session = stateful
    decoder = tiny.decoder(changed(session, input_ids=([1, "tokens"], "tensor(int64)")), ROWS)
    assert not decoder.can_batch_decode
    assert not tiny.decoder(changed(session, attention_mask=None), ROWS).can_batch_decode  # nor without a mask
    decoder.feed(IDS[:4], row=1)
    logits = decoder.step([1, 2, 3], [True, True, False])
    for row in (0, 1):
        check(logits[row], tiny.logits(decoder.token_ids[row])[-1])


def test_a_graph_that_carries_nothing_is_refused(stateful: Case) -> None:
    tiny, session = stateful
    inputs = {name: value for name, value in session.inputs.items() if not name.startswith("past_")}
    with pytest.raises(PackageError, match="has no cache, so it would forget"):
        check_graph(dataclasses.replace(session, inputs=inputs), tiny.geometry)
