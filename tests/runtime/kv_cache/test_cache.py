"""The cache's own laws: idle rows, rewinding, growing, and that whatever goes wrong leaves it as it was."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.backends.onnxruntime_run import ReusableBuffer
from onnx_textgen.backends.onnxruntime_session import OrtValue
from onnx_textgen.backends.protocol import Device
from onnx_textgen.errors import ModelError, PackageError, PromptError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.kv_cache import growing
from onnx_textgen.kv_cache import shared as cache
from onnx_textgen.kv_cache.growing import GrowingCache
from onnx_textgen.kv_cache.shared import SharedCache
from support.examples import examples

Model = onnx_textgen.Model
TEXTS = [[5, 9, 40, 41], [7, 8], [100, 3, 60, 61, 62, 63, 64]]


def decoder_of(model: Model, rows: int, capacity: int | None = None) -> Decoder:
    return Decoder(model.graph, model.manifest.geometry, rows=rows, capacity=capacity)


def check_row(model: Model, decoder: Decoder, row: int, logits: np.ndarray) -> None:
    """A row's logits are those of its tokens fed alone."""
    alone = decoder_of(model, 1).feed(decoder.token_ids[row])[0]
    np.testing.assert_allclose(logits, alone, atol=1e-4 * np.abs(alone).max())


def test_a_row_that_goes_on_after_idling_has_no_gap_between_its_columns(exact: Model) -> None:
    """Sliding windows count columns."""
    decoder = decoder_of(exact, 2)
    if isinstance(decoder.cache, SharedCache):
        pytest.skip("a shared cache has no columns in common")
    for token in (5, 6):
        decoder.step([token, token], [True, True])
    decoder.step([7, 7], [True, False])
    decoder.step([8, 8], [True, False])
    decoder.step([9, 9], [True, True])
    assert decoder.cache.mask(range(2), 1).tolist() == [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(1, 40)), min_size=1, max_size=6))
@examples(25)
def test_the_mask_of_a_step_has_a_one_for_each_token_and_few_zeros_behind_them(story: Model, moves: list[tuple[int, int]]) -> None:
    """However the row is rewound and fed in between; few shapes, so that bindings last."""
    decoder, shapes, steps = decoder_of(story, 1), set(), 0
    for length, more in moves:
        decoder.rewind(min(length, len(decoder.token_ids[0])))
        decoder.feed([5] * length)
        for _ in range(more):
            ones = decoder.cache.lengths[0] + 1
            decoder.reserve(ones)
            mask = decoder.cache.mask(range(1), 1)
            assert mask[0].tolist() == [1] * ones + [0] * (mask.shape[1] - ones)
            assert mask.shape[1] - ones < cache.MASK_COLUMNS
            decoder.feed([7])
            shapes.add(mask.shape)
            steps += 1
    assert len(shapes) <= 2 * len(moves) + steps // cache.MASK_COLUMNS


def test_memory_on_another_device_holds_numbers_everywhere(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN multiplies what lies beyond a row's end by 0: a NaN there makes every logit a NaN, as an H100 showed."""
    made = decoder_of(exact, 1).cache
    if not isinstance(made, SharedCache):
        pytest.skip("a growing cache has nothing beyond a row's end")
    uploaded = list[np.ndarray]()

    def upload(array: np.ndarray, kind: str, index: int) -> OrtValue:
        uploaded.append(array)
        return OrtValue.ortvalue_from_numpy(array)

    monkeypatch.setattr(cache, "OrtValue", SimpleNamespace(ortvalue_from_numpy=upload))
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, 255, dtype))
    there = dataclasses.replace(made.session, device=Device("cuda"))
    SharedCache(there, made.tensors, rows=2, capacity=64, context_length=128).ensure_capacity(2, 100)
    assert uploaded and not any(array.any() for array in uploaded)


