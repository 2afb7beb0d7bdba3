"""A batch's rows do not depend on each other, nor on the process that computes them."""

import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen import BatchGenerator
from onnx_textgen.errors import OptionError, PromptError
from support.examples import examples

PROMPTS = ["Once upon a time", "The dog", "Lily and Tom", "A", "It was night", "The dog"]


@pytest.fixture(scope="module")
def generate() -> BatchGenerator:
    return BatchGenerator("story", threads=1, device="cpu", max_new_tokens=10, seed=3)


@pytest.fixture(scope="module")
def whole(generate: BatchGenerator) -> list[str]:
    return generate({"prompt": PROMPTS})["generated_text"]


@given(cuts=st.lists(st.integers(0, len(PROMPTS)), max_size=3), order=st.permutations(range(len(PROMPTS))))
@examples(20)
def test_no_partition_changes_a_row(generate: BatchGenerator, whole: list[str], cuts: list[int], order: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(PROMPTS)]
    texts = [
        text
        for first, end in itertools.pairwise(bounds)
        if first < end
        for text in generate({"prompt": [PROMPTS[i] for i in order[first:end]]})["generated_text"]
    ]
    assert texts == [whole[i] for i in order]


def test_a_row_is_the_text_that_the_model_writes_with_its_seed(generate: BatchGenerator) -> None:
    batch = {"prompt": np.array(PROMPTS, dtype=object), "seed": np.arange(6), "id": ["a", "b", "c", "d", "e", "f"]}
    found = generate(batch)
    want = [generate.model.generate(prompt, seed=seed, max_new_tokens=10) for seed, prompt in enumerate(PROMPTS)]
    assert found["generated_text"] == [each.text for each in want]
    assert found["finish_reason"] == [each.finish_reason for each in want]
    assert found["generated_tokens"] == [len(each.token_ids) for each in want]
    assert found["id"] == batch["id"]
    assert found["generated_text"][1] != found["generated_text"][5], "seeds of their own"


ELSEWHERE = "import json, pickle, sys; print(json.dumps(pickle.load(sys.stdin.buffer)({'prompt': sys.argv[1:]})['generated_text']))"
"""A program of its own: a pool's process would have to find this file by its module's name, which pytest makes up."""


def test_it_is_pickled_without_the_model_and_writes_the_same_elsewhere(generate: BatchGenerator, whole: list[str]) -> None:
    pickled = pickle.dumps(generate)
    assert len(pickled) < 1000
    found = subprocess.run([sys.executable, "-c", ELSEWHERE, *PROMPTS[:3]], input=pickled, stdout=subprocess.PIPE, check=True)
    assert json.loads(found.stdout) == whole[:3]


def test_columns_have_the_names_that_are_asked_for(whole: list[str]) -> None:
    named = BatchGenerator("story", prompt="text", output="story", threads=1, device="cpu", max_new_tokens=10, seed=3)
    assert named({"text": tuple(PROMPTS)})["story"] == whole
    ids = named.model.encode(PROMPTS[0])
    assert len(named({"text": [ids]})["story"]) == 1


def test_wrong_options_are_told_before_anything_is_loaded_and_wrong_batches_in_one_line(generate: BatchGenerator) -> None:
    for wrong in ({"top_k": -1}, {"num_beams": 2}, {"nonsense": 1}, {"seed": -1}):
        with pytest.raises(OptionError):
            BatchGenerator("nowhere", **wrong)
    with pytest.raises(OptionError, match="the batch has no column 'prompt', but 'text'; name it with prompt="):
        generate({"text": PROMPTS})
    with pytest.raises(OptionError, match="6 prompts and 2 seeds"):
        generate({"prompt": PROMPTS, "seed": [1, 2]})
    with pytest.raises(PromptError):
        generate({"prompt": ["A", ""]})
    assert generate({"prompt": []})["generated_text"] == []
