"""The chain of `runtime/web/textgen` chooses what Python chooses: random numbers bit for bit, ids for the same logits and place."""

import base64
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnx_textgen.errors import ModelError, OptionError
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import Place, final_candidates, uniform
from onnx_textgen.sampling.sampler import Chooser
from support.examples import examples
from support.node import Node, NodeError, floats

counts = st.integers(0, 2**53 - 1)
VOCAB = 12
few_logits = arrays(np.float32, VOCAB, elements=st.integers(-512, 512).map(lambda number: number / 64))
"""Multiples of 1/64: logits that differ in the last bit would be equally likely for one exponential and not for the other."""
PIECES = [*" abcdefgh", "\n", ": x", '"']


@given(places=st.lists(st.tuples(st.integers(0, 2**63 - 1), counts, counts, counts, st.integers(0, 3)), min_size=1, max_size=50))
def test_random_numbers_equal_pythons_to_the_last_bit_at_any_place(node: Node, places: list[tuple[int, ...]]) -> None:
    ours = [uniform(Place(*place), number) for *place, number in places]
    assert node.call("uniform", [[str(seed), *rest] for seed, *rest in places]) == ours


def test_random_numbers_equal_pythons_where_the_counter_is_about_to_overflow(node: Node) -> None:
    for place in [(2**63 - 1, 0, 2**53 - 1, 0), (0, 2**53 - 1, 0, 2**53 - 1)]:
        assert node.call("uniform", [[str(place[0]), *place[1:], 1]]) == [uniform(Place(*place), 1)]


TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.5, "top_k": 40},
    {"top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.5},
    {"min_p": 0.05},
    {"typical_p": 0.8},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9, "top_n_sigma": 2.0, "xtc_probability": 0.3, "xtc_threshold": 0.2},
    {"mirostat": 2, "mirostat_tau": 3.0},
]


@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_the_same_logits_and_place_give_the_same_id(node: Node, options: dict[str, Any]) -> None:
    """NumPy's exponential is not the nearest float32, so about one choice in a hundred thousand may cross a border."""
    draw = np.random.default_rng(5)
    rows = [(draw.standard_normal(size) * draw.choice([0.3, 2, 6])).astype(np.float32) for size in draw.integers(1, 3000, 400)]
    config = GenerationConfig(**options, seed=11)
    ours = [Chooser(config, prompt_ids=[], eos_ids=[]).choose(row, [0] * step) for step, row in enumerate(rows)]
    theirs = node.call("draws", {**options, "seed": "11"}, [floats(row) for row in rows])
    assert sum(one != other for one, other in zip(ours, theirs, strict=True)) <= 1
    assert len(set(ours)) > 100


@pytest.mark.parametrize(
    "options", [each for each in TRUNCATIONS if "mirostat" not in each and "xtc_probability" not in each], ids=str
)
def test_logits_with_ties_and_exact_borders_leave_the_same_candidates(node: Node, options: dict[str, Any]) -> None:
    draw = np.random.default_rng(6)
    rows = [np.log2(draw.integers(1, 5, size)).astype(np.float32) * np.float32(np.log(2)) for size in draw.integers(1, 300, 300)]
    rows += [draw.integers(-3, 3, size).astype(np.float32) for size in draw.integers(1, 300, 100)]
    rows += [np.zeros(size, np.float32) for size in (1, 2, 3, 4, 8, 10, 100, 1000)]
    found = [final_candidates(row, GenerationConfig(**options), Place(0)).ids for row in rows]
    wanted = [[] if ids is None else ids.tolist() for ids in found]
    theirs = node.call("kept", {**options, "seed": "0"}, [floats(row) for row in rows])
    assert sum(one != other for one, other in zip(wanted, theirs, strict=True)) <= 1


options_of_a_text = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**63 - 1), "temperature": st.sampled_from([0.5, 1.0, 1.7])},
    optional={
        "top_k": st.integers(1, VOCAB),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(0.05, 1),
        "top_n_sigma": st.floats(0.1, 3),
        "xtc_probability": st.floats(0.1, 1),
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "no_repeat_ngram_size": st.integers(1, 4),
        "dry_multiplier": st.floats(0.1, 3),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
        "bad_words_ids": st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), max_size=2),
        "min_new_tokens": st.integers(1, 6),
    },
)


def choices(
    options: dict[str, Any], prompt: list[int], rows: list[np.ndarray], ids: list[int] | None = None, sample: int = 0
) -> list[int]:
    """Python's choices; those before a step are `ids` if given."""
    config = dataclasses.replace(GenerationConfig(**options))
    chooser = Chooser(config, prompt_ids=prompt, eos_ids=[0], piece=PIECES.__getitem__, sample=sample)
    chosen = list[int]()
    for step, row in enumerate(rows):
        chosen.append(chooser.choose(row, chosen if ids is None else ids[:step]))
    return chosen


