"""Generation with the embedded default: the cache law, streaming, seeds, stops, batches, bad prompts."""

import copy
import dataclasses
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.errors import ModelError, OptionError, PackageError, PromptError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.tasks import open_model
from support.examples import examples

Model = onnx_textgen.Model
PROMPTS = ["Once upon a time", "The", "Lily and Tom went to the park. They saw a big dog and", "One day, a small boat"]


def all_logits(model: Model, parts: list[list[int]], capacity: int | None = None) -> np.ndarray:
    decoder = Decoder(model.graph, model.manifest.geometry, capacity=capacity)
    return np.concatenate([decoder.feed(part, every_position=True) for part in parts])


@examples(25)
@given(data=st.data())
def test_the_cache_law_abc_at_once_equals_any_way_of_cutting_it(exact: Model, data) -> None:
    vocab_size = exact.manifest.geometry.vocab_size
    ids = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=2, max_size=90))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=6)))
    parts = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    whole = all_logits(exact, [ids])
    np.testing.assert_allclose(all_logits(exact, parts, capacity=1), whole, atol=0.02 * np.abs(whole).max())


def test_step_time_buffers_are_not_moved_between_steps(story: Model) -> None:
    decoder = Decoder(story.graph, story.manifest.geometry, capacity=200)
    decoder.feed([1, 2, 3])
    pointers = [value.data_ptr() for value in decoder.cache.buffers.values()]  # type: ignore[union-attr]
    for token in range(50):
        decoder.feed([token])
    assert pointers == [value.data_ptr() for value in decoder.cache.buffers.values()]  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.9}, {"top_k": 40, "min_p": 0.02}])
def test_a_stream_is_generate_in_pieces(exact: Model, options: dict) -> None:
    whole = exact.generate(PROMPTS[0], max_new_tokens=80, seed=3, **options)
    chunks = list(exact.stream(PROMPTS[0], max_new_tokens=80, seed=3, **options))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(i for chunk in chunks for i in chunk.token_ids) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.generated_tokens == len(whole.token_ids)


def test_without_a_seed_texts_differ_and_the_reported_seed_repeats_them(story: Model) -> None:
    first, second = (story.generate(PROMPTS[0], max_new_tokens=30, temperature=1.0) for _ in range(2))
    assert first.token_ids != second.token_ids
    assert story.generate(PROMPTS[0], max_new_tokens=30, temperature=1.0, seed=first.stats.seed).token_ids == first.token_ids


@examples(20)
@given(start=st.integers(0, 120), length=st.integers(1, 12))
def test_a_stop_string_ends_the_text_before_it_however_tokens_fall(story: Model, start: int, length: int) -> None:
    free = story.generate(PROMPTS[0], max_new_tokens=60, temperature=0)
    stop = free.text[start : start + length]
    if not stop:
        return
    stopped = story.generate(PROMPTS[0], max_new_tokens=60, temperature=0, stop=stop)
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert "".join(chunk.text for chunk in story.stream(PROMPTS[0], max_new_tokens=60, temperature=0, stop=stop)) == stopped.text


def test_the_end_of_text_id_ends_the_text_and_is_left_out(story: Model) -> None:
    result = story.generate(PROMPTS[0], max_new_tokens=500, temperature=0.5, seed=1)
    assert result.finish_reason == "eos"
    assert not set(result.token_ids) & set(story.manifest.eos_ids)
    assert not any(special in result.text for special in ("<s>", "</s>"))


def test_one_token_is_length_one(story: Model) -> None:
    result = story.generate(PROMPTS[0], max_new_tokens=1)
    assert (result.finish_reason, len(result.token_ids)) == ("length", 1)


def test_prompt_and_text_join_without_a_seam(story: Model) -> None:
    result = story.generate(PROMPTS[0], max_new_tokens=20, temperature=0)
    assert story.tokenizer.decode([*result.prompt_ids, *result.token_ids]) == PROMPTS[0] + result.text


