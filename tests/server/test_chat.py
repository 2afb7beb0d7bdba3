"""`/v1/chat/completions`, `/tokenize` and `/v1/models` through OpenAI's client and plain HTTP."""

import concurrent.futures
import time

import httpx
import openai
import pytest

from onnx_textgen import Model
from onnx_textgen.answers.contents import MATCH_SECONDS
from support import patient_http
from support.live_server import served

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me of a dog."}]


def test_an_answer_is_that_of_generate_whole_and_streamed(client: openai.OpenAI, chatty: Model) -> None:
    expected = chatty.generate(chatty.encode_chat(MESSAGES), max_new_tokens=25, seed=4, ignore_eos=True)
    asked = {"model": "chatty", "messages": MESSAGES, "max_tokens": 25, "seed": 4, "extra_body": {"ignore_eos": True}}
    found = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    assert (found.object, found.choices[0].message.role) == ("chat.completion", "assistant")
    assert found.choices[0].message.content == expected.text
    assert found.usage.prompt_tokens == len(expected.prompt_ids)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected.text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 25
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_messages_may_have_parts_and_the_newer_role(client: openai.OpenAI, chatty: Model) -> None:
    parts = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "of a dog."}]},
    ]
    asked = {"model": "chatty", "max_completion_tokens": 10, "seed": 4}
    plain, found = (client.chat.completions.create(messages=each, **asked) for each in (MESSAGES, parts))  # type: ignore[call-overload]
    assert found.choices[0].message.content == plain.choices[0].message.content


def test_several_answers_with_log_probabilities(client: openai.OpenAI, chatty: Model) -> None:
    asked = {"model": "chatty", "messages": MESSAGES, "max_tokens": 6, "seed": 4, "n": 2, "logprobs": True, "top_logprobs": 2}
    found = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    expected = chatty.generate(chatty.encode_chat(MESSAGES), max_new_tokens=6, seed=4, logprobs=2)
    content = found.choices[0].logprobs.content
    assert [each.logprob for each in content] == pytest.approx(expected.logprobs)
    assert bytes(byte for each in content for byte in each.bytes).decode() == expected.text
    assert [[top.logprob for top in each.top_logprobs] for each in content] == [
        pytest.approx([one.logprob for one in each]) for each in expected.alternatives
    ]
    assert len(found.choices) == 2
    assert found.choices[0].message.content != found.choices[1].message.content
    streamed = ["", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == [choice.message.content for choice in found.choices]


def test_a_chat_goes_on_to_its_end_unless_told_otherwise(client: openai.OpenAI, chatty: Model) -> None:
    found = client.chat.completions.create(model="chatty", messages=MESSAGES, temperature=0)  # type: ignore[arg-type]
    expected = chatty.generate(chatty.encode_chat(MESSAGES), max_new_tokens=512, temperature=0)
    assert found.choices[0].message.content == expected.text
    assert len(expected.token_ids) > 16


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"messages": []}, "messages: should be a list of at least 1, found a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "the models here read text, found a part of the type 'image_url'; leave it out",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages.0.content: the models here read text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: should be a text or a list of parts, found 5"),
        ({"top_logprobs": 2}, "top_logprobs cannot take effect without logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice 'required' needs tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "a tool should have a name of up to 128 letters"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "two tools are called f; give each its own name"),
        ({"tool_choice": "required"}, "tool_choice 'required' needs tools; give some, or leave it out"),
        ({"extra_body": {"thinking_budget": 5}}, "thinking_budget has no effect: this model does not think"),
        (
            {"extra_body": {"continue_final_message": True, "add_generation_prompt": True}},
            "continues its last message or begins an answer",
        ),
        ({"extra_body": {"chat_template_kwargs": 5}}, "chat_template_kwargs"),
        ({"model": "story"}, "story has no chat template; POST a plain text to /v1/completions"),
    ],
)
def test_what_cannot_be_answered_is_said(client: openai.OpenAI, asked: dict, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "chatty", "messages": MESSAGES, **asked})
    assert said in caught.value.body["message"]  # type: ignore[index]


