"""Several texts for one prompt: drawn side by side as if alone, or searched as the definition of the search says."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen import Cancellation
from onnx_textgen.errors import ModelError, OptionError
from onnx_textgen.generation.beam_driver import log_softmax
from onnx_textgen.generation.beam_search import BeamSearch
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefix_cache import SHORTEST
from onnx_textgen.options.defaults import ROWS
from onnx_textgen.options.generation_config import GenerationConfig
from support.examples import examples

PROMPT = "Once upon a time"


def test_samples_of_one_prompt_begin_with_the_text_drawn_alone_and_differ(story):
    options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 5}
    alone = story.generate(PROMPT, **options)
    several = story.generate(PROMPT, num_return_sequences=4, **options)
    assert several.sequences[0].token_ids == several.token_ids == alone.token_ids
    assert len({text.token_ids for text in several.sequences}) == 4
    assert several.config.num_return_sequences == 4 and several.config.seed == 5
    two = story.generate(PROMPT, num_return_sequences=2, **options)
    assert [text.token_ids for text in two.sequences] == [text.token_ids for text in several.sequences[:2]]


def test_later_texts_go_on_from_the_prompt_of_the_first(story):
    story.generator.prefixes.clear()
    several = story.generate(f"{PROMPT}, there was a little dog who", max_new_tokens=5, num_return_sequences=3, seed=1)
    first, *others = [text.stats for text in several.sequences]
    assert first.reused_tokens == 0
    assert all(text.prompt_tokens > text.reused_tokens >= SHORTEST for text in others)


def test_more_texts_than_rows_wait_for_one(story):
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 2}
    several = story.generate(PROMPT, num_return_sequences=2 * ROWS + 1, **options)
    assert len(several.sequences) == 2 * ROWS + 1
    assert len({text.token_ids for text in several.sequences}) > ROWS
    assert [text.token_ids for text in story.generate(PROMPT, num_return_sequences=3, **options).sequences] == [
        text.token_ids for text in several.sequences[:3]
    ]


def test_a_list_of_prompts_gives_each_its_texts(story):
    options = {"max_new_tokens": 10, "num_return_sequences": 2, "seed": 3}
    together = story.generate([PROMPT, "The little dog was very"], **options)
    alone = [story.generate(prompt, **options) for prompt in (PROMPT, "The little dog was very")]
    assert [[text.token_ids for text in one.sequences] for one in together] == [
        [text.token_ids for text in one.sequences] for one in alone
    ]


def test_best_of_gives_the_likeliest_per_token(story):
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 9}
    every = story.generate(PROMPT, num_return_sequences=6, **options).sequences
    best = story.generate(PROMPT, best_of=6, num_return_sequences=2, **options)
    ordered = sorted(every, key=lambda text: -text.score)
    assert [text.token_ids for text in best.sequences] == [text.token_ids for text in ordered[:2]]
    assert story.generate(PROMPT, best_of=6, **options).sequences == ()
    score = story.score(list(best.prompt_ids) + list(best.token_ids))
    if best.finish_reason == "length":
        assert best.score == pytest.approx(np.mean(score.logprobs[-len(best.token_ids) :]), abs=0.01)  # int8 rounds by the cut


@pytest.mark.parametrize("rule", [{}, {"regex": "[a-z]{3}"}, {"stop": ["."]}, {"json_schema": {"const": "yes"}}])
def test_the_score_of_a_text_is_the_mean_over_the_tokens_that_were_drawn(story, rule):
    """An end-of-text id is one of them where it was drawn, and not where a rule left nothing else to come."""
    prompt = "They were very happy. The end."
    texts = story.generate(prompt, max_new_tokens=12, num_return_sequences=6, seed=1, logprobs=0, **rule).sequences
    ends = list(story.manifest.eos_ids)
    for text in texts:
        drawn = list(text.logprobs)
        if text.finish_reason == "eos" and text.follows_rule is None:
            drawn.append(story.score([*text.prompt_ids, *text.token_ids, *ends]).logprobs[-1])
        assert text.score == pytest.approx(np.mean(drawn), abs=0.01)  # int8 rounds by the cut
    assert any(text.finish_reason == "eos" for text in texts)


def test_beams_find_nothing_less_likely_than_greedy(story):
    for prompt in (PROMPT, "The cat", "Tim and Sue went"):
        ids = story.tokenizer.encode(prompt)
        options = {"max_new_tokens": 12, "ignore_eos": True}
        greedy = story.generate(ids, temperature=0, **options)
        found = story.generate(ids, num_beams=6, **options)
        totals = [sum(story.score(ids + list(text.token_ids)).logprobs[len(ids) - 1 :]) for text in (found, greedy)]
        assert totals[0] >= totals[1] - 1e-4
        assert found.score == pytest.approx(totals[0] / 12, abs=0.01)  # int8 rounds by the cut


def test_one_beam_would_be_greedy(story):
    greedy = story.generate(PROMPT, max_new_tokens=15, temperature=0)
    assert story.generate(PROMPT, max_new_tokens=15, temperature=0, num_beams=1).token_ids == greedy.token_ids


def test_a_stop_string_ends_a_beam_and_is_left_out(story):
    result = story.generate(PROMPT, num_beams=3, num_return_sequences=3, max_new_tokens=40, stop=["."])
    assert {text.finish_reason for text in result.sequences} <= {"stop", "eos"}
    assert not any("." in text.text for text in result.sequences)


def test_a_search_that_is_cancelled_gives_the_best_so_far(story):
    cancel = Cancellation()
    cancel.cancel()
    assert story.generate(PROMPT, num_beams=3, cancel=cancel).finish_reason == "cancelled"
    result = story.generate(PROMPT, num_beams=3, max_new_tokens=400, max_time=0.2, ignore_eos=True)
    assert result.finish_reason == "deadline" and result.token_ids


def test_a_stream_of_several_texts_is_refused(story):
    for options in ({"num_beams": 2}, {"num_return_sequences": 2}, {"best_of": 2}):
        with pytest.raises(OptionError, match=r"a stream generates one text; .* call generate"):
            story.stream(PROMPT, **options)


@given(st.integers(0, 10_000), st.integers(2, 4), st.floats(-1, 2))
@examples(50)
def test_with_as_many_beams_as_texts_the_search_is_exhaustive(seed, length, penalty):
    """Three tokens, the last of them ends a text: every text that can be written is compared."""
    generator, vocab, end = np.random.default_rng(seed), 3, 2
    table = {
        ids: log_softmax(generator.normal(size=vocab).astype(np.float32))
        for count in range(length)
        for ids in itertools.product(range(vocab - 1), repeat=count)
    }
    search = BeamSearch(beams=3**length, max_new_tokens=length, length_penalty=penalty, early_stopping="never", eos_count=1)
    while not search.is_done:
        scores = np.stack([table[tuple(beam.token_ids)] for beam in search.running])
        search.step(scores, lambda beam: beam.token_ids[-1] == end or len(beam.token_ids) == length)
    texts = [
        (*ids, *last)
        for count in range(length)
        for ids in itertools.product(range(vocab - 1), repeat=count)
        for last in ([(end,)] if count < length - 1 else [(token,) for token in range(vocab)])
    ]
    totals = {text: sum(float(table[text[:i]][token]) for i, token in enumerate(text)) / len(text) ** penalty for text in texts}
    best = max(totals.values())
    assert search.best()[0].score == pytest.approx(best, rel=1e-4, abs=1e-4)


@given(st.integers(1, 10**7), st.floats(-1e4, -1e-6), st.floats(-100, 100), st.sampled_from([True, False, "never"]))
def test_any_length_penalty_that_is_taken_gives_texts_of_any_length_a_score(length, log_probability, penalty, early_stopping):
    try:
        config = GenerationConfig(num_beams=2, length_penalty=penalty, early_stopping=early_stopping, max_new_tokens=length)
    except OptionError:
        assert not -10 <= penalty <= 10
        return
    search = BeamSearch(
        beams=2, max_new_tokens=length, length_penalty=config.length_penalty, early_stopping=early_stopping, eos_count=1
    )
    longer, shorter = search.score(log_probability, length), search.score(log_probability, max(1, length // 2))
    assert np.isfinite(longer) and longer < 0
    assert (longer >= shorter) if penalty >= 0 else (longer <= shorter)


WAYS = [{"temperature": 0}, {"temperature": 1, "top_k": 5}, {"num_beams": 2}, {"num_return_sequences": 2}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_options_that_leave_nothing_to_choose_are_to_blame_and_not_the_model(story, way):
    everything = list(range(story.manifest.geometry.vocab_size))
    with pytest.raises(OptionError, match="the options together rule out every token; leave some out"):
        story.generate(PROMPT, bad_words_ids=[[i] for i in everything], **way)
    ends = set(story.manifest.eos_ids)
    with pytest.raises(OptionError, match="rule out every token"):
        story.generate(PROMPT, bad_words_ids=[[i] for i in everything if i not in ends], min_new_tokens=2, **way)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_the_models_fault_whatever_the_options(story, monkeypatch, way, bad):
    for name in ("feed", "prefill_rows", "step"):  # two texts whose rows are free at once are prefilled together
        real = getattr(Decoder, name)
        monkeypatch.setattr(Decoder, name, lambda *given, real=real, **more: np.full_like(real(*given, **more), bad))
    with pytest.raises(ModelError, match=r"the model's logits are no numbers to choose by .* verify DIR"):
        story.generate(PROMPT, bad_words_ids=[[5]], **way)