def test_closing_a_stream_leaves_model_and_context_usable(exact: Model) -> None:
    context = exact.new_context()
    wanted = exact.generate(PROMPTS[2], max_new_tokens=20, temperature=0).token_ids
    for steps in (1, 3, 7):
        stream = exact.stream(PROMPTS[2], max_new_tokens=20, temperature=0, context=context)
        for _ in range(steps):
            next(stream)
        stream.close()
    again = list(exact.stream(PROMPTS[2], max_new_tokens=20, temperature=0, context=context))
    assert tuple(i for chunk in again for i in chunk.token_ids) == wanted
    assert again[-1].stats is not None
    assert again[-1].stats.reused_tokens == len(exact.encode(PROMPTS[2])) - 2


def test_a_context_given_to_a_stream_warns_that_a_session_does_it(exact: Model) -> None:
    with pytest.warns(DeprecationWarning, match=r"goes in the next release: .*Model\.session"):
        exact.stream(PROMPTS[0], max_new_tokens=1, context=exact.new_context()).close()


def test_a_run_that_fails_leaves_the_cache_as_it_was(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = exact.generate(PROMPTS[0], max_new_tokens=10, temperature=0).token_ids

    class FailingOnce:
        def __init__(self, real, at: int) -> None:
            self.real, self.left = real, at

        def __getattr__(self, name: str):
            return getattr(self.real, name)

        def run_with_iobinding(self, binding, options=None) -> None:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("the disk is on fire\nsecond line")
            self.real.run_with_iobinding(binding, options)

    for at in range(1, 8):
        session = dataclasses.replace(exact.graph, ort=FailingOnce(exact.graph.ort, at))
        model = Model(exact.folder, exact.manifest, session, chat_template=None)
        context = model.new_context()
        with pytest.raises(ModelError, match=r"the disk is on fire$"):
            list(model.stream(PROMPTS[0], max_new_tokens=10, temperature=0, context=context))
        chunks = list(model.stream(PROMPTS[0], max_new_tokens=10, temperature=0, context=context))
        assert tuple(i for chunk in chunks for i in chunk.token_ids) == wanted


def test_alternatives_are_the_models_own_probabilities(story: Model) -> None:
    chunk = next(story.stream(PROMPTS[0], max_new_tokens=1, temperature=0, logprobs=5))
    ids = [one.token_id for one in chunk.alternatives[0]]
    probabilities = [np.exp(one.logprob) for one in chunk.alternatives[0]]
    logits = story.new_context().feed(story.encode(PROMPTS[0]))[-1].astype(np.float64)
    full = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert list(ids) == np.argsort(-full)[:5].tolist()
    np.testing.assert_allclose(probabilities, full[list(ids)], rtol=1e-5)
    assert chunk.token_ids == (ids[0],)
    assert np.exp(chunk.logprobs[0]) == pytest.approx(probabilities[0])


def test_scores_are_the_log_probabilities_of_the_text(story: Model) -> None:
    text = "Once upon a time, there was a little girl."
    score = story.score(text)
    ids = story.encode(text)
    logits = all_logits(story, [[i] for i in ids]).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = [logprobs[i, token] for i, token in enumerate(ids[1:])]
    assert score.token_ids == tuple(ids)
    np.testing.assert_allclose(score.logprobs, want, atol=0.15)
    assert score.perplexity == pytest.approx(np.exp(-np.mean(score.logprobs)))
    assert score.bits_per_byte == pytest.approx(-sum(score.logprobs) / np.log(2) / len(text.encode()))
    assert story.score(text).bits_per_byte < story.score("time upon Once a girl little. was,").bits_per_byte


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", "the prompt is empty"),
        ([], "no "),
        ([0, 10**6], "token id 1000000 is outside the vocabulary"),
        ([-1], "token id -1 is outside the vocabulary"),
        ([1.5], "whole numbers, found 1.5"),
        ([True], "whole numbers, found True"),
        ([10**5000], "token id a number of 16,610 bits is outside"),
        ("word " * 600, "tokens; this model takes 51"),
        ([1] * 513, "has 513 tokens; this model takes 51"),
        (b"Once", "should be text or a list of token ids, found a bytes"),
        (bytearray(b"Once"), "found a bytearray"),
        ({"a": 1}, "found a dict"),
        ([{"role": "user", "content": "Hello"}], "found a dict; messages are for chat(), or stream_chat()"),
        ({1, 2}, "found a set"),
        (5, "found 5"),
        (None, "found None"),
        (object(), "found a object"),
        ((i for i in [1, 2]), "found a generator"),
        (np.array(5), "found a ndarray"),
        (np.zeros((0, 3), dtype=int), "the prompt has no token ids"),
        (np.array([1.5, 2]), "whole numbers, found"),
        ([1, "a"], "whole numbers, found 'a'"),
        ([[[1]]], "expected one prompt, found a list of 1"),
        ("x" * 10_000_000, "characters; this model takes"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_prompt_that_cannot_be_fed_is_refused_in_one_line(story: Model, prompt, expected: str) -> None:
    for call in (story.generate, lambda p: next(story.stream(p)), story.score):
        with pytest.raises(PromptError) as caught:
            call(prompt)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def test_options_are_checked_when_the_stream_is_asked_for_not_later(story: Model) -> None:
    with pytest.raises(OptionError, match="temperature"):
        story.stream(PROMPTS[0], temperature=float("nan"))
    for count in (-1, 2.5, 65, "3"):
        with pytest.raises(OptionError, match="logprobs should be a whole number from 0 to 64"):
            story.stream(PROMPTS[0], logprobs=count)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no option 'topp'; did you mean top_p"):
        story.generate(PROMPTS[0], topp=0.5)  # type: ignore[call-overload]


def test_a_bias_for_an_id_of_thousands_of_digits_is_refused_in_one_line(story: Model) -> None:
    with pytest.raises(OptionError, match="each id of logit_bias should be a whole number"):
        story.generate(PROMPTS[0], logit_bias={"9" * 5000: 1})


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_that_is_pickled_or_copied_says_what_to_do_instead(story: Model, way: Callable[[Model], object]) -> None:
    with pytest.raises(TypeError, match=r"an open model cannot be pickled or copied; open .*story where it is needed"):
        way(story)


def test_threads_that_do_not_exist_and_a_file_that_is_no_graph_are_refused(story: Model) -> None:
    graph = story.folder / "model.onnx"
    for threads in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="threads should be"):
            open_session(graph, threads=threads)  # type: ignore[arg-type]
    with pytest.raises(PackageError, match=r"tokenizer\.json is not a graph, or is incomplete"):
        open_session(story.folder / "tokenizer.json", device="cpu")


def test_one_thread_and_two_give_the_same_tokens(story: Model) -> None:
    two = onnx_textgen.load(threads=2, device="cpu")
    results = [model.generate(PROMPTS[2], max_new_tokens=60, seed=5) for model in (two, story)]
    assert results[0].token_ids == results[1].token_ids


def test_prompts_may_be_any_sequence_numpy_arrays_too(story: Model) -> None:
    ids = story.encode(PROMPTS[0])
    wanted = story.generate(ids, max_new_tokens=5, temperature=0).token_ids
    for prompt in (tuple(ids), np.array(ids), np.array(ids, dtype=np.int32)):
        assert story.generate(prompt, max_new_tokens=5, temperature=0).token_ids == wanted  # type: ignore[call-overload]
    for batch in ([np.array(ids), np.array(ids)], (tuple(ids), tuple(ids)), np.array([ids, ids])):
        results = story.generate(batch, max_new_tokens=5, temperature=0)  # type: ignore[call-overload]
        assert [result.token_ids for result in results] == [wanted, wanted]
    mixed = story.generate([PROMPTS[0], np.array(ids)], max_new_tokens=5, temperature=0)  # type: ignore[list-item]
    assert [result.token_ids for result in mixed] == [wanted, wanted]


def test_a_stream_takes_one_prompt(story: Model) -> None:
    for prompts in (["a", "b"], [[1, 2], [3]], np.array([[1, 2]])):
        with pytest.raises(PromptError, match="expected one prompt, found a list of"):
            story.stream(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0, -1, "x", 1.5, True])