def test_models_are_listed_and_unknown_ones_refused(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["story", "chatty"]
    assert client.models.retrieve("story").id == "story"
    for ask in (
        lambda: client.models.retrieve("other"),
        lambda: client.completions.create(model="other", prompt="a"),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no model 'other' here; choose one of: story, chatty"):
            ask()


def test_text_to_tokens_and_back(live: tuple, story: Model, chatty: Model) -> None:
    def post(path: str, **body: object) -> httpx.Response:
        return patient_http.post(f"{live[0]}{path}", json=body)

    found = post("/tokenize", model="story", prompt="A little dog.").json()
    assert found == {"tokens": story.encode("A little dog."), "count": len(story.encode("A little dog.")), "max_model_len": 512}
    assert post("/detokenize", model="story", tokens=found["tokens"]).json() == {"prompt": "A little dog."}
    bare = post("/tokenize", model="story", prompt="A little dog.", add_special_tokens=False).json()["tokens"]
    assert bare == found["tokens"][1:]
    assert post("/tokenize", model="chatty", messages=MESSAGES).json()["tokens"] == chatty.encode_chat(MESSAGES)
    for path, body in (
        ("/tokenize", {"model": "story"}),
        ("/detokenize", {"model": "story", "tokens": [10**9]}),
        ("/detokenize", {"model": "story", "tokens": ["a"]}),
    ):
        answer = post(path, **body)
        assert (answer.status_code, set(answer.json())) == (400, {"error"})


def test_the_beginning_of_an_answer_is_continued(client: openai.OpenAI, chatty: Model) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "The dog ran to"}]
    ids = chatty.encode_chat(begun, continue_final_message=True)
    assert chatty.tokenizer.decode(ids).endswith("The dog ran to")
    extra = {"continue_final_message": True}
    found = client.chat.completions.create(model="chatty", messages=begun, temperature=0, max_tokens=8, extra_body=extra)
    assert found.choices[0].message.content == chatty.generate(ids, temperature=0, max_new_tokens=8).text


def test_variables_and_documents_reach_the_template(story: Model) -> None:
    template = "{{ mood }}{% for d in documents or [] %}{{ d.text }}{% endfor %}{{ messages[-1].content }}"
    with served({"own": Model(story.folder, story.manifest, story.graph, chat_template=template)}) as (url, _):
        body = {
            "messages": [{"role": "user", "content": "dog"}],
            "chat_template_kwargs": {"mood": "Sad "},
            "documents": [{"text": "big "}],
        }
        found = patient_http.post(f"{url}/tokenize", json=body).json()["tokens"]
    assert found == story.tokenizer.encode("Sad big dog", add_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_template_that_takes_long_keeps_nobody_else_waiting(story: Model, chatty: Model, stream: bool) -> None:
    slow = {"start_anchor": "<assistant>", "fields": {"x": {"open_pattern": r"(?s:.|..)+$(?<=\x01)"}, "content": {}}}
    model = Model(story.folder, story.manifest, story.graph, chat_template=chatty.chat_template, response_template=slow)
    body = {"model": "slow", "messages": MESSAGES, "max_tokens": 60, "stream": stream, "ignore_eos": True, "temperature": 0}
    with served({"slow": model}) as (url, _), httpx.Client(base_url=url, timeout=patient_http.LONGEST_WAIT) as client:
        client.get("/health").raise_for_status()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            began, waits = time.perf_counter(), []
            asked = pool.submit(client.post, "/v1/chat/completions", json=body)
            while not asked.done():
                start = time.perf_counter()
                client.get("/health").raise_for_status()
                waits.append(time.perf_counter() - start)
                time.sleep(0.01)
    assert "takes too long" in asked.result().text
    assert time.perf_counter() - began > MATCH_SECONDS, "it was slow"
    assert max(waits) < MATCH_SECONDS / 2
