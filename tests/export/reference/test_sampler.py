"""The processors and warpers equal transformers', alone and as a chain; whole generations equal its `generate`."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import GenerationConfig as TransformersConfig
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.sampler import Chooser

VOCAB = 12
EOS = [3, 5]
rows = arrays(np.float32, VOCAB, elements=st.floats(-10, 10, width=32))
ids = st.lists(st.integers(0, VOCAB - 1), max_size=24)
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24)


def chooser(prompt, **options):
    config = dataclasses.replace(GenerationConfig(**options), seed=1)
    return Chooser(config, prompt_ids=prompt, eos_ids=EOS)


def theirs(processors, prompt, new, logits):
    history, scores = torch.tensor([prompt + new]), torch.from_numpy(logits.copy())[None]
    for processor in processors:
        scores = processor(history, scores)
    return scores[0].numpy()


@given(rows, prompts, ids, st.floats(0.5, 2))
def test_repetition_penalty_equals_transformers(logits, prompt, new, penalty):
    ours = chooser(prompt, repetition_penalty=penalty).process(logits, new)
    np.testing.assert_allclose(ours, theirs([RepetitionPenaltyLogitsProcessor(penalty)], prompt, new, logits), rtol=1e-6)


@given(rows, prompts, ids, st.integers(1, 5))
def test_no_repeat_ngram_equals_transformers(logits, prompt, new, size):
    ours = chooser(prompt, no_repeat_ngram_size=size).process(logits, new)
    np.testing.assert_array_equal(ours, theirs([NoRepeatNGramLogitsProcessor(size)], prompt, new, logits))


@given(rows, prompts, ids, st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), min_size=1, max_size=4))
def test_bad_words_equal_transformers(logits, prompt, new, words):
    words = [word for word in words if word not in ([eos] for eos in EOS)] or [
        [1]
    ]  # there transformers lets the end of a text through
    ours = chooser(prompt, bad_words_ids=words).process(logits, new)
    np.testing.assert_array_equal(ours, theirs([NoBadWordsLogitsProcessor(words, EOS)], prompt, new, logits))


@given(rows, prompts, ids, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4, unique=True))
def test_bad_words_of_one_token_equal_suppressed_ones_of_transformers(logits, prompt, new, tokens):
    ours = chooser(prompt, bad_words_ids=[[token] for token in tokens]).process(logits, new)
    np.testing.assert_array_equal(ours, theirs([SuppressTokensLogitsProcessor(tokens)], prompt, new, logits))


@given(rows, prompts, ids, st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5).filter(bool), min_size=1))
def test_logit_bias_equals_transformers(logits, prompt, new, biases):
    ours = chooser(prompt, logit_bias=biases).process(logits, new)
    processor = SequenceBiasLogitsProcessor({(token,): bias for token, bias in biases.items()})
    np.testing.assert_allclose(ours, theirs([processor], prompt, new, logits), rtol=1e-6, atol=1e-6)


@given(rows, prompts, ids, st.integers(1, 30))
def test_min_new_tokens_equals_transformers(logits, prompt, new, least):
    ours = chooser(prompt, min_new_tokens=least).process(logits, new)
    processor = MinNewTokensLengthLogitsProcessor(len(prompt), least, EOS)
    np.testing.assert_array_equal(ours, theirs([processor], prompt, new, logits))


@given(rows, prompts, ids, st.tuples(st.floats(0.7, 1.5), st.integers(2, 4), st.integers(0, 30)))
def test_processors_together_equal_transformers(logits, prompt, new, numbers):
    penalty, size, least = numbers
    words, biases = [[1], [2, 7], [9]], {0: 1.5, 4: -2.0}
    ours = chooser(
        prompt,
        repetition_penalty=penalty,
        no_repeat_ngram_size=size,
        bad_words_ids=words,
        logit_bias=biases,
        min_new_tokens=least,
    ).process(logits, new)
    chain = [
        SequenceBiasLogitsProcessor({(token,): bias for token, bias in biases.items()}),
        RepetitionPenaltyLogitsProcessor(penalty),
        NoRepeatNGramLogitsProcessor(size),
        NoBadWordsLogitsProcessor(words, EOS),
        MinNewTokensLengthLogitsProcessor(len(prompt), least, EOS),
    ]
    np.testing.assert_allclose(ours, theirs(chain, prompt, new, logits), rtol=1e-6, atol=1e-6)


@given(prompts, ids, st.floats(0.7, 1.5))
def test_a_chooser_that_follows_a_text_equals_one_that_meets_it_whole(prompt, new, penalty):
    options = {
        "repetition_penalty": penalty,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "no_repeat_ngram_size": 3,
        "dry_multiplier": 0.5,
    }
    logits, following = np.linspace(-3, 3, VOCAB, dtype=np.float32), chooser(prompt, **options)
    for count in range(len(new) + 1):
        ours = following.process(logits, new[:count])
        np.testing.assert_array_equal(ours, chooser(prompt, **options).process(logits, new[:count]))
    other = [*new[:-1], 0] if new else [1]
    np.testing.assert_array_equal(following.process(logits, other), chooser(prompt, **options).process(logits, other))


OPTIONS = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 20},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": [[7], [11, 12], [20]]},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whole_greedy_texts_equal_transformers_generate(options, tiny_pair):
    model, package = tiny_pair
    prompt = np.random.default_rng(2).integers(3, 200, 9).tolist()
    config = TransformersConfig(
        do_sample=False, max_new_tokens=40, eos_token_id=list(package.manifest.eos_ids) or None, pad_token_id=0, **options
    )
    with torch.no_grad():
        want = model.generate(torch.tensor([prompt]), generation_config=config)[0, len(prompt) :].tolist()
    got = list(package.generate(prompt, max_new_tokens=40, temperature=0, **options).token_ids)
    want = want[: next((i for i, token in enumerate(want) if token in package.manifest.eos_ids), len(want))]
    assert got == want
