"""Layers with a window hold the end of a text, and texts are those of NumPy over all of it: several windows long, and rewound.

What is held and forgotten is made small here, so that short texts cross it often.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from hypothesis import example, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.api.prefix_folder import PrefixFolder
from onnx_textgen.backends import window
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.backends.window import Window
from onnx_textgen.backends.windowed_graph import windowed_model
from onnx_textgen.cli import run
from onnx_textgen.errors import PackageError, PromptError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.inference.prefix_cache import PrefixStore
from onnx_textgen.kv_cache import memory_plan
from onnx_textgen.kv_cache.shared import SharedCache
from onnx_textgen.package.manifest import GRAPH
from support.cache_graphs import CONTEXT, VOCAB_SIZE, Attention, Builder, Recurrent, Tiny
from support.examples import examples

SMALL = {"STEP": 8, "REACH": 12, "PART": 4}
MIXED = Tiny((Attention(0, shared=True, window=5), Attention(1, 1, 16, 16, shared=True), Attention(2, shared=True, window=3)))
ALL = Tiny((Attention(0, shared=True, window=5), Attention(1, shared=True, window=5)))
WITH_STATES = Tiny((Recurrent(0), Attention(1, shared=True, window=5)))
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def small() -> pytest.MonkeyPatch:
    with pytest.MonkeyPatch.context() as patch:
        for name, number in SMALL.items():
            patch.setattr(window, name, number)
        assert Window(5).capacity == 28
        yield patch


@pytest.fixture(scope="module", params=[MIXED, ALL], ids=["mixed", "all"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param.package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return onnx_textgen.load(folder, device="cpu", threads=1, exact_history=True)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Model:
    return onnx_textgen.load(folder, device="cpu", threads=1, whole_past=True, exact_history=True)


@pytest.fixture(scope="module")
def usual(model: Model) -> Model:
    """Without an exact history; token 28 ends a message."""
    return Model(model.folder, dataclasses.replace(model.manifest, eos_ids=(28,)), model.graph, chat_template=None)


def tiny_of(model: Model) -> Tiny:
    return MIXED if any(tensor.window is None for tensor in model.graph.cache_tensors) else ALL


def ids_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


def check(logits: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(logits, wanted, atol=2e-4 * np.abs(wanted).max())


def test_buffers_of_a_window_have_a_limit_and_others_none(model: Model, whole: Model) -> None:
    for opened, limit in ((model, 28), (whole, 90)):
        decoder = opened.new_context()
        prefill(decoder, ids_of(90))
        assert isinstance(decoder.cache, SharedCache)
        sizes = {name: buffer.numpy().shape[2] for name, buffer in decoder.cache.buffers.items()}
        assert sizes["past_key_values.0.key"] == limit or (opened is whole and sizes["past_key_values.0.key"] >= limit)
        if tiny_of(model) is MIXED:
            assert sizes["past_key_values.1.key"] >= 90


@pytest.mark.parametrize("sizes", [[90], [1] * 90, [2, 7, 1, 30, 50], [27, 1, 1, 1, 60], [28, 62], [29, 61]])
def test_logits_are_those_of_numpy_however_a_text_is_divided(model: Model, sizes: list[int]) -> None:
    ids, decoder, parts, start = ids_of(90), model.new_context(), [], 0
    for size in sizes:
        parts.append(decoder.feed(ids[start : start + size], every_position=True))
        start += size
    check(np.concatenate(parts), tiny_of(model).logits(ids))


def test_keys_and_values_do_not_depend_on_how_a_prompt_is_divided(model: Model) -> None:
    """Parts of two tokens and more from even places: so a prompt may reuse what another one left."""
    ids, found = ids_of(88, seed=4), []
    for size in (88, 2, 6, 22, 34):
        decoder = model.new_context()
        for start in range(0, 88, size):
            decoder.feed(ids[start : start + size])
        found.append((decoder.exact_length[0], decoder.cache.take(0, 88), decoder.feed([3]).copy()))
    for length, arrays, logits in found:
        assert length == 88
        assert all(np.array_equal(array, found[0][1][name]) for name, array in arrays.items())
        assert np.array_equal(logits, found[0][2])


Action = tuple[str, int, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "step", "mark", "rewind", "fork", "restore", "prompt"]),
        st.integers(0, 2),
        st.integers(1, 40),
    ),
    min_size=3,
    max_size=14,
)


@given(actions=ACTIONS, seed=st.integers(0, 99), exact=st.booleans())
@example(actions=[("feed", 0, 21), ("feed", 0, 1), ("feed", 0, 15), ("restore", 0, 1)], seed=0, exact=True)  # nothing is usable
@examples(60)
def test_whatever_is_done_to_rows_each_goes_on_as_its_own_text(model: Model, actions: list[Action], seed: int, exact: bool) -> None:
    """Against NumPy, which knows no cache: fed, stepped, rewound as far as `nearest` says, copied, taken and put."""
    tiny, draw = tiny_of(model), np.random.default_rng(seed)
    decoder = Decoder(model.graph, model.manifest.geometry, rows=3, exact_history=exact)
    longest = [0.0] * 3  # of each row since it was empty; what was lent by another row may be no longer than a window

    def drawn(count: int) -> list[int]:
        return draw.integers(0, VOCAB_SIZE, count).tolist()

    for action, row, size in actions:
        held = len(decoder.token_ids[row])
        if action == "feed" and held + size <= CONTEXT:
            logits = decoder.feed(drawn(size), row=row)
            check(logits[-1], tiny.logits(decoder.token_ids[row])[-1])
        elif action == "step" and max(map(len, decoder.token_ids)) < CONTEXT:
            active = [other == row or bool(draw.integers(2)) for other in range(3)]
            logits = decoder.step(drawn(3), active)
            for other in range(3):
                if active[other]:
                    check(logits[other], tiny.logits(decoder.token_ids[other])[-1])
        elif action == "mark":
            decoder.mark([held, held + size], row=row)
        elif action == "rewind":
            length = decoder.nearest(max(0, held - size), row=row)
            assert held - size < max(0, longest[row] - SMALL["REACH"]) or length == held - size
            decoder.rewind(length, row=row)
        elif action == "fork":
            decoder.fork(row, target := (row + 1) % 3)
            longest[target] = longest[row]
        elif action == "restore":
            snapshot = decoder.snapshot(row=row)
            length = snapshot.usable(max(0, len(snapshot.token_ids) - size % 5))
            decoder.restore(snapshot, length, row=(target := (row + 2) % 3))
            longest[target] = float("inf")
        elif action == "prompt":
            prompt = (decoder.token_ids[row][: held - size % 7] + drawn(2))[:CONTEXT]
            if prompt:
                check(prefill(decoder, prompt, row=row), tiny.logits(prompt)[-1])
        longest = [max(before, len(ids)) if ids else 0.0 for before, ids in zip(longest, decoder.token_ids, strict=True)]


def test_a_row_returns_to_the_end_of_its_prompt_after_a_long_answer(model: Model) -> None:
    decoder, prompt = model.new_context(), ids_of(40)
    prefill(decoder, prompt)
    answer = ids_of(50, seed=1)
    for token_id in answer:
        decoder.feed([token_id])
    assert decoder.nearest(20) == 0 and decoder.nearest(60) == 40
    with pytest.raises(PromptError, match="cannot rewind to 20 tokens: this model's windows cannot return there; rewind to 0"):
        decoder.rewind(20)
    assert decoder.token_ids[0] == prompt + answer
    longer = [*prompt, *answer[:30], 5, 6]
    assert decoder.reusable(longer) == 40
    logits = prefill(decoder, longer).copy()
    assert np.array_equal(logits, prefill(model.new_context(), longer))
    check(logits, tiny_of(model).logits(longer)[-1])


def test_a_row_returns_to_each_length_that_it_marked_and_a_snapshot_of_it_too(model: Model) -> None:
    """Lengths far apart, from which the buffers have gone on; the reach before each is there too."""
    decoder, ids, marks = model.new_context(), ids_of(90), [17, 38, 55]
    decoder.mark(marks)
    prefill(decoder, ids)
    snapshot = decoder.snapshot()
    for length in (60, 55, 50, 38, 30, 20, 17, 10, 5):
        known = max((mark for mark in marks if mark <= length), default=0)
        nearest = length if any(mark - 12 <= length <= mark for mark in marks) else known
        assert decoder.nearest(length) == snapshot.usable(length) == nearest
        other = model.new_context()
        other.restore(snapshot, nearest)
        part = snapshot.beginning(nearest, decoder.cache.tensors)
        third = model.new_context()
        third.restore(part, len(part.token_ids))
        assert other.nearest(20) == third.nearest(20) == decoder.nearest(20) if nearest > 20 else True
        for each in (other, third):
            logits = prefill(each, [*ids[:nearest], 3, 4])
            check(logits, tiny_of(model).logits([*ids[:nearest], 3, 4])[-1])
    for length in reversed(marks):
        decoder.rewind(length)
        check(decoder.feed([7, 8])[-1], tiny_of(model).logits([*ids[:length], 7, 8])[-1])


def test_copies_have_a_limit_of_which_the_first_and_the_last_remain(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, left in ((6, [8, 36, 50, 64, 78, 92]), (2, [8, 92]), (1, [92])):
        copy_bytes = sum(each.bytes_for(17) for each in model.graph.cache_tensors if each.window)
        monkeypatch.setattr(memory_plan, "MOST_COPY_BYTES", most * copy_bytes)
        decoder = model.new_context()
        for length in range(8, 93, 14):
            prefill(decoder, ids_of(length))
        assert decoder.cache.windows.marks[0] == left
        assert set(decoder.cache.windows.copies[0]) <= set(left)


def test_answers_stay_for_the_next_turn_and_prompts_without_them_return(usual: Model) -> None:
    """Agents change the end of a prompt, templates drop earlier thinking, and chats begin with the same system message."""
    tiny, system, prompt = tiny_of(usual), [*ids_of(19, 1), 28], [*ids_of(19, 1), 28, *ids_of(29, 2)]
    answer = list(usual.generate(prompt, max_new_tokens=41, **GREEDY).token_ids)
    for following, reused in (
        ([*prompt, *answer, 5, 6], 88),
        ([*prompt, *answer[20:], 5, 6], 48),
        ([*prompt[:-3], 5, 6, 7], 46),
        ([*system, *ids_of(30, 5)], 20),
    ):
        found = usual.generate(following, max_new_tokens=1, **GREEDY)
        assert found.stats.reused_tokens == reused
        assert list(found.token_ids) == [int(tiny.logits(following)[-1, :28].argmax())]  # 28, the last one, ends a text


def test_saved_prompts_with_copies_leave_the_others(usual: Model, tmp_path: Path) -> None:
    """A chat whose messages end before the window is saved without its copies, and without a claim on others' bytes."""
    folder = PrefixFolder(tmp_path / "prefixes", 10**9, usual.generator.opened)
    store = PrefixStore(10**9, folder)
    for prompt in (ids_of(80, 1), ids_of(80, 2), [*ids_of(19, 3), 28, *ids_of(60, 4)]):
        decoder = usual.new_context()
        decoder.mark([20])
        prefill(decoder, [*prompt, *ids_of(5)])
        store.keep(decoder, len(prompt))
        folder.writer.submit(lambda: None).result()
    assert decoder.snapshot().windows, "there are copies"
    assert len(list((tmp_path / "prefixes").glob("*.npz"))) == 3 == len(folder.paths)
    folder.refresh(decoder)
    assert len(folder.paths) == 3
    folder.close()


