"""The filters equal transformers' logits warpers, alone and as a chain, ties included.

Which of several equal logits top-p cuts, transformers leaves to torch.sort, which promises no order and on wide rows has none.
Ours is the order of a stable sort, so most comparisons make torch's stable; one takes it as it comes and compares values.
"""

import functools
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import GenerationConfig as TransformersConfig
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import apply_temperature, candidates, final_candidates
from onnx_textgen.sampling.truncation import min_p_ids, softmax, top_k_ids, top_p_ids
from support.examples import examples


def keep(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The logits with -inf everywhere but at some ids."""
    kept = np.full_like(logits, -np.inf)
    kept[ids] = logits[ids]
    return kept


tiny = arrays(np.float32, st.integers(1, 40), elements=st.floats(-20, 20, width=32))
tied = arrays(np.float32, st.integers(1, 40), elements=st.sampled_from(np.float32([-np.inf, -2, -1, 0, 0.5, 1, 3])))
shares = st.one_of(st.floats(1e-4, 1), st.sampled_from([1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]))


@st.composite
def wide(draw):
    """50 thousand logits, in half of the cases rounded so that thousands are equal."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = generator.standard_normal(draw(st.sampled_from([50_000, 50_257]))) * draw(st.sampled_from([0.1, 1.0, 3.0, 6.0]))
    return (np.round(logits, 1) if draw(st.booleans()) else logits).astype(np.float32)


any_logits = st.one_of(tiny, tied, wide()).filter(lambda logits: np.isfinite(logits).any())


def warped(warper, logits: np.ndarray, *, stable: bool = True) -> np.ndarray:
    with mock.patch.object(torch, "sort", functools.partial(torch.sort, stable=stable)):
        return warper(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(logits)[None])[0].numpy()


def near(logits: np.ndarray) -> float:
    """How close to a border rounding may put a token on either side of it.

    Both sides round in the last place, and torch's softmax adds up a row in float32: off by 2e-5 at 50 thousand equal logits.
    """
    return 1e-6 + 1e-9 * logits.size


def assert_equal_off_the_border(ours: np.ndarray, theirs: np.ndarray, distance: np.ndarray) -> None:
    """Equal everywhere, but for tokens whose `distance` [vocab] from the border is within rounding."""
    far = distance > near(ours)
    np.testing.assert_array_equal(ours[far], theirs[far])
    both = np.isfinite(ours) & np.isfinite(theirs)
    np.testing.assert_array_equal(ours[both], theirs[both])


def share_distance(logits: np.ndarray, p: float) -> np.ndarray:
    """How far each token's ascending cumulative probability is from 1 - p."""
    exact = softmax(logits.astype(np.float64))
    order = np.argsort(logits, kind="stable")
    distance = np.empty_like(exact)
    distance[order] = np.abs(np.cumsum(exact[order]) - (1 - p))
    return distance


def ratio_distance(logits: np.ndarray, p: float) -> np.ndarray:
    """How far each token's probability is from p times the largest, relative to it."""
    with np.errstate(under="ignore"):
        ratio = np.exp(logits.astype(np.float64) - logits.max())
    return np.abs(ratio - p) / max(p, 1e-30)


@given(any_logits, st.one_of(st.floats(1e-3, 100), st.sampled_from([0.5, 1.0, 2.0])))
def test_temperature_equals_transformers(logits, temperature):
    np.testing.assert_array_equal(apply_temperature(logits, temperature), warped(TemperatureLogitsWarper(temperature), logits))


@given(any_logits, st.one_of(st.integers(1, 60), st.sampled_from([1, 1000, 49_999, 60_000])))
def test_top_k_equals_transformers(logits, k):
    np.testing.assert_array_equal(keep(logits, top_k_ids(logits, k)), warped(TopKLogitsWarper(k), logits))


@given(any_logits, shares)
def test_top_p_equals_transformers(logits, p):
    ours, theirs = keep(logits, top_p_ids(logits, p)), warped(TopPLogitsWarper(p), logits)
    assert_equal_off_the_border(ours, theirs, share_distance(logits, p))


@given(any_logits, shares)
def test_top_p_keeps_the_same_logits_as_transformers_with_torchs_own_sort(logits, p):
    ours, theirs = keep(logits, top_p_ids(logits, p)), warped(TopPLogitsWarper(p), logits, stable=False)
    assert_equal_off_the_border(np.sort(ours), np.sort(theirs), share_distance(np.sort(logits), p))


@given(any_logits, st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0])))
def test_min_p_equals_transformers(logits, p):
    ours, theirs = keep(logits, min_p_ids(logits, p)), warped(MinPLogitsWarper(p), logits)
    assert_equal_off_the_border(ours, theirs, ratio_distance(logits, p))


