"""Stages that transformers does not have, against a plain reading of the rule that defines them, and the chain as a whole."""

import dataclasses
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.history import History
from onnx_textgen.sampling.sampler import Chooser

VOCAB = 9
rows = arrays(np.float32, VOCAB, elements=st.floats(-8, 8, width=32))
ids = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def chooser(prompt=(1,), *, piece=None, sample=0, seed=1, **options):
    config = dataclasses.replace(GenerationConfig(**options), seed=seed)
    return Chooser(config, prompt_ids=list(prompt), eos_ids=[0], piece=piece, sample=sample)


@given(rows, ids, ids, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_follow_openais_formula_over_the_new_text(logits, prompt, new, presence, frequency):
    """mu[j] -> mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence, as OpenAI's documentation has it."""
    ours = chooser(prompt, presence_penalty=presence, frequency_penalty=frequency).process(logits, new)
    want = [logits[j] - new.count(j) * frequency - (new.count(j) > 0) * presence for j in range(VOCAB)]
    np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-5)


@given(ids, st.lists(ids, max_size=6))
def test_what_the_penalties_remember_is_of_the_text_that_was_followed_last(prompt, texts):
    history = History(prompt)
    for text in texts:
        history.sync(text)
        assert history.ids.array.tolist() == prompt + text
        assert sorted(history.unique.array.tolist()) == sorted({*prompt, *text})
        counts = zip(history.new_unique.array.tolist(), history.counts.array.tolist(), strict=True)
        assert dict(counts) == Counter(text)


def test_beams_that_take_turns_cost_what_they_differ_by(monkeypatch):
    real, appended = History.append, []

    def append(history, token_id):
        appended.append(token_id)
        real(history, token_id)

    monkeypatch.setattr(History, "append", append)
    made, texts = chooser(repetition_penalty=1.2), [[*[2, 3] * 500, last] for last in (4, 5, 6)]
    for text in texts:
        made.process(np.zeros(VOCAB, np.float32), text)
    assert len(appended) == 1000 + 3
    for place in [0, 1, 2] * 5:
        texts[place] = [*texts[place], 7]
        made.process(np.zeros(VOCAB, np.float32), texts[place])
    assert len(appended) == 1000 + 3 + 3 * sum(range(2, 7))


def dry_by_definition(history, breakers, *, multiplier, base, allowed, last_n):
    """llama.cpp's rule in words: every earlier place whose tokens, read backwards, equal the end of the text."""
    if last_n >= 0:
        history = history[max(0, len(history) - last_n) :]
    limit = next((back for back, token in enumerate(reversed(history)) if token in breakers), len(history))
    lengths = {}
    for place in range(len(history) - 1):
        length = 0
        while length < limit and place - length >= 0 and history[place - length] == history[len(history) - 1 - length]:
            length += 1
        if length >= allowed:
            following = history[place + 1]
            lengths[following] = max(lengths.get(following, 0), length)
    return {token: multiplier * base ** (length - allowed) for token, length in lengths.items()}


@given(rows, ids, ids, st.tuples(st.floats(0.1, 2), st.floats(1, 2), st.integers(1, 4), st.sampled_from([-1, 0, 3, 10])))
def test_dry_follows_llama_cpps_rule(logits, prompt, new, numbers):
    multiplier, base, allowed, last_n = numbers
    options = {"dry_multiplier": multiplier, "dry_base": base, "dry_allowed_length": allowed, "dry_penalty_last_n": last_n}
    ours = chooser(prompt, piece=lambda token: "a\n" if token in (3, 4) else "b", **options).process(logits, new)
    want = logits.copy()
    for token, penalty in dry_by_definition(
        prompt + new, {3, 4}, multiplier=multiplier, base=base, allowed=allowed, last_n=last_n
    ).items():
        want[token] -= np.float32(penalty)
    np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-4)


@given(rows, ids)
def test_with_nothing_asked_for_the_logits_pass_as_they_are(logits, new):
    assert chooser().process(logits, new) is logits


@given(rows, st.sets(st.integers(0, VOCAB - 1), max_size=VOCAB - 1))
def test_banned_ids_are_ruled_out_this_once(logits, banned):
    for temperature in (0, 1):
        one = chooser(temperature=temperature)
        before = logits.copy()
        assert one.choose(logits, [], banned=banned) not in banned
        np.testing.assert_array_equal(logits, before)
        assert one.choose(logits, []) == chooser(temperature=temperature).choose(logits, [])


def test_attempts_and_samples_draw_other_numbers_and_the_same_ones_again():
    logits = np.zeros(VOCAB, np.float32)
    draws = [chooser(temperature=1).choose(logits, [], attempt=attempt) for attempt in range(40)]
    assert draws == [chooser(temperature=1).choose(logits, [], attempt=attempt) for attempt in range(40)]
    assert len(set(draws)) > 5
    assert len({chooser(temperature=1, sample=sample).choose(logits, []) for sample in range(40)}) > 5


def test_the_end_is_never_chosen_where_it_is_ignored_or_too_early():
    logits = np.full(VOCAB, -50, np.float32)
    logits[0] = 50
    assert chooser(temperature=1, ignore_eos=True).choose(logits, [1] * 99) != 0
    assert chooser(temperature=1, min_new_tokens=3).choose(logits, [1, 1]) != 0
    assert chooser(temperature=1, min_new_tokens=3).choose(logits, [1, 1, 1]) == 0