def test_a_store_too_small_for_copies_keeps_the_end_of_a_text(usual: Model) -> None:
    decoder = usual.new_context()
    decoder.mark([17, 38, 55])
    prefill(decoder, ids_of(90))
    whole = decoder.snapshot()
    store = PrefixStore(sum(each.bytes_for(90) for each in usual.graph.cache_tensors) + 1)
    assert whole.size_bytes > store.size_bytes
    store.keep(decoder, 90)
    assert 0 < store.held_bytes <= store.size_bytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"num_beams": 3, "num_return_sequences": 2, "temperature": None},
        {"prompt_lookup_num_tokens": 6},
        {"prompt_lookup_num_tokens": 6, "draft_verification": "fast"},
        {"context_limit": "shift", "max_new_tokens": 120},
    ],
)
def test_texts_are_those_over_the_whole_past(model: Model, whole: Model, options: dict) -> None:
    wanted = {key: value for key, value in {"max_new_tokens": 70, **GREEDY, **options}.items() if value is not None}
    prompt = ids_of(9, seed=2) * 2
    found = model.generate(prompt, **wanted)
    assert found.token_ids == whole.generate(prompt, **wanted).token_ids
    if options == {}:
        assert list(found.token_ids) == tiny_of(model).greedy(prompt, 70)
    if "prompt_lookup_num_tokens" in options:
        assert found.stats.accepted_tokens > 5