@given(
    options=options_of_a_text,
    prompt=st.lists(st.integers(0, VOCAB - 1), max_size=20),
    rows=st.lists(few_logits, min_size=1, max_size=12),
    sample=st.integers(0, 3),
)
@examples(60)
def test_a_text_takes_the_same_tokens_through_the_whole_chain(
    node: Node, options: dict[str, Any], prompt: list[int], rows: list[np.ndarray], sample: int
) -> None:
    given_options = {**options, "seed": str(options["seed"])}
    request = {"options": given_options, "prompt_ids": prompt, "eos_ids": [0], "pieces": PIECES, "sample": sample}
    sent = [floats(row) for row in rows]
    try:
        ours = choices(options, prompt, rows, sample=sample)
    except (OptionError, ModelError) as error:
        with pytest.raises(NodeError, match="nothing is left to choose from") as caught:
            node.call("choices", {**request, "rows": sent, "ids": [0] * len(rows)} | refusing(options, prompt, rows, sample))
        assert (caught.value.kind, str(caught.value)) == (type(error).__name__, str(error))
        return
    assert node.call("choices", {**request, "rows": sent, "ids": ours}) == ours


@given(
    options=st.fixed_dictionaries(
        {"seed": st.just(1), "dry_multiplier": st.floats(0.1, 3)},
        optional={
            "dry_base": st.floats(1, 3),
            "dry_allowed_length": st.integers(1, 4),
            "dry_penalty_last_n": st.integers(-1, 12),
            "repetition_penalty": st.floats(0.5, 2),
            "presence_penalty": st.floats(-2, 2),
            "frequency_penalty": st.floats(-2, 2),
            "no_repeat_ngram_size": st.integers(1, 4),
            "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
            "bad_words_ids": st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=2),
            "min_new_tokens": st.integers(1, 6),
        },
    ),
    prompt=st.lists(st.sampled_from([1, 2, 3, 9]), max_size=20),
    ids=st.lists(st.sampled_from([1, 2, 3]), max_size=20),
    row=arrays(np.float32, VOCAB, elements=st.floats(-8, 8, width=32)),
)
@examples(60)
def test_penalties_of_texts_that_repeat_themselves_are_pythons_to_the_last_bits(
    node: Node, options: dict[str, Any], prompt: list[int], ids: list[int], row: np.ndarray
) -> None:
    chooser = Chooser(GenerationConfig(**options), prompt_ids=prompt, eos_ids=[0], piece=PIECES.__getitem__)
    wanted = chooser.process(row, ids)
    request = {"options": {**options, "seed": "1"}, "prompt_ids": prompt, "eos_ids": [0], "pieces": PIECES, "ids": ids}
    found = np.frombuffer(base64.b64decode(node.call("processed", {**request, "row": floats(row)})), np.float32)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_array_max_ulp(found[np.isfinite(found)], wanted[np.isfinite(wanted)], 1)  # the power may round differently


def refusing(options: dict[str, Any], prompt: list[int], rows: list[np.ndarray], sample: int) -> dict[str, Any]:
    """The ids before the step at which Python refuses."""
    ids = list[int]()
    for end in range(1, len(rows) + 1):
        try:
            ids = choices(options, prompt, rows[:end], sample=sample)
        except (OptionError, ModelError):
            break
    return {"ids": ids}


@given(
    rows=st.lists(few_logits, min_size=2, max_size=12),
    tau=st.floats(0.5, 4),
    seed=st.integers(0, 2**63 - 1),
    others=st.lists(st.integers(0, VOCAB - 1), min_size=12, max_size=12),
)
@examples(60)
def test_mirostat_follows_the_tokens_that_were_appended(
    node: Node, rows: list[np.ndarray], tau: float, seed: int, others: list[int]
) -> None:
    options = {"mirostat": 2, "mirostat_tau": tau, "temperature": 1.0}
    request = {"prompt_ids": [], "eos_ids": [], "pieces": None, "sample": 0, "rows": [floats(row) for row in rows]}
    ids = others[: len(rows)]
    ours = choices({**options, "seed": seed}, [], rows, ids)
    assert node.call("choices", {**request, "options": {**options, "seed": str(seed)}, "ids": ids}) == ours


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(node: Node, value: float) -> None:
    row = np.array([value, value], np.float32)
    with pytest.raises(NodeError, match="no numbers to choose by") as caught:
        node.call("draws", {}, [floats(row)])
    assert caught.value.kind == "ModelError"
    assert node.call("draws", {"temperature": 1e-30, "seed": "1"}, [floats(np.float32([1, 3e38, 2]))]) == [1]
