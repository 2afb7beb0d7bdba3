"""`/v1/completions` through OpenAI's client: the texts of `generate`, in OpenAI's words."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from onnx_textgen import Model

PROMPT = "Once upon a time"


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 0.8, "temperature": 1.1}, {"top_p": 0.8, "temperature": 1.1}),
        ({"stop": ["."]}, {"stop": ["."]}),
        ({"stop": "."}, {"stop": "."}),
        ({"presence_penalty": 1.5, "frequency_penalty": 0.5}, {"presence_penalty": 1.5, "frequency_penalty": 0.5}),
        ({"logit_bias": {"300": 50}}, {"logit_bias": {300: 50}}),
        ({"extra_body": {"top_k": 5, "repetition_penalty": 1.2, "user": "me"}}, {"top_k": 5, "repetition_penalty": 1.2}),
    ],
)
def test_a_text_is_that_of_generate_whole_and_streamed(client: openai.OpenAI, story: Model, asked: dict, options: dict) -> None:
    expected = story.generate(PROMPT, max_new_tokens=30, seed=5, **options)
    found = client.completions.create(model="story", prompt=PROMPT, max_tokens=30, seed=5, **asked)
    assert found.choices[0].text == expected.text
    assert found.choices[0].finish_reason == ("length" if expected.finish_reason == "length" else "stop")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, len(expected.token_ids))
    assert (found.object, found.model) == ("text_completion", "story")
    chunks = list(client.completions.create(model="story", prompt=PROMPT, max_tokens=30, seed=5, stream=True, **asked))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == found.choices[0].finish_reason
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_several_texts_and_prompts_are_those_of_generate(client: openai.OpenAI, story: Model) -> None:
    prompts = [PROMPT, "The dog ran", story.encode("A cat")]
    expected = [story.generate(prompt, max_new_tokens=12, seed=3, num_return_sequences=3) for prompt in prompts]
    found = client.completions.create(model="story", prompt=prompts[:2], max_tokens=12, seed=3, n=3)
    texts = [each.text for one in expected[:2] for each in one.sequences]
    assert sorted(choice.text for choice in found.choices) == sorted(texts)
    assert [choice.index for choice in found.choices] == list(range(6))
    assert found.usage is not None
    assert found.usage.prompt_tokens == 5 + 4
    ids = client.completions.create(model="story", prompt=prompts[2], max_tokens=12, seed=3)
    assert ids.choices[0].text == story.generate(prompts[2], max_new_tokens=12, seed=3).text
    streamed = [""] * 6
    usage = None
    for chunk in client.completions.create(
        model="story", prompt=prompts[:2], max_tokens=12, seed=3, n=3, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in found.choices]
    assert usage is not None
    assert usage.completion_tokens == found.usage.completion_tokens


def test_the_likeliest_of_several_are_given_back(client: openai.OpenAI, story: Model) -> None:
    found = client.completions.create(model="story", prompt=PROMPT, max_tokens=12, seed=3, n=2, best_of=5)
    expected = story.generate(PROMPT, max_new_tokens=12, seed=3, num_return_sequences=2, best_of=5)
    assert [choice.text for choice in found.choices] == [each.text for each in expected.sequences]
    assert found.choices[0].logprobs is None
    assert found.usage is not None
    assert found.usage.completion_tokens == 60


def test_log_probabilities_are_those_of_generate_and_score(client: openai.OpenAI, story: Model) -> None:
    expected = story.generate(PROMPT, max_new_tokens=8, seed=1, logprobs=3)
    found = client.completions.create(model="story", prompt=PROMPT, max_tokens=8, seed=1, logprobs=3).choices[0]
    assert found.logprobs is not None
    assert found.logprobs.token_logprobs == pytest.approx(expected.logprobs)
    assert found.logprobs.top_logprobs is not None
    assert [len(each) for each in found.logprobs.top_logprobs] == [3] * 8
    assert "".join(found.logprobs.tokens or ()) == found.text
    offsets = found.logprobs.text_offset or []
    assert [found.text[offset:] for offset in offsets] == ["".join(found.logprobs.tokens[i:]) for i in range(8)]
    streamed = [
        chunk.choices[0].logprobs
        for chunk in client.completions.create(model="story", prompt=PROMPT, max_tokens=8, seed=1, logprobs=3, stream=True)
    ]
    assert [value for each in streamed if each for value in each.token_logprobs or ()] == found.logprobs.token_logprobs
    assert [value for each in streamed if each for value in each.text_offset or ()] == offsets
    scored = client.completions.create(model="story", prompt="The cat sat.", max_tokens=0, logprobs=2, echo=True).choices[0]
    score = story.score("The cat sat.", logprobs=2)
    assert scored.text == "The cat sat."
    assert scored.logprobs is not None
    assert scored.logprobs.token_logprobs == [None, *score.logprobs]
    both = client.completions.create(model="story", prompt="The cat sat.", max_tokens=3, logprobs=2, echo=True, seed=1).choices[0]
    assert both.logprobs is not None
    assert len(both.logprobs.token_logprobs or ()) == 1 + len(score.logprobs) + 3
    assert both.text.startswith("The cat sat.")


def test_a_text_follows_a_schema(client: openai.OpenAI) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}},
        "required": ["age", "kind"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
    for seed in range(3):
        found = client.completions.create(
            model="story", prompt="An animal: ", max_tokens=80, seed=seed, extra_body={"response_format": wanted}
        )
        jsonschema.validate(json.loads(found.choices[0].text), schema)
        assert found.choices[0].finish_reason == "stop"


def test_many_clients_at_once_get_the_texts_that_each_gets_alone(client: openai.OpenAI, story: Model) -> None:
    expected = {seed: story.generate(PROMPT, max_new_tokens=40, seed=seed).text for seed in range(24)}

    def ask(seed: int) -> str:
        if seed % 2:
            return client.completions.create(model="story", prompt=PROMPT, max_tokens=40, seed=seed).choices[0].text
        stream = client.completions.create(model="story", prompt=PROMPT, max_tokens=40, seed=seed, stream=True)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(24) as pool:
        assert dict(zip(expected, pool.map(ask, expected), strict=True)) == expected


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"temperature": -1}, "temperature should be"),
        ({"max_tokens": 0}, "max_tokens 0 asks for no text"),
        ({"n": 0}, "n: Input should be greater"),
        ({"n": 3, "best_of": 2}, "best_of 2 is less than n 3"),
        ({"best_of": 2, "stream": True}, "best_of chooses among whole texts"),
        ({"logit_bias": {"cat": 1}}, "logit_bias names 'cat'"),
        ({"logit_bias": {"99999": 1}}, "outside the vocabulary"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "1 to 256 prompts"),
        ({"prompt": [99999]}, "outside the vocabulary"),
        ({"prompt": ["a"] * 300}, "1 to 256 prompts"),
        ({"extra_body": {"tools": [{}]}}, "there is no parameter 'tools'"),
        ({"extra_body": {"num_beams": 4}}, "there is no parameter 'num_beams'"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": "word " * 600}, "this model takes 511 at most"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_what_cannot_be_answered_is_said(client: openai.OpenAI, asked: dict, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "story", "prompt": PROMPT, **asked})
    assert said in caught.value.body["message"]  # type: ignore[index]
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index]