def test_a_list_of_prompts_of_all_lengths_gives_the_texts_of_each_alone(model: Model) -> None:
    prompts = [ids_of(length, seed=length) for length in (3, 41, 17, 60, 1, 26, 27, 28, 29, 12)]
    tiny = tiny_of(model)
    for prompt, found in zip(prompts, model.generate(prompts, max_new_tokens=30, **GREEDY), strict=True):
        assert list(found.token_ids) == tiny.greedy(prompt, 30)


def test_a_session_goes_on_after_long_answers_is_rewound_forked_and_saved(model: Model, whole: Model, tmp_path: Path) -> None:
    tiny, session = tiny_of(model), model.session()
    session.append(ids_of(30))
    session.generate(max_new_tokens=35, **GREEDY)
    session.append([4, 4])
    text = list(session.token_ids)
    second = session.generate(max_new_tokens=6, **GREEDY)
    assert list(second.token_ids) == tiny.greedy(text, 6)
    assert second.stats.reused_tokens == 30
    session.save(tmp_path / "a.session")
    again, other = model.load_session(tmp_path / "a.session"), session.fork()
    wanted = tiny.greedy(list(session.token_ids), 6)
    for each in (again, other):
        found = each.generate(max_new_tokens=6, **GREEDY)
        assert list(found.token_ids) == wanted and found.stats.reused_tokens == 66
    session.rewind(10)  # which the windows have forgotten: it is computed again
    back = session.generate(max_new_tokens=6, **GREEDY)
    assert list(back.token_ids) == tiny.greedy(ids_of(30)[:10], 6) and back.stats.reused_tokens == 0


