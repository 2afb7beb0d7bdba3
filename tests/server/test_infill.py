"""`/v1/completions` with a `suffix`, for a model whose tokenizer has the control tokens."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

import onnx_textgen
from onnx_textgen import Model
from support.infilling import make_infilling_folder
from support.live_server import served

BEFORE, AFTER = "Once upon a time there was a", "They were happy."


@pytest.fixture(scope="module")
def infilling(story: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[openai.OpenAI, Model, int]]:
    """A client, the model, and the id of the token after which a middle ends."""
    folder = Path(tmp_path_factory.mktemp("infill") / "story")
    *_, pad_id = make_infilling_folder(story.folder, folder)
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    with served({"infilling": model}) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        yield client, model, pad_id


@pytest.mark.parametrize("suffix_first", [None, True])
def test_the_text_between_is_that_of_generate_whole_and_streamed(infilling: tuple, suffix_first: bool | None) -> None:
    client, model, _ = infilling
    ids = model.encode_infill(BEFORE, AFTER, suffix_first=suffix_first)
    expected = model.generate(ids, max_new_tokens=12, seed=3, ignore_eos=True)
    asked: dict = {"model": "infilling", "prompt": BEFORE, "suffix": AFTER, "max_tokens": 12, "seed": 3}
    asked |= {"extra_body": {"suffix_first": suffix_first, "ignore_eos": True}}
    found = client.completions.create(**asked)
    assert found.choices[0].text == expected.text
    assert found.usage.prompt_tokens == len(ids)
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)) == expected.text


def test_an_empty_suffix_is_none(infilling: tuple) -> None:
    client, model, _ = infilling
    found = client.completions.create(model="infilling", prompt=BEFORE, suffix="", max_tokens=6, temperature=0)
    assert found.choices[0].text == model.generate(BEFORE, max_new_tokens=6, temperature=0).text


def test_the_text_ends_at_the_tokens_that_end_a_middle(infilling: tuple) -> None:
    client, _, pad_id = infilling
    asked: dict = {"model": "infilling", "prompt": BEFORE, "suffix": AFTER, "max_tokens": 12, "logit_bias": {str(pad_id): 100}}
    found = client.completions.create(**asked)
    assert (found.choices[0].finish_reason, found.usage.completion_tokens) == ("stop", 1)
