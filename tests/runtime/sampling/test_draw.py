"""The filters and the draw on their own, without transformers; tests/export compares the filters with its warpers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnx_textgen.errors import ModelError
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import Place, apply_temperature, final_candidates, index_at, sample_token, uniform
from onnx_textgen.sampling.draw import candidates as candidates_of
from onnx_textgen.sampling.truncation import min_p_ids, softmax, top_k_ids, top_p_ids

CONFIGS = [
    GenerationConfig(temperature=1.0),
    GenerationConfig(temperature=0.7),
    GenerationConfig(temperature=1.3, top_k=7),
    GenerationConfig(temperature=0.9, top_p=0.8),
    GenerationConfig(temperature=1.0, min_p=0.05),
    GenerationConfig(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
]
some_logits = arrays(np.float32, st.integers(1, 300), elements=st.floats(-30, 30, width=32))


def keep(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The logits with -inf everywhere but at some ids."""
    kept = np.full_like(logits, -np.inf)
    kept[ids] = logits[ids]
    return kept


def candidates(logits: np.ndarray, config: GenerationConfig, **limit):
    return candidates_of(final_candidates(logits, config), **limit)


def chain(logits: np.ndarray, config: GenerationConfig) -> np.ndarray:
    """The probabilities [vocab] after the filters one after the other, the slow and plain way."""
    scores = apply_temperature(logits, config.temperature)
    scores = keep(scores, top_k_ids(scores, config.top_k)) if config.top_k else scores
    scores = keep(scores, top_p_ids(scores, config.top_p))
    return softmax(keep(scores, min_p_ids(scores, config.min_p)))


def random_logits(size: int, scale: float = 3.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("size", [60, 1500])
def test_draws_follow_the_chains_probabilities(config, size):
    """Chi-square with Wilson and Hilferty's normal approximation; the seeds are fixed, so it passes always or never."""
    logits, draws = random_logits(size), 8_000
    counts = np.bincount([sample_token(logits, config, Place(11, 0, step)) for step in range(draws)], minlength=size)
    expected = chain(logits, config).astype(np.float64) * draws
    assert not counts[expected == 0].any(), "a token that was cut has been drawn"
    common = expected >= 5
    expected = np.append(expected[common], expected[~common].sum())
    counts = np.append(counts[common], counts[~common].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    normal = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(normal) < 3.5


def test_the_same_seed_sample_and_step_draw_the_same_in_any_order():
    logits = [random_logits(500, seed=row) for row in range(4)]
    places = [(seed, sample, step) for seed in (0, 1, 2**63 - 1) for sample in range(4) for step in range(20)]

    def draw_all(order):
        return {place: sample_token(logits[place[1]], CONFIGS[0], Place(*place)) for place in order}

    forward = draw_all(places)
    assert forward == draw_all(reversed(places)) == draw_all(sorted(places, key=lambda place: place[::-1]))
    assert len(set(forward.values())) > 50


def test_these_numbers_never_change():
    """A seed written down today draws the same tomorrow; the numbers are Philox 4x64-10's."""
    assert [uniform(Place(*place)) for place in [(0, 0, 0), (7, 0, 1), (7, 1, 0), (2**63 - 1, 3, 1000)]] == [
        0.011546754286331562,
        0.0828426870273763,
        0.8734503010139788,
        0.9701001080360829,
    ]


def test_uniform_numbers_are_evenly_spread_and_no_two_places_share_one():
    numbers = [uniform(Place(seed, sample, step)) for seed in range(5) for sample in range(20) for step in range(200)]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 0 and max(numbers) < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 149  # 99 degrees of freedom, one in a thousand
    neighbours = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(neighbours) < 0.03


@given(some_logits, st.sampled_from(CONFIGS), st.integers(0, 2**63 - 1))
def test_only_what_survives_the_chain_is_drawn(logits, config, seed):
    assert chain(logits, config)[sample_token(logits, config, Place(seed))] > 0


@given(some_logits, st.sampled_from(CONFIGS))
def test_candidates_are_the_chains_probabilities_most_likely_first(logits, config):
    ids, probabilities = candidates(logits, config)
    expected = chain(logits, config)
    assert sorted(ids) == list(np.flatnonzero(expected))
    np.testing.assert_allclose(probabilities, expected[ids], rtol=1e-5)
    pairs = list(zip(-probabilities, ids, strict=True))
    assert pairs == sorted(pairs), "most likely first, the lower id first among equals"
    few_ids, few_probabilities = candidates(logits, config, limit=3)
    assert few_ids.tolist() == ids[:3].tolist() and few_probabilities.tolist() == probabilities[:3].tolist()


@given(some_logits)
def test_greedy_takes_the_lowest_id_of_the_largest_logits(logits):
    config = GenerationConfig(temperature=0, top_k=5, top_p=0.5)
    best = sample_token(logits, config, Place(1, 2, 3))
    assert best == np.flatnonzero(logits == logits.max())[0]
    ids, probabilities = candidates(logits, config)
    assert (ids.tolist(), probabilities.tolist()) == ([best], [1.0])


@given(some_logits, st.integers(1, 400))
def test_top_k_leaves_k_tokens_and_the_ties_of_the_last(logits, k):
    kept = np.isfinite(keep(logits, top_k_ids(logits, k)))
    border = np.sort(logits)[::-1][: min(k, logits.size)][-1]
    np.testing.assert_array_equal(kept, logits >= border)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 5000, 50_257])
