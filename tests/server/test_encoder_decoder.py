"""An encoder-decoder behind the server: its source is the prompt of `/v1/completions`, and other routes say what it is."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.pool.sources import FolderSource
from support import patient_http
from support.live_server import served, served_pool

PACKAGES = Path(__file__).parents[1] / "packages"


@pytest.fixture(scope="module")
def numbers() -> Model:
    return onnx_textgen.load(PACKAGES / "numbers", threads=1, device="cpu")


@pytest.fixture(scope="module")
def url(numbers: Model, story: Model) -> Iterator[str]:
    """The address of a server of an encoder-decoder and a decoder."""
    with served({"numbers": numbers, "story": story}) as (found, _):
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as found:
        yield found


def write(client: openai.OpenAI, prompt: Any, **asked: Any) -> Any:
    return client.completions.create(**{"model": "numbers", "prompt": prompt, "temperature": 0, "max_tokens": 24} | asked)


def test_the_prompt_is_the_source_and_the_text_is_written_for_it(client: openai.OpenAI) -> None:
    found = write(client, "4071")
    assert found.choices[0].text == "four thousand and seventy one"
    assert found.choices[0].finish_reason == "stop"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (5, 5, 10)
    assert found.usage.prompt_tokens_details.cached_tokens == 0


def test_several_sources_have_several_texts_whole_and_streamed(client: openai.OpenAI, numbers: Model) -> None:
    sources = ["42", "123456", "7"]
    wanted = ["forty two", numbers.generate("123456", temperature=0).text, "seven"]
    found = write(client, sources)
    assert [choice.text for choice in found.choices] == wanted
    assert found.usage.prompt_tokens == 3 + 7 + 2
    texts, usage = [""] * 3, None
    for chunk in write(client, sources, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == wanted
    assert usage == found.usage
    ids = [numbers.tokenizer.encode(source) for source in sources]
    assert [choice.text for choice in write(client, ids).choices] == wanted


def test_log_probabilities_are_those_of_the_text_alone(client: openai.OpenAI, numbers: Model) -> None:
    choice = write(client, "42", logprobs=2).choices[0]
    score = numbers.score("forty two", source="42")
    assert choice.logprobs.tokens == ["forty", "two"]
    assert choice.logprobs.text_offset == [0, len("forty")]
    assert all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(choice.logprobs.token_logprobs, score.logprobs, strict=False))
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)
    streamed = [chunk.choices[0].logprobs for chunk in write(client, "42", logprobs=2, stream=True) if chunk.choices[0].logprobs]
    assert [token for each in streamed for token in each.tokens] == choice.logprobs.tokens


def test_several_texts_of_one_source_are_those_of_generate(client: openai.OpenAI, numbers: Model) -> None:
    options = {"temperature": 3.0, "seed": 5}
    wanted = numbers.generate("123", max_new_tokens=8, num_return_sequences=3, **options)
    found = write(client, "123", n=3, max_tokens=8, **options)
    assert [choice.text for choice in found.choices] == [each.text for each in wanted.sequences]
    best = write(client, "123", best_of=4, max_tokens=8, **options)
    assert best.choices[0].text == numbers.generate("123", max_new_tokens=8, best_of=4, **options).text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"echo": True}, "echo is for models that continue a prompt, and numbers is an encoder-decoder"),
        ({"echo": True, "logprobs": 0, "max_tokens": 0}, "echo is for models that continue a prompt"),
        ({"suffix": "two"}, "writes a text for it, and has no prefix and suffix"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "1" * 200}, "the source has 201 tokens; this model reads 128 at most"),
        ({"prompt": [999]}, "outside the vocabulary"),
        ({"extra_body": {"src_lang": "de"}}, "src_lang is for models with tokens for languages"),
        ({"extra_body": {"tgt_lang": "de"}}, "tgt_lang is for models with tokens for languages"),
        ({"model": "story", "extra_body": {"tgt_lang": "de"}}, "are for encoder-decoders with many languages"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(client: openai.OpenAI, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        write(client, **{"prompt": "42"} | asked)
    assert words in refused.value.body["message"]
    assert "\n" not in refused.value.body["message"]


def test_languages_reach_the_model(client: openai.OpenAI, numbers: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    given, encode_source = list[tuple[str, str | None]](), numbers.generator.encoder.encode_source

    def noting_source(source: str, language: str | None) -> list[int]:
        given.append(("source", language))
        return encode_source(source)

    def noting_start(language: str | None) -> list[int]:
        given.append(("text", language))
        return [0]

    monkeypatch.setattr(numbers.generator.encoder, "encode_source", noting_source)
    monkeypatch.setattr(numbers.generator.encoder, "start_ids", noting_start)
    assert write(client, "42", extra_body={"src_lang": "en", "tgt_lang": "de"}).choices[0].text == "forty two"
    assert sorted(given) == [("source", "en"), ("text", "de")]


MESSAGES = [{"role": "user", "content": "42"}]
CHATS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "42"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/tokenize": {"messages": MESSAGES},
}


@pytest.mark.parametrize("route", CHATS)
def test_chats_are_answered_with_what_the_model_is(route: str, url: str) -> None:
    answer = patient_http.post(url + route, json={"model": "numbers", **CHATS[route]})
    assert answer.status_code == 400
    assert "encoder-decoder" in answer.text
    assert "answers no chat" in answer.text
    assert r"\n" not in answer.text


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("/v1/embeddings", {"input": "42"}, "makes no vectors"),
        ("/v1/rerank", {"query": "42", "documents": ["forty two"]}, "ranks no documents"),
        ("/api/embed", {"input": "42"}, "makes no vectors"),
    ],
)
def test_it_makes_no_vectors_and_ranks_nothing(route: str, body: dict[str, Any], words: str, url: str) -> None:
    answer = patient_http.post(url + route, json={"model": "numbers", **body})
    assert answer.status_code == 400
    assert f"encoder-decoder: it reads a source, writes a text for it, and {words}" in answer.text
    assert r"\n" not in answer.text


def test_clients_of_ollama_give_the_source_as_the_prompt(url: str) -> None:
    asked = {"model": "numbers", "prompt": "4071", "stream": False, "options": {"temperature": 0}}
    found = patient_http.post(f"{url}/api/generate", json=asked).json()
    assert found["response"] == "four thousand and seventy one"
    assert (found["prompt_eval_count"], found["eval_count"], found["done_reason"]) == (5, 5, "stop")
    refused = patient_http.post(f"{url}/api/generate", json=asked | {"suffix": "two"})
    assert refused.status_code == 400
    assert "suffix" in refused.text


def test_the_list_of_models_and_the_page_say_what_it_is(url: str, client: openai.OpenAI) -> None:
    about = {each.id: each for each in client.models.list()}
    assert (about["numbers"].architecture, about["numbers"].max_source_len, about["numbers"].max_model_len) == (
        "encoder-decoder",
        128,
        128,
    )
    assert about["story"].architecture == "decoder"
    assert not hasattr(about["story"], "max_source_len")
    page = patient_http.get(url).text
    assert "encoder-decoder, fp32, 128 tokens" in page
    assert "int8, 512 tokens" in page


def test_a_folder_of_optimum_is_described_before_it_is_opened() -> None:
    folder = PACKAGES / "optimum-seq2seq"
    with served_pool(ModelPool([FolderSource("theirs", folder)])) as (url, _):
        (about,) = patient_http.get(f"{url}/v1/models").json()["data"]
        assert "problem" not in about["status"]
        assert (about["architecture"], about["max_source_len"], about["status"]["value"]) == ("encoder-decoder", None, "unloaded")
        graphs = ("encoder_model", "decoder_model_merged")
        assert about["size_bytes"] == sum((folder / f"{name}.onnx").stat().st_size for name in graphs)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            found = client.completions.create(model="theirs", prompt="w1 w2 w3", temperature=0, max_tokens=5)
        model = onnx_textgen.load(folder, threads=1, device="cpu")
        assert found.choices[0].text == model.generate("w1 w2 w3", temperature=0, max_new_tokens=5).text
