"""`/v1/completions` through OpenAI's client: the texts of `generate`, in OpenAI's words."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from onnx_textgen import Model
from support import patient_http

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


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_how_likely_the_end_of_a_text_was_counts_among_several_as_in_generate(
    client: openai.OpenAI, story: Model, seed: int
) -> None:
    """One of the five ends at once: without its end it would have no token that is unlikely."""
    prompt = "They were very happy. The end."
    found = client.completions.create(model="story", prompt=prompt, max_tokens=12, seed=seed, n=2, best_of=5)
    expected = story.generate(prompt, max_new_tokens=12, seed=seed, num_return_sequences=2, best_of=5)
    assert [choice.text for choice in found.choices] == [each.text for each in expected.sequences]


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
        ({"max_tokens": 0}, "max_tokens 0 generates no text"),
        ({"n": 0}, "n: should be at least 1, found 0"),
        ({"n": 64, "prompt": ["a", "b"]}, "the request asks for 128 texts; this server allows at most"),
        ({"n": 3, "best_of": 2}, "best_of 2 is less than n 3"),
        ({"best_of": 2, "stream": True}, "best_of compares whole texts"),
        ({"logit_bias": {"cat": 1}}, "logit_bias names 'cat'"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias names '9999"),
        ({"logit_bias": {"99999": 1}}, "outside the vocabulary"),
        ({"extra_body": {"bad_words_ids": [[i] for i in range(4096)]}}, "the options together rule out every token"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "1 to 256 prompts"),
        ({"prompt": [99999]}, "outside the vocabulary"),
        ({"prompt": ["a"] * 300}, "1 to 256 prompts"),
        ({"extra_body": {"tools": [{}]}}, "there is no parameter 'tools'"),
        ({"extra_body": {"num_beams": 4}}, "there is no parameter 'num_beams'"),
        ({"suffix": "end"}, "story has no control tokens for a suffix; give it a text that it continues"),
        ({"suffix": "end", "prompt": [1, 2]}, "suffix needs a prompt that is text"),
        ({"suffix": "end", "echo": True}, "echo with suffix would repeat"),
        ({"extra_body": {"suffix_first": True}}, "suffix_first has no effect without a suffix"),
        ({"prompt": "word " * 600}, "this model takes 511 at most"),
        ({"seed": 1.5}, "seed"),
        ({"extra_body": {"stop": 5}}, "stop: should be a text or a list, found 5"),
        ({"extra_body": {"max_new_tokens": 9}}, "max_new_tokens is called max_tokens here"),
        ({"extra_body": {"json_schema": "{}"}}, "json_schema is called response_format here"),
        ({"extra_body": {"stream_options": {"9" * 5000: 1}}}, "stream_options: there is no parameter '9999"),
        ({"extra_body": {"stream_options": {"include_usge": True}}}, "'include_usge' here; did you mean include_usage?"),
        ({"extra_body": {"max_token": 5}}, "there is no parameter 'max_token' here; did you mean max_tokens?"),
        ({"extra_body": {"repetiton_penalty": 1.2}}, "did you mean repetition_penalty?"),
        ({"extra_body": {"max_new_token": 5}}, "did you mean max_new_tokens?"),
        ({"extra_body": {"length_penalty": 1.2}}, "there is no parameter 'length_penalty' here; leave it out"),
        ({"extra_body": {"colour": 1}}, "there is no parameter 'colour' here; leave it out"),
        ({"extra_body": {"tool_choice": "required"}}, "there is no parameter 'tool_choice'"),
        ({"prompt": [1] * 10_000 + ["a"]}, "should be text, token ids"),
        ({"prompt": [{"a": 1}] * 200}, "should be text, token ids"),
        ({"extra_body": {"prompt": {"a": 1}}}, "should be text, token ids"),
    ],
)
def test_what_cannot_be_answered_is_said(client: openai.OpenAI, asked: dict, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "story", "prompt": PROMPT, **asked})
    assert said in caught.value.body["message"]  # type: ignore[index]
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index]


@pytest.mark.parametrize(
    ("route", "asked", "said"),
    [
        ("tokenize", {"promt": "A"}, "there is no parameter 'promt' here; did you mean prompt?"),
        ("tokenize", {"prompt": "A", "chat_template_kwarg": {}}, "did you mean chat_template_kwargs?"),
        ("tokenize", {"prompt": "A", "colour": 1}, "there is no parameter 'colour' here; leave it out"),
        ("detokenize", {"token": [1]}, "tokens: it should be given"),
        ("detokenize", {"tokens": [1], "modell": "x"}, "there is no parameter 'modell' here; did you mean model?"),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "max_token": 1}, "did you mean max_tokens?"),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "message": 1}, "did you mean messages?"),
    ],
)
def test_a_misspelt_parameter_is_told_with_the_name_that_was_meant(live: tuple, route: str, asked: dict, said: str) -> None:
    answer = patient_http.post(f"{live[0]}/{route}", json={"model": "chatty"} | asked)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), answer.text


def test_what_asks_for_nothing_is_passed_over(client: openai.OpenAI, story: Model) -> None:
    extra = {"tools": [], "tool_choice": "none", "modalities": ["text"], "top_k": -1, "skip_special_tokens": True, "store": False}
    asked = {"model": "story", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "top_p": 0.9, "seed": -1}
    found = client.completions.create(**asked, extra_body=extra)  # type: ignore[call-overload]
    assert found.choices[0].text == story.generate(PROMPT, max_new_tokens=8, temperature=0).text


def test_offsets_are_places_in_the_text(client: openai.OpenAI) -> None:
    for prompt, asked in (
        (PROMPT, {"echo": True}),
        (PROMPT, {}),
        ("The \u00e9l\u00e8ve \u2603", {"echo": True, "logit_bias": {"200": 90}}),
    ):
        found = client.completions.create(model="story", prompt=prompt, max_tokens=9, logprobs=0, seed=1, **asked).choices[0]
        assert found.logprobs is not None
        tokens, offsets = found.logprobs.tokens or [], found.logprobs.text_offset or []
        assert offsets == sorted(offsets)
        assert offsets[-1] <= len(found.text)
        for token, offset in zip(tokens, offsets, strict=True):
            assert token.startswith("<") or found.text.startswith(token, offset)
        tops = found.logprobs.top_logprobs or []
        assert [list(top) for top in tops if top] == [[token] for token, top in zip(tokens, tops, strict=True) if top]


def test_a_scored_prompt_has_as_many_values_whatever_comes_next(client: openai.OpenAI, story: Model) -> None:
    asked = {"model": "story", "prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    usual, at_the_end = (
        client.completions.create(**asked, logit_bias=bias).choices[0]  # type: ignore[call-overload]
        for bias in (None, {str(story.manifest.eos_ids[0]): 100})
    )
    assert (usual.finish_reason, at_the_end.finish_reason) == ("length", "stop")
    assert at_the_end.logprobs.token_logprobs[:-1] == usual.logprobs.token_logprobs[:-1]
    assert len(at_the_end.logprobs.tokens) == len(usual.logprobs.tokens) == 6


def test_lines_of_a_stream_hold_any_character(live: tuple) -> None:
    pytest.importorskip("llguidance")
    asked = {"model": "story", "prompt": "A", "max_tokens": 20, "regex": "a\u2028\u0085b", "stream": True}
    with patient_http.stream("POST", f"{live[0]}/v1/completions", json=asked) as stream:
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == "a\u2028\u0085b"


def test_a_prompt_of_many_texts_is_counted_once(live: tuple, client: openai.OpenAI) -> None:
    prompt = "One day a very small dog with a red ball went to the park and saw"
    found = [client.completions.create(model="story", prompt=prompt, max_tokens=2, n=4, seed=1).usage for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].prompt_tokens == found[1].prompt_tokens < 25
    details = found[1].prompt_tokens_details
    assert details is not None
    assert 0 < (details.cached_tokens or 0) < found[1].prompt_tokens


def test_a_rule_is_compiled_once_and_its_faults_are_the_clients(client: openai.OpenAI, story: Model, monkeypatch) -> None:
    llguidance = pytest.importorskip("llguidance")
    made, real = [0], llguidance.LLMatcher.grammar_from_json_schema

    def counted(*given: object, **more: object) -> object:
        made[0] += 1
        return real(*given, **more)

    monkeypatch.setattr(llguidance.LLMatcher, "grammar_from_json_schema", staticmethod(counted))
    schema = {"type": "object", "properties": {f"property{number}": {"type": "integer"} for number in range(3000)}}
    wanted = {"type": "json_schema", "json_schema": {"name": "large", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="make it simpler"):
        client.completions.create(model="story", prompt="A", max_tokens=3, n=16, extra_body={"response_format": wanted})
    assert made[0] == 1


def schema_in(form: str, schema: dict[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    """The field of a request that asks for JSON of a schema, by wire format."""
    named = {"name": "numbers", "strict": strict, "schema": schema}
    return {
        "openai": {"response_format": {"type": "json_schema", "json_schema": named}},
        "responses": {"text": {"format": {"type": "json_schema"} | named}},
        "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "ollama": {"format": schema},
    }[form]


CHAT = {"messages": [{"role": "user", "content": "1"}]}
TEXTS_OF: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "v1/completions": ("openai", {"prompt": "1", "max_tokens": 20}, lambda found: found["choices"][0]["text"]),
    "v1/chat/completions": ("openai", CHAT | {"max_tokens": 20}, lambda found: found["choices"][0]["message"]["content"]),
    "v1/responses": ("responses", {"input": "1"}, lambda found: found["output"][0]["content"][0]["text"]),
    "v1/messages": ("anthropic", CHAT | {"max_tokens": 20}, lambda found: found["content"][0]["text"]),
    "api/generate": ("ollama", {"prompt": "1"}, lambda found: found["response"]),
    "api/chat": ("ollama", CHAT, lambda found: found["message"]["content"]),
}
"""Of each route the wire format, a request, and where an answer has its text."""


@pytest.mark.parametrize("route", TEXTS_OF)
def test_what_no_grammar_can_follow_is_refused_if_strict_and_else_checked_on_the_text(live: tuple, route: str) -> None:
    form, asked, text_of = TEXTS_OF[route]
    numbers = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}

    def post(*, strict: bool | None = None, stream: bool = False, seed: int = 0) -> httpx.Response:
        drawn = {"seed": seed, "temperature": 1.5}
        body = {"model": "chatty", "stream": stream} | asked | schema_in(form, numbers, strict=strict)
        return patient_http.post(f"{live[0]}/{route}", json=body | ({"options": drawn} if form == "ollama" else drawn))

    if form in ("openai", "responses"):
        refused = post(strict=True)
        assert (refused.status_code, "uniqueItems" in refused.json()["error"]["message"]) == (400, True)
    verdicts = set[bool]()
    for seed in range(12):
        found, streamed = post(seed=seed), post(seed=seed, stream=True)
        one, other = json.loads(text_of(found.json()))
        for text in (found.text, streamed.text):
            assert ('"follows_schema":false' not in text.replace(" ", "")) is (one != other)
        verdicts.add(one != other)
    assert verdicts == {True, False}
