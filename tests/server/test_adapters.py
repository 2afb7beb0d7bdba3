"""A package with LoRA adapters is several models of the server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.pool.sources import FolderSource, LoadOptions
from support import patient_http
from support.adapted_story import make_adapted_story
from support.live_server import served, served_pool

PROMPT = "Once upon a time there was a little dog. It"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = make_adapted_story(tmp_path_factory.mktemp("package") / "adapted", "french", "legal")
    return onnx_textgen.load(folder, threads=1, device="cpu")


@pytest.fixture(scope="module")
def client(adapted: Model) -> Iterator[Any]:
    with served({"story": adapted}) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as found:
        yield found


def test_every_adapter_is_listed_as_a_model(client: Any) -> None:
    listed = client.models.list().data
    assert [each.id for each in listed] == ["story", "story:french", "story:legal"]
    assert [each.model_extra.get("parent") for each in listed] == [None, "story", "story"]
    assert client.models.retrieve("story:legal").id == "story:legal"


def test_texts_of_all_models_at_once_are_those_of_python(client: Any, adapted: Model) -> None:
    names = [None, "french", "legal", "french", None, "legal", "legal"]

    def complete(place: int) -> str:
        name = names[place]
        model = "story" if name is None else f"story:{name}"
        made = client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0.7, seed=place)
        assert made.model == model
        return str(made.choices[0].text)

    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(complete, range(len(names))))
    wanted = [
        adapted.generate(PROMPT, max_new_tokens=16, temperature=0.7, seed=place, adapter=name).text
        for place, name in enumerate(names)
    ]
    assert found == wanted
    assert len(set(wanted)) == len(wanted)


def test_an_adapter_may_be_a_parameter_and_a_prompt_is_scored_with_it(client: Any, adapted: Model) -> None:
    options = {"max_tokens": 4, "temperature": 0, "logprobs": 1, "echo": True}
    by_name = client.completions.create(model="story:legal", prompt=PROMPT, **options)
    by_option = client.completions.create(model="story", prompt=PROMPT, **options, extra_body={"adapter": "legal"})
    assert by_name.choices[0].logprobs == by_option.choices[0].logprobs
    scored = adapted.score(PROMPT, adapter="legal").logprobs
    assert by_name.choices[0].logprobs.token_logprobs[1 : 1 + len(scored)] == pytest.approx(scored)


def test_what_does_not_fit_is_one_line(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'story:third' here; choose one of: story, story:french, story:legal"):
        client.completions.create(model="story:third", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="story has no adapter 'third'; choose one of: french, legal"):
        client.completions.create(model="story", prompt=PROMPT, extra_body={"adapter": "third"})
    with pytest.raises(openai.BadRequestError, match="the model story:legal has one adapter, and adapter 'french' is another"):
        client.completions.create(model="story:legal", prompt=PROMPT, extra_body={"adapter": "french"})
    with pytest.raises(openai.BadRequestError, match="adapter"):
        client.completions.create(model="story", prompt=PROMPT, extra_body={"adapter": 5})


def test_adapters_of_a_model_that_is_not_open_are_listed_and_open_it(adapted: Model) -> None:
    pool = ModelPool([FolderSource("story", adapted.folder, LoadOptions(device="cpu", threads=1))])
    with served_pool(pool) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        assert [each.id for each in client.models.list().data] == ["story", "story:french", "story:legal"]
        assert not pool.loaded
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="story:third", prompt=PROMPT)
        assert not pool.loaded
        made = client.completions.create(model="story:legal", prompt=PROMPT, max_tokens=8, temperature=0)
        assert made.choices[0].text == adapted.generate(PROMPT, max_new_tokens=8, temperature=0, adapter="legal").text
        assert {each.model_extra["status"]["value"] for each in client.models.list().data} == {"loaded"}


def test_documents_are_ranked_with_the_adapter_that_the_model_names(adapted: Model) -> None:
    documents = ["The sun is hot.", "The dog ran to the park."]
    with served({"story": adapted}) as (url, _):
        for name, adapter in (("story", None), ("story:french", "french")):
            body = {"model": name, "query": PROMPT, "documents": documents}
            answer = patient_http.post(f"{url}/v1/rerank", json=body).json()
            wanted = adapted.rerank(PROMPT, documents, adapter=adapter)
            assert [each["relevance_score"] for each in answer["results"]] == [each.relevance_score for each in wanted]
            assert answer["model"] == name