def test_feeding_one_row_leaves_the_tensors_of_the_others_where_they_are(exact: Model) -> None:
    decoder = decoder_of(exact, 3)
    if not isinstance(decoder.cache, GrowingCache):
        pytest.skip("a shared cache is written in place")
    decoder.feed(TEXTS[0], row=0)
    values = decoder.cache.per_row[0]
    decoder.feed(TEXTS[1], row=1)
    decoder.feed(TEXTS[1], row=1)
    assert decoder.cache.per_row[0] is values


def test_a_step_refuses_what_does_not_fit_its_rows_or_the_context(exact: Model) -> None:
    decoder, full = decoder_of(exact, 2), exact.manifest.geometry.context_length
    for ids, active in (([1], [True, True]), ([1, 2, 3], [True, True]), ([1, 2], [True]), ([], [])):
        with pytest.raises(PromptError, match="each of at most 2 rows"):
            decoder.step(ids, active)
    decoder.feed([5] * full, row=0)
    with pytest.raises(PromptError, match="do not fit in the context"):
        decoder.step([1, 2], [True, True])
    assert decoder.token_ids[1] == []


def test_running_out_of_memory_while_growing_leaves_the_cache_as_it_was(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(exact, 2, capacity=4)
    decoder.feed(TEXTS[0], row=0)
    decoder.feed(TEXTS[1], row=1)
    real = OrtValue.ortvalue_from_numpy

    class FailingAfter:
        left = 0

        @classmethod
        def ortvalue_from_numpy(cls, *args):
            cls.left -= 1
            if cls.left < 0:
                raise MemoryError
            return real(*args)

    for left in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(cache, "OrtValue", FailingAfter)
            patch.setattr(growing, "OrtValue", FailingAfter)
            FailingAfter.left = left
            with pytest.raises(ModelError, match=r"failed while it ran: MemoryError$"):
                decoder.step([1, 2], [True, True])
        assert decoder.token_ids == TEXTS[:2]
    logits = decoder.step([1, 2], [True, True])
    for row in range(2):
        check_row(exact, decoder, row, logits[row])


def no_numbers(kinds, **_):
    return [np.full(shape, np.nan, dtype) for shape, dtype in kinds]


def test_what_no_row_holds_is_never_read(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers begin with whatever the memory held; here it holds no numbers at all."""
    with monkeypatch.context() as patch:
        patch.setattr(cache, "allocate_contiguous", no_numbers)
        decoder = decoder_of(exact, 3)
        steps = [decoder.feed(ids, row=row) for row, ids in enumerate(TEXTS)]
        steps += [decoder.step([1, 2, 3], [True, False, True]), decoder.step([4, 5, 6], [False, True, True])]
        steps.append(decoder.feed(list(range(1, 101)), row=1))  # grows
        decoder.fork(1, 0)
        steps.append(decoder.step([7, 8, 9], [True, True, True]))
    for row in range(3):
        check_row(exact, decoder, row, steps[-1][row])
    assert np.isfinite(steps[-1]).all()


def test_logits_that_somebody_holds_are_not_written_over(exact: Model) -> None:
    decoder = decoder_of(exact, 1)
    first = decoder.feed([5, 9])
    row, copied = first[-1], first.copy()
    del first
    decoder.feed([40])
    decoder.feed([41])
    np.testing.assert_array_equal(row, copied[-1])


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[0],
        lambda array: array[0][1:, 2:].T[::3],
        lambda array: np.asarray(array, np.float32).view(np.int32),
        memoryview,
        lambda array: iter(array[0]),
    ],
)
def test_memory_is_lent_again_only_when_no_view_of_it_is_left(view) -> None:
    memory = ReusableBuffer((1, 3, 8), np.float32)
    assert memory.is_free
    held = view(memory.lend())
    assert not memory.is_free
    del held
    assert memory.is_free
    again = memory.lend()
    again[:] = 5
    assert (memory.array == 5).all() and not memory.is_free


def test_steps_whose_logits_nobody_keeps_share_their_memory(exact: Model) -> None:
    decoder = decoder_of(exact, 1)
    decoder.feed(TEXTS[0])
    places = {decoder.feed([token]).ctypes.data for token in (5, 6, 7, 8)}
    assert len(places) == 1


def test_no_memory_for_a_new_cache_is_a_model_error(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args, **options):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(cache.np, "empty", fail)
    with pytest.raises(ModelError, match="Unable to allocate 9 TiB"):
        exact.new_context().feed([5])


def test_a_cache_of_an_unknown_element_type_is_refused(exact: Model) -> None:
    inputs = {
        name: (shape, "tensor(bfloat16)" if name.startswith("past") else kind) for name, (shape, kind) in exact.graph.inputs.items()
    }
    with pytest.raises(PackageError, match=r"the graph's cache holds tensor\(bfloat16\), not"):
        Decoder(dataclasses.replace(exact.graph, inputs=inputs), exact.manifest.geometry)


@given(kinds=st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from("fdei")), max_size=6))
def test_arrays_side_by_side_are_aligned_and_do_not_overlap(kinds: list) -> None:
    arrays = cache.allocate_contiguous([(tuple(shape), np.dtype(kind)) for shape, kind in kinds])
    assert [(list(array.shape), array.dtype) for array in arrays] == [(shape, np.dtype(kind)) for shape, kind in kinds]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % cache.ALIGNMENT == 0
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_memory_is_taken_for_the_rows_that_are_used(story: Model) -> None:
    decoder = decoder_of(story, 8)
    held = lambda: {buffer.shape()[0] for buffer in decoder.cache.buffers.values()}  # noqa: E731
    decoder.feed(TEXTS[0])
    assert held() == {1}
    decoder.feed(TEXTS[1], row=1)
    assert held() == {2}
    decoder.fork(0, 2)
    assert held() == {4}
    decoder.feed(TEXTS[2], row=6)
    assert held() == {8}
    for row, ids in ((0, TEXTS[0]), (1, TEXTS[1]), (2, TEXTS[0]), (6, TEXTS[2])):
        alone = decoder_of(story, 1)
        alone.feed(ids)
        assert np.array_equal(decoder.feed([3], row=row), alone.feed([3]))


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=4), first=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_prompts_begun_together_leave_the_bits_that_each_leaves_alone(story: Model, lengths: list, first: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    prompts = [tuple(random.integers(0, story.manifest.geometry.vocab_size, length).tolist()) for length in lengths]
    together = decoder_of(story, 8)
    if first:
        together.feed([4, 5, 6], row=0)
    logits = together.prefill_rows(prompts, first)
    for row, prompt in enumerate(prompts, first):
        alone = decoder_of(story, 1)
        assert np.array_equal(alone.feed(prompt)[0], logits[row - first])
        assert np.array_equal(alone.feed([7]), together.feed([7], row=row))
    assert together.token_ids[first : first + len(prompts)] == [[*prompt, 7] for prompt in prompts]


def test_what_is_fed_together_is_nearly_all_prompt(story: Model, exact: Model) -> None:
    decoder = decoder_of(story, 8)
    assert decoder.can_prefill_together([32] * 8, 256)
    assert decoder.can_prefill_together([20, 30, 32], 256)
    assert not decoder.can_prefill_together([33] * 8, 256)
    assert not decoder.can_prefill_together([2, 2, 2, 60], 256)
    assert not decoder.can_prefill_together([1, 2], 256)
    assert not decoder.can_prefill_together([story.manifest.geometry.context_length, 2], 10**6)
    assert not decoder_of(story, 1).can_prefill_together([8, 8], 256)
    growing = isinstance(decoder_of(exact, 4).cache, GrowingCache)  # whose rows lie apart while prompts are fed
    assert decoder_of(exact, 4).can_prefill_together([8, 8], 256) != growing
