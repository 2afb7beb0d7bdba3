"""`POST /v1/rerank`: documents by their relevance, with a reranker and with any other model."""

from collections.abc import Iterator
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model
from support import patient_http
from support.live_server import served

QUERY = "What did the dog do?"
DOCUMENTS = ["The sun is hot.", "The dog ran to the park and played.", "Tom ate a red apple."]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Model:
    pytest.importorskip("torch", reason="exports a reranker")
    from onnx_textgen_export import export  # noqa: PLC0415
    from support.retrieval_checkpoints import write_reranker  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("reranker")
    return onnx_textgen.load(export(write_reranker(folder / "model"), folder / "package").folder, device="cpu", threads=1)


@pytest.fixture(scope="module")
def both(reranker: Model, story: Model) -> Iterator[str]:
    with served({"reranker": reranker, "story": story}) as (url, _):
        yield url


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_any_model_ranks_by_the_likelihood_of_the_query(live: tuple, story: Model, path: str) -> None:
    answer = patient_http.post(live[0] + path, json={"model": "story", "query": QUERY, "documents": DOCUMENTS}).json()
    ranked = story.rerank(QUERY, DOCUMENTS)
    wanted = [{"index": each.index, "relevance_score": each.relevance_score} for each in ranked]
    assert (answer["results"], answer["model"], answer["object"]) == (wanted, "story", "list")
    assert [each.relevance_score for each in ranked] == sorted((each.relevance_score for each in ranked), reverse=True)
    total = sum(len(story.encode(f"{document}\n\n{QUERY}")) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}


def test_the_likelihood_is_that_of_score_with_the_query_as_continuation(story: Model) -> None:
    for each in story.rerank(QUERY, DOCUMENTS):
        score = story.score(f"{each.text}\n\n", continuation=QUERY)
        logprobs = score.continuation_logprobs
        assert each.relevance_score == pytest.approx(sum(logprobs) / len(logprobs), abs=1e-6)
        assert (each.text, each.prompt_tokens) == (DOCUMENTS[each.index], len(score.token_ids))


def test_a_reranker_ranks_by_its_own_scores(both: str, reranker: Model) -> None:
    many = [f"Document {index}: {text}" for index in range(7) for text in DOCUMENTS]
    body = {"model": "reranker", "query": QUERY, "documents": [{"text": many[0]}, *many[1:]], "prompt": "Is it about dogs?"}
    answer = patient_http.post(f"{both}/v1/rerank", json=body | {"top_n": 4, "return_documents": True, "user": "someone"}).json()
    wanted = reranker.rerank(QUERY, many, top_n=4, prompt="Is it about dogs?")
    assert answer["results"] == [
        {"index": each.index, "relevance_score": each.relevance_score, "document": {"text": many[each.index]}} for each in wanted
    ]
    assert all(0 <= each.relevance_score <= 1 for each in wanted)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "query: it should be given"),
        ({"query": "a"}, "documents: it should be given"),
        ({"query": "", "documents": ["a"]}, "query should be a text that is not empty"),
        ({"query": "a", "documents": []}, "documents: should be a list of 1 to 2048 texts, found 0 of them"),
        ({"query": "a", "documents": ["a"] * 2049}, "found 2,049 of them"),
        ({"query": "a", "documents": "abc"}, "documents: should be a list of 1 to 2048 texts, found 'abc'"),
        ({"query": "a", "documents": ["a", ""]}, "each should be a text that is not empty, or an object such as"),
        ({"query": "a", "documents": [{"image": "x"}]}, "each should be a text that is not empty, or an object such as"),
        ({"query": "a", "documents": [1] * 1000}, "each should be a text that is not empty, or an object such as"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        (
            {"query": "a", "documents": ["a"], "max_tokens_per_doc": 5},
            "there is no parameter 'max_tokens_per_doc' here; leave it out",
        ),
        ({"query": "a", "documents": ["a" * 9000]}, "this model takes 512 at most"),
        ({"query": "a", "documents": ["a"], "prompt": "b"}, "the model is no reranker, so a prompt cannot take effect"),
    ],
)
def test_what_cannot_be_ranked_is_refused_in_one_line(live: tuple, body: dict[str, Any], said: str) -> None:
    answer = patient_http.post(f"{live[0]}/v1/rerank", json={"model": "story"} | body)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, said in message, "\n" in message) == (400, True, False), message