def test_a_capacity_that_cannot_be_is_refused(capacity) -> None:
    with pytest.raises(OptionError, match="capacity should be a whole number"):
        onnx_textgen.load(capacity=capacity)


def geometry_changed(package: Path, name: str) -> Path:
    path = package / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["geometry"][name] += 1
    del manifest["sha256"]  # of the manifest as it was: the change is no damage
    path.write_text(json.dumps(manifest))
    return package


def test_a_manifest_with_another_vocabulary_than_its_graph_is_refused(package: Path) -> None:
    with pytest.raises(PackageError, match="requires") as caught:
        onnx_textgen.load(geometry_changed(package, "vocab_size"), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["layers", "heads", "kv_heads", "head_size"])
def test_the_cache_has_the_sizes_of_the_graph_whatever_the_manifest_tells_of_layers(story: Model, package: Path, name: str) -> None:
    other = onnx_textgen.load(geometry_changed(package, name), device="cpu", threads=1)
    texts = [[one.text for one in model.generate(PROMPTS, max_new_tokens=5, temperature=0)] for model in (other, story)]
    assert texts[0] == texts[1]


def test_a_context_of_another_model_or_of_several_rows_is_refused(exact: Model, story: Model) -> None:
    for context in (story.new_context(), Decoder(exact.graph, exact.manifest.geometry, rows=2)):
        with pytest.raises(OptionError, match="context belongs to another model"):
            exact.stream(PROMPTS[0], context=context)


