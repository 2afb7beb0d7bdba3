"""The chain of `runtime/web/textgen` chooses what Python chooses: random numbers bit for bit, ids for the same logits and place."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import Place, final_candidates, sample_token, uniform
from onnx_textgen.sampling.sampler import Chooser
from support.examples import examples
from support.node import Node, NodeError, floats

VOCAB = 12
few_logits = arrays(np.float32, VOCAB, elements=st.integers(-512, 512).map(lambda number: number / 64))
"""Multiples of 1/64: logits that differ in the last bit would be equally likely for one exponential and not for the other."""
place = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1))


@given(places=st.lists(place, min_size=1, max_size=50))
@example([(2**63 - 1, 0, 2**53 - 1), (0, 2**53 - 1, 0)])
def test_random_numbers_equal_pythons_to_the_last_bit_at_any_place(node: Node, places: list[tuple[int, int, int]]) -> None:
    assert node.call("uniform", [[str(seed), *rest] for seed, *rest in places]) == [uniform(Place(*each)) for each in places]


TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.5, "top_k": 40},
    {"top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.5},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
]


@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_the_same_logits_and_place_give_the_same_id(node: Node, options: dict[str, Any]) -> None:
    """NumPy's exponential is not the nearest float32, so about one choice in a hundred thousand may cross a border."""
    draw = np.random.default_rng(5)
    rows = [(draw.standard_normal(size) * draw.choice([0.3, 2, 6])).astype(np.float32) for size in draw.integers(1, 3000, 400)]
    config = GenerationConfig(**options, seed=11)
    ours = [sample_token(row, config, Place(11, step=step)) for step, row in enumerate(rows)]
    request = {"options": {**options, "seed": "11"}, "prompt_ids": [], "ids": [0] * len(rows)}
    theirs = node.call("choices", {**request, "rows": [floats(row) for row in rows]})
    assert sum(one != other for one, other in zip(ours, theirs, strict=True)) <= 1
    assert len(set(ours)) > 100


@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_logits_with_ties_and_exact_borders_leave_the_same_candidates(node: Node, options: dict[str, Any]) -> None:
    draw = np.random.default_rng(6)
    rows = [np.log2(draw.integers(1, 5, size)).astype(np.float32) * np.float32(np.log(2)) for size in draw.integers(1, 300, 300)]
    rows += [draw.integers(-3, 3, size).astype(np.float32) for size in draw.integers(1, 300, 100)]
    rows += [np.zeros(size, np.float32) for size in (1, 2, 3, 4, 8, 10, 100, 1000)]
    found = [final_candidates(row, GenerationConfig(**options)).ids for row in rows]
    wanted = [[] if ids is None else ids.tolist() for ids in found]
    theirs = node.call("kept", {**options, "seed": "0"}, [floats(row) for row in rows])
    assert sum(one != other for one, other in zip(wanted, theirs, strict=True)) <= 1


options_of_a_text = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**63 - 1), "temperature": st.sampled_from([0, 0.5, 1.0, 1.7])},
    optional={
        "top_k": st.integers(1, VOCAB),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.5, 2),
    },
)


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
    chooser, ours = Chooser(GenerationConfig(**options), prompt_ids=prompt, eos_ids=[0], sample=sample), list[int]()
    for row in rows:
        ours.append(chooser.choose(row, ours))
    request = {"options": {**options, "seed": str(options["seed"])}, "prompt_ids": prompt, "sample": sample, "ids": ours}
    assert node.call("choices", {**request, "rows": [floats(row) for row in rows]}) == ours


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(node: Node, value: float) -> None:
    def choices(row: list[float], **options: Any) -> Any:
        return node.call("choices", {"options": options, "prompt_ids": [], "ids": [], "rows": [floats(np.float32(row))]})

    with pytest.raises(NodeError, match="no numbers to choose by") as caught:
        choices([value, value])
    assert caught.value.kind == "ModelError"
    assert choices([1, 3e38, 2], temperature=1e-30, seed="1") == [1]