@pytest.mark.parametrize("k", [1, 2, 50, 4999])
def test_top_k_is_right_for_every_width_also_with_its_best_in_the_last_columns(size, k):
    for logits in (random_logits(size), np.arange(size, dtype=np.float32), np.round(random_logits(size))):
        border = np.sort(logits)[-min(k, size)]
        np.testing.assert_array_equal(np.isfinite(keep(logits, top_k_ids(logits, k))), logits >= border)


@given(some_logits, st.floats(1e-6, 1))
def test_top_p_keeps_the_fewest_tokens_that_hold_the_share(logits, p):
    exact = np.exp(logits.astype(np.float64) - logits.max())
    exact /= exact.sum()
    kept = np.isfinite(keep(logits, top_p_ids(logits, p)))
    assert kept.any()
    assert exact[kept].sum() >= p - 1e-5
    assert exact[kept].sum() - exact[kept].min() <= p + 1e-5, "one token fewer would have been enough"
    assert kept.all() or logits[kept].min() >= logits[~kept].max()


def test_of_equal_tokens_at_the_border_of_top_p_the_higher_ids_stay():
    logits = np.zeros(8, dtype=np.float32)
    assert np.flatnonzero(np.isfinite(keep(logits, top_p_ids(logits, 0.5)))).tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(np.isfinite(keep(logits, top_p_ids(logits, 1e-12)))).tolist() == [7]


def test_the_order_is_temperature_then_top_k_then_top_p_then_min_p():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    # Top-k leaves 4/7 and 3/7: top-p 0.55 of that is the first alone; of the whole vocabulary it would be the first two.
    assert candidates(logits, GenerationConfig(temperature=1, top_k=2, top_p=0.55))[0].tolist() == [0]
    assert candidates(logits, GenerationConfig(temperature=1, top_p=0.55))[0].tolist() == [0, 1]
    # At temperature 2 the tail is flatter, so that min-p 0.45 lets more through.
    assert candidates(logits, GenerationConfig(temperature=1, min_p=0.45))[0].tolist() == [0, 1, 2]
    assert candidates(logits, GenerationConfig(temperature=2, min_p=0.45))[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-38, 1e-30])
@pytest.mark.parametrize("logits", [[1.0, 3.0, 3.0, 2.0], [-9.0, -7.0, -7.0, -8.0], [-1.0, 0.0, 0.0, -np.inf]])
def test_a_temperature_near_zero_leaves_only_the_largest(temperature, logits):
    ids, probabilities = candidates(np.float32(logits), GenerationConfig(temperature=temperature))
    assert ids.tolist() == [1, 2] and probabilities.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("config", [GenerationConfig(temperature=0), *CONFIGS], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_numbers_are_one_clear_line(config, bad):
    logits = np.full(100, -np.inf, dtype=np.float32) if bad == -np.inf else random_logits(100)
    logits[17] = bad
    for call in (lambda: sample_token(logits, config, Place(1)), lambda: candidates(logits, config)):
        with pytest.raises(
            ModelError, match=r"no numbers to choose by \((nan|inf|-inf) (at id 17|everywhere)\); check it with"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_tokens_at_minus_infinity_and_huge_logits_are_no_trouble(config):
    banned = np.full(1000, -np.inf, dtype=np.float32)
    banned[[5, 900]] = 1.0
    huge = np.array([3e38, -3e38, 3e38, 0], dtype=np.float32)
    assert {sample_token(banned, config, Place(1, 0, step)) for step in range(50)} <= {5, 900}
    assert {sample_token(huge, config, Place(1, 0, step)) for step in range(50)} <= {0, 2}


@pytest.mark.parametrize("config", [GenerationConfig(temperature=0), *CONFIGS], ids=str)
def test_the_callers_logits_are_left_as_they_were(config):
    logits = random_logits(3000)
    before = logits.copy()
    logits.flags.writeable = False
    sample_token(logits, config, Place(1))
    candidates(logits, config)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 20_000])
def test_every_position_falls_on_a_token_that_has_some_probability(size):
    probabilities = softmax(random_logits(size, scale=8.0))
    probabilities[np.random.default_rng(1).random(size) < 0.5] = 0
    probabilities[size // 2] = 0.25
    cumulative = np.cumsum(probabilities, dtype=np.float64) / probabilities.sum(dtype=np.float64)
    borders = cumulative[:: max(1, size // 300)]
    for position in [0.0, 1 - 2.0**-53, *borders[borders < 1], *np.random.default_rng(2).random(200)]:
        index = index_at(probabilities, position)
        assert probabilities[index] > 0
        assert cumulative[index] >= position - 1e-12
        assert index == 0 or cumulative[index - 1] <= position + 1e-12


def test_softmax_keeps_shape_and_dtype_and_sums_to_one():
    for dtype in (np.float32, np.float64):
        probabilities = softmax(random_logits(50_000).astype(dtype))
        assert probabilities.dtype == dtype
        assert probabilities.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