def test_two_streams_that_take_turns_on_one_context_are_told_apart_and_not_mixed_up(exact: Model) -> None:
    context = exact.new_context()
    first = exact.stream(PROMPTS[0], max_new_tokens=20, temperature=0, context=context)
    next(first)
    wanted = exact.generate(PROMPTS[1], max_new_tokens=20, temperature=0).token_ids
    second = exact.stream(PROMPTS[1], max_new_tokens=20, temperature=0, context=context)
    got = [next(second)]
    with pytest.raises(OptionError, match="another stream used this context meanwhile"):
        next(first)
    assert tuple(i for chunk in (*got, *second) for i in chunk.token_ids) == wanted


def test_a_text_that_fills_the_context_can_be_scored(exact: Model) -> None:
    length = exact.manifest.geometry.context_length
    assert len(exact.score([5] * length).logprobs) == length - 1
    with pytest.raises(PromptError, match=f"takes {length} at most"):
        exact.score([5] * (length + 1))


def test_ids_are_scored_without_a_tokenizer_and_only_bits_per_byte_is_missing(exact: Model, tmp_path: Path) -> None:
    files = {name: record for name, record in exact.manifest.files.items() if name != "tokenizer.json"}
    model = Model(tmp_path, dataclasses.replace(exact.manifest, files=files), exact.graph, chat_template=None)
    score = model.score([5, 6, 7])
    assert score.text_bytes is None
    assert score.logprobs == exact.score([5, 6, 7]).logprobs
    assert score.perplexity > 1
    with pytest.raises(OptionError, match="without a tokenizer the text is not known"):
        _ = score.bits_per_byte
    assert exact.score([0, 0, 0]).text_bytes == 0
    with pytest.raises(OptionError, match="the text has no bytes"):
        _ = exact.score([0, 0, 0]).bits_per_byte


def test_every_row_of_a_list_has_the_clock_of_its_own_prompt(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Slow(Decoder):
        def feed(self, token_ids, **options):
            clock[0] += len(token_ids) if len(token_ids) > 1 else 0
            return super().feed(token_ids, **options)

    monkeypatch.setattr(open_model, "Decoder", Slow)
    lengths = [3, 40, 5]
    results = exact.generate([[7 + length] * length for length in lengths], max_new_tokens=2, temperature=0)
    assert [result.stats.prefill_seconds for result in results] == lengths
    assert [result.stats.prefill_tokens_per_second for result in results] == [1, 1, 1]
    assert [result.stats.first_token_seconds for result in results] == [3, 43, 48]


def test_the_clock_of_a_stream_starts_when_it_is_asked_for(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    stream = exact.stream(PROMPTS[0], max_new_tokens=1, temperature=0)
    clock[0] = 10
    stats = next(stream).stats
    assert stats is not None
    assert (stats.first_token_seconds, stats.total_seconds, stats.prefill_seconds) == (10, 10, 0)


def test_the_capacity_given_to_load_holds_for_a_list_of_prompts(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Watched(Decoder):
        def __init__(self, *args, **options) -> None:
            made.append(options.get("capacity"))
            super().__init__(*args, **options)

    monkeypatch.setattr(open_model, "Decoder", Watched)
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, capacity=7)
    model.generate(["a", "b"], max_new_tokens=2)
    model.generate("a", max_new_tokens=2)
    assert made == [7, 7]
