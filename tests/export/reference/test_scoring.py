"""Scores are transformers' log-probabilities within 1e-4: alone, in ragged batches, in windows, and of continuations."""

import numpy as np
import pytest
import torch

from onnx_textgen.errors import OptionError, PromptError
from onnx_textgen.inference import scoring

TEXTS = [
    "Once upon a time, there was a little girl.",
    "Tom and his dog went to the park. They played with a ball, and then it rained and they ran home.",
    "The end",
]


def log_softmax(model, ids):
    """[tokens, vocabulary]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()


def wanted(model, ids):
    return [float(row[token]) for row, token in zip(log_softmax(model, ids), ids[1:], strict=False)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_texts_log_probabilities(text, tiny_pair):
    model, package = tiny_pair
    score = package.score(text)
    np.testing.assert_allclose(score.logprobs, wanted(model, list(score.token_ids)), atol=1e-4)


def test_a_list_equals_a_padded_batch(tiny_pair):
    model, package = tiny_pair
    scores = package.score(TEXTS)
    longest = max(len(score.token_ids) for score in scores)
    rows = torch.tensor([[0] * (longest - len(score.token_ids)) + list(score.token_ids) for score in scores])
    mask = torch.tensor([[0] * (longest - len(score.token_ids)) + [1] * len(score.token_ids) for score in scores])
    with torch.no_grad():
        logits = model(rows, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits.log_softmax(-1).numpy()
    for row, score in enumerate(scores):
        count = len(score.token_ids)
        want = [logits[row, longest - count + i, token] for i, token in enumerate(score.token_ids[1:])]
        np.testing.assert_allclose(score.logprobs, want, atol=1e-4)


def test_the_likeliest_tokens_at_each_place(tiny_pair):
    model, package = tiny_pair
    score = package.score(TEXTS[0], logprobs=4)
    logits = log_softmax(model, list(score.token_ids))
    assert len(score.alternatives) == len(score.logprobs)
    for row, alternatives in zip(logits, score.alternatives, strict=False):
        best = np.argsort(-row, kind="stable")[:4]
        assert [one.token_id for one in alternatives] == best.tolist()
        np.testing.assert_allclose([one.logprob for one in alternatives], row[best], atol=1e-4)
        assert [one.text for one in alternatives] == [package.tokenizer.piece(int(i)) for i in best]


@pytest.mark.parametrize("stride", [64, 200, 511])
def test_perplexity_of_a_text_longer_than_the_context(stride, tiny_pair):
    """The loop of transformers' documentation on perplexity of fixed-length models, per token."""
    model, package = tiny_pair
    context = package.manifest.geometry.context_length
    ids = np.random.default_rng(0).integers(3, 500, 2 * context + 77).tolist()
    want, before = [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        logits = log_softmax(model, ids[begin:end])
        want += [float(logits[i - begin - 1, ids[i]]) for i in range(max(before, begin + 1, 1), end)]
        before = end
        if end == len(ids):
            break
    score = package.score(ids, stride=stride)
    np.testing.assert_allclose(score.logprobs, want, atol=1e-4)
    assert score.perplexity == pytest.approx(np.exp(-np.mean(want)), rel=1e-4)


def test_a_text_longer_than_the_context_without_a_stride_is_refused(tiny_pair):
    _, package = tiny_pair
    context = package.manifest.geometry.context_length
    with pytest.raises(PromptError, match="Shorten it"):
        package.score([5] * (context + 1))
    with pytest.raises(PromptError, match=f"stride should be from 1 to {context - 1}"):
        package.score([5] * (context + 1), stride=context)


def test_a_continuation_is_scored_given_its_prompt(tiny_pair):
    model, package = tiny_pair
    for prompt, continuation in (("Once upon a time", " there was a"), ("Once upon a ", "time there"), ("", "Once upon")):
        score = package.score(prompt, continuation=continuation)
        ids = list(score.token_ids)
        assert package.tokenizer.decode(ids) == prompt + continuation
        logits = wanted(model, ids)
        np.testing.assert_allclose(score.continuation_logprobs, logits[max(0, score.prompt_tokens - 1) :], atol=1e-4)
        assert package.tokenizer.decode(ids[: score.prompt_tokens]) == prompt.rstrip()


def test_choices_are_ranked_by_their_probability_and_the_prompt_is_fed_once(tiny_pair, monkeypatch):
    model, package = tiny_pair
    prompt, choices = "Once upon a time there was a", [" little girl", " big red car that was fast", " dog"]
    fed = []
    real = scoring.Decoder.feed
    monkeypatch.setattr(scoring.Decoder, "feed", lambda self, ids, **options: (fed.append(len(ids)), real(self, ids, **options))[1])
    ranked = package.rank(prompt, choices)
    count = len(package.tokenizer.encode(prompt))
    totals = {}
    for choice in choices:
        ids = package.tokenizer.encode(prompt + choice)
        totals[choice] = sum(wanted(model, ids)[count - 1 :])
    assert sum(fed) < count + sum(len(package.tokenizer.encode(prompt + choice)) - count + 1 for choice in choices)
    assert [choice.text for choice in ranked] == sorted(choices, key=lambda text: -totals[text])
    for choice in ranked:
        assert choice.logprob == pytest.approx(totals[choice.text], abs=1e-3)
    by_byte = package.rank(prompt, choices, by="byte")
    assert [choice.text for choice in by_byte] == sorted(choices, key=lambda text: -totals[text] / len(text.encode()))
    with pytest.raises(OptionError, match="by should be one of"):
        package.rank(prompt, choices, by="letter")
    with pytest.raises(OptionError, match="choices should be a list of texts"):
        package.rank(prompt, [])


def test_log_probabilities_of_a_generation_are_those_of_its_score(tiny_pair):
    _, package = tiny_pair
    result = package.generate("Once upon a time", max_new_tokens=30, temperature=1, seed=3, top_k=5, logprobs=2)
    ids = [*result.prompt_ids, *result.token_ids]
    score = package.score(ids, logprobs=2)
    new = len(result.token_ids)
    np.testing.assert_allclose(result.logprobs, score.logprobs[-new:], atol=1e-4)
    assert [[one.token_id for one in place] for place in result.alternatives] == [
        [one.token_id for one in place] for place in score.alternatives[-new:]
    ]


def test_a_long_text_is_scored_without_all_its_logits_at_once(tiny_pair, monkeypatch):
    _, package = tiny_pair
    ids = np.random.default_rng(0).integers(3, 500, 400).tolist()
    plain = package.score(ids).logprobs
    monkeypatch.setattr(scoring, "MOST_LOGITS", 16 * 512)
    sizes = []
    real = scoring.Decoder.feed

    def feed(self, ids, **options):
        logits = real(self, ids, **options)
        sizes.append(logits.size)
        return logits

    monkeypatch.setattr(scoring.Decoder, "feed", feed)
    np.testing.assert_allclose(package.score(ids).logprobs, plain, atol=1e-4)
    assert max(sizes) <= 16 * 512 and len(sizes) >= 400 / 16