def test_a_session_with_the_whole_past_opens_with_windows_and_not_the_other_way(model: Model, whole: Model, tmp_path: Path) -> None:
    """Earlier versions have saved such sessions."""
    session = whole.session()
    session.append(ids_of(60))
    session.generate(max_new_tokens=4, **GREEDY)
    session.save(tmp_path / "whole.session")
    found = model.load_session(tmp_path / "whole.session").generate(max_new_tokens=6, **GREEDY)
    assert list(found.token_ids) == tiny_of(model).greedy(list(session.token_ids), 6)
    assert found.stats.reused_tokens == 60
    session = model.session()
    session.append(ids_of(60))
    session.generate(max_new_tokens=4, **GREEDY)
    session.save(tmp_path / "windows.session")
    with pytest.raises(PackageError, match=r"windows\.session is not a saved session, or is damaged"):
        whole.load_session(tmp_path / "windows.session")


def test_prompts_that_begin_alike_reuse_what_the_windows_still_have(folder: Path, whole: Model, tmp_path: Path) -> None:
    model = onnx_textgen.load(folder, device="cpu", threads=1, prefix_folder=tmp_path / "prefixes")
    tiny, prompt = tiny_of(model), ids_of(80, seed=6)
    options = {"max_new_tokens": 5, **GREEDY}
    assert model.generate(prompt, **options).stats.reused_tokens == 0
    for other, reused in (([*prompt[:76], 1, 2], 76), (prompt, 78), ([*prompt[:40], 9, 9], 0)):
        found = model.generate(other, **options)
        assert (list(found.token_ids), found.stats.reused_tokens) == (tiny.greedy(other, 5), reused)
    assert model.generate([*prompt[:76], 3, 4], **options).stats.reused_tokens == 76, "the shorter prompt has not replaced it"
    whole.generate(prompt, **options)
    assert whole.generate([*prompt[:40], 9, 9], **options).stats.reused_tokens == 40
    model.close()
    reopened = onnx_textgen.load(folder, device="cpu", threads=1, prefix_folder=tmp_path / "prefixes")
    found = reopened.generate([*prompt[:76], 1, 2], **options)
    assert (list(found.token_ids), found.stats.reused_tokens) == (tiny.greedy([*prompt[:76], 1, 2], 5), 76)
    reopened.close()