@pytest.mark.parametrize("size", [1, 2, 7, 10, 100, 1000, 4096])
@pytest.mark.parametrize("p", [1e-12, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 0.9, 0.999, 1.0])
def test_top_p_of_all_equal_logits_keeps_the_very_same_ids(size, p):
    logits = np.full(size, 1.5, dtype=np.float32)
    np.testing.assert_array_equal(keep(logits, top_p_ids(logits, p)), warped(TopPLogitsWarper(p), logits))


@pytest.mark.parametrize("p", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_top_p_of_few_distinct_logits_keeps_the_very_same_ids(p):
    for seed in range(50):
        generator = np.random.default_rng(seed)
        logits = generator.integers(-2, 3, size=int(generator.integers(2, 3000))).astype(np.float32)
        np.testing.assert_array_equal(keep(logits, top_p_ids(logits, p)), warped(TopPLogitsWarper(p), logits))


def transformers_chain(logits: np.ndarray, config: GenerationConfig) -> np.ndarray:
    """The probabilities [vocab] after the warpers that transformers' own generate would line up."""
    warpers = [TemperatureLogitsWarper(config.temperature)]
    warpers += [TopKLogitsWarper(config.top_k)] if config.top_k else []
    warpers += [TopPLogitsWarper(config.top_p)] if config.top_p < 1 else []
    warpers += [MinPLogitsWarper(config.min_p)] if config.min_p else []
    for warper in warpers:
        logits = warped(warper, logits)
    return torch.from_numpy(logits).softmax(-1).numpy()


def near_a_border(logits: np.ndarray, config: GenerationConfig) -> bool:
    """Whether rounding alone may decide about some token at some stage of the chain."""
    scores = apply_temperature(logits, config.temperature)
    scores = keep(scores, top_k_ids(scores, config.top_k)) if config.top_k else scores
    if config.top_p < 1 and share_distance(scores, config.top_p).min() <= near(logits):
        return True
    scores = keep(scores, top_p_ids(scores, config.top_p)) if config.top_p < 1 else scores
    return config.min_p > 0 and bool(ratio_distance(scores, config.min_p).min() <= near(logits))


@given(
    any_logits,
    st.builds(
        GenerationConfig,
        temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 10.0]),
        top_k=st.sampled_from([0, 1, 5, 50, 1000]),
        top_p=st.sampled_from([0.01, 0.33, 0.9, 0.97, 1.0]),
        min_p=st.sampled_from([0.0, 0.013, 0.11, 0.98]),
    ),
)
@examples(60)
def test_the_whole_chain_equals_transformers(logits, config):
    theirs = transformers_chain(logits, config)
    ids, probabilities = candidates(final_candidates(logits, config))
    if not near_a_border(logits, config):
        assert sorted(ids) == np.flatnonzero(theirs).tolist()
        np.testing.assert_allclose(probabilities, theirs[ids], rtol=1e-4)


def test_the_order_is_the_one_transformers_generate_uses():
    """Checked on the list that transformers itself builds, so that a change of its order is seen."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
        )
    )
    config = TransformersConfig(do_sample=True, temperature=0.5, top_k=5, top_p=0.5, min_p=0.5)
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device=torch.device("cpu"))
    names = [type(item).__name__ for item in model._get_logits_processor(config, input_ids_seq_length=1)]
    assert names == ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"]
