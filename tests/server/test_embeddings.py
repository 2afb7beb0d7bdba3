"""`POST /v1/embeddings`, by OpenAI's own client against a live server."""

import base64
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.tasks.embedder import Embedder
from support import patient_http
from support.live_server import served, wait_until
from support.patient_http import LONGEST_WAIT

pytest.importorskip("torch", reason="exports an embedding model")
from onnx_textgen_export import export
from support.retrieval_checkpoints import PROMPTS, WIDTH, write_embedding_model

TEXTS = ["A dog.", "The sun went down over the hills.", "日本語"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("embedding")
    made = export(write_embedding_model(folder / "model"), folder / "package")
    return onnx_textgen.load(made.folder, device="cpu", threads=1)


@pytest.fixture(scope="module")
def url(vectors: Model, story: Model) -> Iterator[str]:
    with served({"vectors": vectors, "story": story}) as (found, _):
        yield found


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as found:
        yield found


def test_every_form_of_input_gives_the_vectors_of_embed(client: Any, vectors: Model) -> None:
    wanted, ids = vectors.embed(TEXTS), [vectors.encode(text, new_tokens=0) for text in TEXTS]
    for given, count in ((TEXTS, 3), (ids, 3), ([TEXTS[0], ids[1]], 2), (TEXTS[0], 1), (ids[0], 1)):
        answer = client.embeddings.create(model="vectors", input=given)
        assert (answer.object, answer.model, [each.index for each in answer.data]) == ("list", "vectors", list(range(count)))
        np.testing.assert_array_equal(np.float32([each.embedding for each in answer.data]), wanted[:count])
        total = sum(map(len, ids[:count]))
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (total, total)


def test_numbers_and_base64_are_the_same_vector(client: Any, url: str, vectors: Model) -> None:
    wanted = vectors.embed("A dog.")
    numbers = client.embeddings.create(model="vectors", input="A dog.", encoding_format="float")
    np.testing.assert_array_equal(np.float32(numbers.data[0].embedding), wanted)
    body = {"model": "vectors", "input": "A dog.", "encoding_format": "base64", "user": "someone"}
    sent = patient_http.post(f"{url}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(sent), "<f4"), wanted)


def test_fewer_dimensions_have_the_length_1_again(client: Any, vectors: Model) -> None:
    whole = vectors.embed("A dog.")[:16]
    found = np.float32(client.embeddings.create(model="vectors", input="A dog.", dimensions=16).data[0].embedding)
    np.testing.assert_allclose(found, whole / np.linalg.norm(whole), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match=f"dimensions should be a whole number from 1 to {WIDTH}, found 1000"):
        client.embeddings.create(model="vectors", input="A dog.", dimensions=1000)


def test_a_prompt_is_written_before_each_text(client: Any, vectors: Model) -> None:
    for more in ({"prompt_name": "query"}, {"prompt": PROMPTS["query"]}):
        found = client.embeddings.create(model="vectors", input="A dog.", extra_body=more).data[0].embedding
        np.testing.assert_array_equal(np.float32(found), vectors.embed(PROMPTS["query"] + "A dog."))


def test_many_texts_are_embedded_in_turns_and_in_their_order(client: Any, vectors: Model) -> None:
    texts = [f"Text number {index}." for index in range(70)]
    found = client.embeddings.create(model="vectors", input=texts).data
    np.testing.assert_array_equal(np.float32([each.embedding for each in found]), vectors.embed(texts))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input: it should be given"),
        ({"input": ""}, "the prompt is empty; give some text"),
        ({"input": ["a", ""]}, "the prompt is empty; give some text"),
        ({"input": []}, "a request takes from 1 to 2048 prompts, found 0"),
        ({"input": ["a"] * 2049}, "a request takes from 1 to 2048 prompts, found 2,049"),
        ({"input": [[]]}, "the prompt has no token ids"),
        ({"input": [1.5]}, "should be text, token ids, or a list of either"),
        ({"input": {"text": "a"}}, "should be text, token ids, or a list of either"),
        ({"input": [10**9]}, "token id 1000000000 is outside the vocabulary"),
        ({"input": "a" * 300}, "the prompt has 301 tokens; this model takes 256 at most. Shorten it"),
        ({"input": "a", "dimensions": 0}, "dimensions should be a whole number from 1 to 64, found 0"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate": True}, "there is no parameter 'truncate' here; leave it out"),
        ({"input": [1], "prompt": "Q: "}, "token ids were given; give the text, or leave the prompt out"),
        ({"input": "a", "prompt_name": "passage"}, "there is no prompt 'passage'; choose one of: query, document"),
        ({"input": "a", "adapter": "french"}, "has no adapter 'french'"),
        ({"input": "a", "model": "story"}, "gives no hidden states to embed by; export it again with --hidden-states"),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_one_line(url: str, body: dict[str, Any], said: str) -> None:
    answer = patient_http.post(f"{url}/v1/embeddings", json={"model": "vectors"} | body)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, said in message, "\n" in message) == (400, True, False), message


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Embedding waits for the event."""
    vectors, go_on = Embedder.vectors, threading.Event()

    def waiting(*args: Any, **options: Any) -> Any:
        assert go_on.wait(LONGEST_WAIT)
        return vectors(*args, **options)

    monkeypatch.setattr(Embedder, "vectors", waiting)
    yield go_on
    go_on.set()


def test_a_request_takes_one_slot_and_more_of_them_are_refused(vectors: Model, slow: threading.Event) -> None:
    body = {"input": TEXTS}
    with served({"vectors": vectors}, max_texts=2) as (url, server), ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(patient_http.post, f"{url}/v1/embeddings", json=body) for _ in range(2)]
        assert wait_until(lambda: server.slots.taken == 2)
        refused = patient_http.post(f"{url}/v1/embeddings", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert patient_http.get(f"{url}/health").status_code == 200, "the event loop is free"
        slow.set()
        assert [each.result().status_code for each in taken] == [200, 200]
        assert server.slots.taken == 0
        page = patient_http.get(f"{url}/metrics").text
        assert 'gen_ai_operation_name="embeddings",gen_ai_request_model="vectors",outcome="done"} 2.0' in page


def test_a_client_that_leaves_ends_its_work(vectors: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real, cancelled = Embedder.vectors, threading.Event()

    def endless(self: Embedder, *args: Any, scope: Any, **options: Any) -> Any:
        while scope.reason is None:
            real(self, *args, **options)
        cancelled.set()
        return real(self, *args, scope=scope, **options)

    monkeypatch.setattr(Embedder, "vectors", endless)
    with served({"vectors": vectors}) as (url, server):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/embeddings", json={"input": "A dog."}, timeout=httpx.Timeout(LONGEST_WAIT, read=0.5))
        assert cancelled.wait(LONGEST_WAIT)
        assert wait_until(lambda: server.slots.taken == 0)
        cancelled.clear()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(patient_http.post, f"{url}/v1/embeddings", json={"input": "A dog."})
            assert wait_until(lambda: bool(server.slots.others))
            server.slots.cancel_all()
            assert (answer.result().status_code, cancelled.is_set()) == (503, True)
        assert 'outcome="cancelled"' in patient_http.get(f"{url}/metrics").text
    with served({"vectors": vectors}, max_seconds=0.2) as (url, server):
        answer = patient_http.post(f"{url}/v1/embeddings", json={"input": "A dog."})
        assert (answer.status_code, "took longer than 0.2 seconds" in answer.json()["error"]["message"]) == (400, True)
        assert wait_until(lambda: server.slots.taken == 0)


def test_the_block_about_embeddings_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "client.embeddings" in each]
    names: dict[str, Any] = {}
    exec(compile(block.replace("http://127.0.0.1:8000", url), "serving.md", "exec"), names)  # noqa: S102 - our own page
    assert capsys.readouterr().out
    names["client"].close()


def test_clients_of_ollama_get_the_same_vectors(url: str, vectors: Model) -> None:
    ollama, wanted = pytest.importorskip("ollama"), vectors.embed(TEXTS)
    with ollama.Client(url) as own:
        for given, count in ((TEXTS, 3), (TEXTS[0], 1)):
            found = own.embed("vectors:latest", given, keep_alive="5m", options={"num_ctx": 64})
            np.testing.assert_array_equal(np.float32(found.embeddings), wanted[:count])
            assert found.prompt_eval_count == sum(len(vectors.encode(text, new_tokens=0)) for text in TEXTS[:count])
            assert (found.model, found.total_duration > 0) == ("vectors", True)
        assert len(own.embed("vectors", "A dog.", dimensions=16).embeddings[0]) == 16
        assert "embedding" in own.show("vectors").capabilities
        for model, given, said in (("story", "A dog.", "gives no hidden states"), ("vectors", "a " * 5000, "this model takes")):
            with pytest.raises(ollama.ResponseError, match=said):
                own.embed(model, given)
        assert own.embed("vectors", "A dog.", truncate=True).embeddings == own.embed("vectors", "A dog.").embeddings
        with pytest.raises(ollama.ResponseError, match="Shorten it"):
            own.embed("vectors", "a" * 300, truncate=True)