def test_states_beside_windows_go_on_from_where_both_can(tmp_path: Path) -> None:
    model = onnx_textgen.load(WITH_STATES.package(tmp_path), device="cpu", threads=1)
    session = model.session()
    session.append(ids_of(30))
    for _ in range(3):
        text = list(session.token_ids)
        assert list(session.generate(max_new_tokens=18, **GREEDY).token_ids) == WITH_STATES.greedy(text, 18)
        session.append([7, 8])


def test_the_plan_counts_windows_once_they_are_full(model: Model, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads = [(layer.heads * (layer.key_size + layer.value_size) * 4, layer.window) for layer in tiny_of(model).layers]
    windows, others = sum(size for size, each in heads if each), sum(size for size, each in heads if not each)
    plan = model.memory(20)
    assert (plan.bytes_per_token, plan.window_bytes) == (others, 20 * windows)
    assert plan.total_bytes == 20 * (windows + others)
    assert model.memory(96, batch=2).total_bytes == 2 * (96 * others + (28 + 6 * 17) * windows)
    decoder = model.new_context()
    prefill(decoder, ids_of(90))
    assert decoder.bytes_of(90) == 90 * others + 28 * windows
    assert run(["info", str(folder)]) == 0
    assert "in layers with a window" in " ".join(capsys.readouterr().out.split())


def test_only_attention_that_can_forget_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / GRAPH

    def lengths_of(change) -> set[str]:
        model = Builder(MIXED).model()
        change(model)
        onnx.save(model, path)
        found = windowed_model(path)
        values = onnx.load_from_string(found).graph.input if found else ()
        return {value.type.tensor_type.shape.dim[2].dim_param for value in values if value.name.startswith("past")}

    def nothing(model: onnx.ModelProto) -> None:
        pass

    def another_producer(model: onnx.ModelProto) -> None:
        model.producer_name = "another"

    def a_rotary_switch(model: onnx.ModelProto) -> None:
        model.metadata_props.add(key="rotary_switch", value="64")

    def weights_are_shown(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.output.append(f"weights.{node.output[0]}")

    def a_present_is_read(model: onnx.ModelProto) -> None:
        for present in ("present.0.key", "present.2.value"):
            model.graph.node.append(onnx.helper.make_node("Shape", [present], [f"sizes.{present}"]))

    assert lengths_of(nothing) == {"window_5", "cache_length"}
    for change in (another_producer, a_rotary_switch, weights_are_shown, a_present_is_read):
        assert lengths_of(change) == set(), change.__name__


def test_a_graph_that_was_replaced_while_it_is_open_is_not_opened_again(tmp_path: Path) -> None:
    path = tmp_path / GRAPH
    onnx.save(Builder(MIXED).model(), path)
    session = open_session(path, device="cpu")
    onnx.save(Builder(Tiny((Attention(0, shared=True),))).model(), path)
    with pytest.raises(PackageError, match="has changed since it was opened; load the model again"):
        session.model()
