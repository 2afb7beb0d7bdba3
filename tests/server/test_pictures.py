"""Pictures in requests of all wire formats, by the official clients; nothing is read from the server's own files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import onnx_textgen
from onnx_textgen.images import addresses
from support.drawn_numbers import drawn
from support.live_server import served

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")
QUESTION = "What number is this?"


PICTURE = drawn("305")
CODED = base64.b64encode(PICTURE).decode()
URL = f"data:image/png;base64,{CODED}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    models = {"digits": onnx_textgen.load("digits", threads=1, device="cpu"), "story": onnx_textgen.load(threads=1, device="cpu")}
    with served(models) as (found, _):
        yield found


def test_openai_chat(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}]
        turned = [content[1], content[0]]
        messages: Any = [{"role": "user", "content": turned}]
        answer = client.chat.completions.create(model="digits", messages=messages, temperature=0, max_tokens=6)
        assert answer.choices[0].message.content == "305"
        assert answer.usage is not None and answer.usage.prompt_tokens > 64
        stream = client.chat.completions.create(model="digits", messages=messages, temperature=0, max_tokens=6, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "305"
        again = client.chat.completions.create(model="digits", messages=messages, temperature=0, max_tokens=6)
        assert again.usage is not None and again.usage.prompt_tokens_details is not None
        assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 64


def test_openai_responses(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        content: Any = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": QUESTION}]
        given: Any = [{"role": "user", "content": content}]
        answer = client.responses.create(model="digits", input=given, temperature=0, max_output_tokens=6)
        assert answer.output_text == "305"


def test_anthropic(address: str) -> None:
    with anthropic.Anthropic(base_url=address, api_key="x", max_retries=0) as client:
        source = {"type": "base64", "media_type": "image/png", "data": CODED}
        content: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        asked: Any = [{"role": "user", "content": content}]
        answer = client.messages.create(model="digits", messages=asked, max_tokens=6, extra_body={"temperature": 0})
        assert answer.content[0].text.strip() == "305"
        assert client.messages.count_tokens(model="digits", messages=asked).input_tokens > 64


def test_ollama(address: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PICTURE)
    options = {"temperature": 0, "num_predict": 6}
    asked = [{"role": "user", "content": QUESTION, "images": [str(path)]}]  # which the client reads
    raw = f"<|user|><image>{QUESTION}<|end|><|assistant|>"
    with ollama.Client(host=address) as client:
        assert client.chat(model="digits", messages=asked, options=options).message.content == "305"
        assert client.generate(model="digits", prompt=QUESTION, images=[PICTURE], options=options).response == "305"
        assert client.generate(model="digits", prompt=raw, images=[PICTURE], options=options, raw=True).response == "305"
        assert "vision" in (client.show("digits").capabilities or [])
        assert "vision" not in (client.show("story").capabilities or [])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "SECRET"},
        {"type": "image", "path": "SECRET"},
        {"type": "image", "url": "SECRET"},
        {"type": "image_url", "image_url": {"url": "SECRET"}},
        {"type": "image_url", "image_url": {"url": "file://SECRET"}},
        {"type": "image_url", "image_url": "http://127.0.0.1:1/a.png"},
        {"type": "input_image", "image_url": "SECRET"},
        {"type": "image", "source": {"type": "url", "url": "SECRET"}},
        {"type": "image", "source": {"type": "base64", "data": "SECRET"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": 5},
        {"type": "image_url"},
    ],
    ids=str,
)
def test_files_and_addresses_are_not_read(address: str, tmp_path: Path, part: dict[str, Any]) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PICTURE)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return value.replace("SECRET", str(path)) if isinstance(value, str) else value

    body = {"model": "digits", "messages": [{"role": "user", "content": [filled(part), {"type": "text", "text": QUESTION}]}]}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body | {"max_tokens": 6, "temperature": 0})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "\n" not in message and "305" not in message


def test_models_of_text_name_what_they_do_not_read(address: str) -> None:
    body = {"model": "story", "prompt": "x", "images": [CODED], "stream": False}
    answer = httpx.post(f"{address}/api/generate", json=body)
    assert answer.status_code == 400 and "reads text alone" in answer.json()["error"]


def test_addresses_of_the_web_are_fetched_by_an_option_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def fetched(place: str, most_bytes: int) -> bytes:
        asked.append(place)
        return PICTURE

    monkeypatch.setattr(addresses, "fetched", fetched)
    url = "https://example.com/number.png"
    content: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {"model": "digits", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 6}
    refused = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert refused.status_code == 400 and "not fetched" in refused.json()["error"]["message"] and not asked
    with served({"digits": onnx_textgen.load("digits", threads=1, device="cpu", fetch_images=True)}) as (other, _):
        answer = httpx.post(f"{other}/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "305"
        source = {"type": "url", "url": url}
        messages = [{"role": "user", "content": [{"type": "image", "source": source}, content[1]]}]
        answer = httpx.post(
            f"{other}/v1/messages", json={"model": "digits", "messages": messages, "max_tokens": 6, "temperature": 0}
        ).json()
        assert answer["content"][0]["text"] == "305"
        assert asked == [url, url]
        asked.clear()
        long = [{"role": role, "content": "word " * 60} for role in ("user", "assistant")] * 6
        picture = {"role": "user", "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": QUESTION}]}
        given = {"model": "digits", "input": [*long, picture], "temperature": 0, "max_output_tokens": 6, "truncation": "auto"}
        assert httpx.post(f"{other}/v1/responses", json=given).status_code == 200
        assert asked == [url]  # though it is tried how many messages fit
