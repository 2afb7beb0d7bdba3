"""Text encoders behind the server: vectors and scores on every wire format, and one line where a text is wanted."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_server.pool.sources import FolderSource
from support.live_server import served
from support.text_encoder_package import write_package

TEXTS = ["a b", "c", "d e f"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("encoders")
    places = {"letters": write_package(folder / "letters"), "pairs": write_package(folder / "pairs", scores=True)}
    return {name: onnx_textgen.load(place, device="cpu", threads=1) for name, place in places.items()}


@pytest.fixture(scope="module")
def url(models: dict[str, Model]) -> Iterator[str]:
    with served(models) as (found, _):
        yield found


def test_vectors_for_clients_of_openai_and_ollama(url: str, models: dict[str, Model]) -> None:
    wanted = models["letters"].embed(TEXTS)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        found = client.embeddings.create(model="letters", input=TEXTS)
        short = client.embeddings.create(model="letters", input=TEXTS, dimensions=2)
    np.testing.assert_allclose([each.embedding for each in found.data], wanted, atol=1e-6)
    assert found.usage.prompt_tokens == sum(len(models["letters"].encode(text)) for text in TEXTS)
    assert {len(each.embedding) for each in short.data} == {2}
    client_of_ollama = ollama.Client(url)
    np.testing.assert_allclose(client_of_ollama.embed("letters", TEXTS).embeddings, wanted, atol=1e-6)
    client_of_ollama._client.close()


@pytest.mark.parametrize("name", ["pairs", "letters"])
def test_documents_are_ranked_by_scores_or_cosines(url: str, models: dict[str, Model], name: str) -> None:
    found = httpx.post(f"{url}/v1/rerank", json={"model": name, "query": "a", "documents": TEXTS, "top_n": 2}).json()["results"]
    wanted = models[name].rerank("a", TEXTS, top_n=2)
    assert [each["index"] for each in found] == [each.index for each in wanted]
    assert [each["relevance_score"] for each in found] == pytest.approx([each.relevance_score for each in wanted], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            "letters is an encoder, which writes no text; POST",
        ),
        ("v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}, "POST texts to /v1/embeddings"),
        ("api/chat", {"messages": [{"role": "user", "content": "a"}]}, "POST texts to /v1/embeddings"),
        ("v1/completions", {"prompt": "a"}, "letters is an encoder, which writes no text and makes vectors"),
        ("api/generate", {"prompt": "a"}, "letters is an encoder, which writes no text"),
        ("v1/responses", {"input": "a"}, "letters is an encoder, which writes no text"),
    ],
)
def test_what_writes_texts_is_refused_in_one_line(url: str, path: str, body: dict[str, Any], said: str) -> None:
    found = httpx.post(f"{url}/{path}", json={"model": "letters", **body})
    assert 400 <= found.status_code < 500 and said in found.text, found.text


def test_what_a_cross_encoder_does_not_make_is_refused(url: str) -> None:
    found = httpx.post(f"{url}/v1/embeddings", json={"model": "pairs", "input": "a"})
    assert 400 <= found.status_code < 500 and "makes no vectors: call rerank" in found.text, found.text


def test_the_list_says_what_they_are(url: str) -> None:
    listed = httpx.get(f"{url}/v1/models").json()["data"]
    assert {each["id"]: each["architecture"] for each in listed} == {"letters": "encoder", "pairs": "encoder"}


def test_a_folder_is_described_before_it_is_opened(models: dict[str, Model]) -> None:
    source = FolderSource("letters", models["letters"].folder)
    assert source.describe().architecture == "encoder" and source.describe().needed_bytes > 0
