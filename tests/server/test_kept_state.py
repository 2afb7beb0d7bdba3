"""What a server keeps of requests: who may see it, and how much memory it takes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from onnx_textgen import Model
from onnx_textgen_server.openai.responses import store
from support import patient_http
from support.live_server import served

PROMPT = "Once upon a time there was a dog that liked to run in the park with a small red ball and a friend."
MESSAGES = [{"role": "user", "content": PROMPT}]
ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"prompt": PROMPT, "max_tokens": 1}, "prompt_tokens_details"),
    "/v1/chat/completions": ({"messages": MESSAGES, "max_tokens": 1}, "prompt_tokens_details"),
    "/v1/responses": ({"input": PROMPT, "max_output_tokens": 1}, "input_tokens_details"),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 1}, ""),
}


def cached(url: str, path: str, salt: str | None) -> int:
    asked, details = ROUTES[path]
    usage = patient_http.post(url + path, json={"model": "chatty", "cache_salt": salt, **asked}).json()["usage"]
    return usage[details]["cached_tokens"] if details else usage["cache_read_input_tokens"]


@pytest.fixture(scope="module")
def kept(chatty: Model) -> Iterator[str]:
    """The address of a server that keeps answers, as it does by default."""
    with served({"chatty": Model(chatty.folder, chatty.manifest, chatty.graph, chat_template=chatty.chat_template)}) as found:
        yield found[0]


def answered(url: str, path: str, asked: list[dict[str, str]]) -> tuple[str, int, int]:
    """The answer of a route to messages, its prompt's tokens, and how many came from the cache."""
    text = "".join(f"<{each['role']}>{each['content']}\n" for each in asked) + "<assistant>"
    body = {"/v1/completions": {"prompt": text}, "/v1/responses": {"input": asked}}.get(path, {"messages": asked})
    length = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 30}
    found = patient_http.post(url + path, json={"model": "chatty", "temperature": 0.5, "seed": 3, **length, **body}).json()
    usage, details = found["usage"], ROUTES[path][1]
    if not details:
        used = usage["cache_read_input_tokens"]
        return found["content"][0]["text"], usage["input_tokens"] + used, used
    total, used = usage["input_tokens" if path == "/v1/responses" else "prompt_tokens"], usage[details]["cached_tokens"]
    if path == "/v1/responses":
        return found["output"][0]["content"][0]["text"], total, used
    return found["choices"][0].get("text") or found["choices"][0]["message"]["content"], total, used


@pytest.mark.parametrize("path", ROUTES)
def test_the_next_request_of_a_conversation_reads_only_what_is_new(kept: str, path: str) -> None:
    asked, held = [{"role": "user", "content": f"{path} {PROMPT}"}], 0
    for turn in ("Then a cat came.", "And a bird.", "Who won?", "In the end"):
        text, total, used = answered(kept, path, asked)
        assert held == 0 or held + 4 < used >= total - 24, "the question and marks of roles are new, the answer before them is not"
        held = total
        asked = [*asked, {"role": "assistant", "content": text}, {"role": "user", "content": turn}]


@pytest.mark.parametrize("path", ROUTES)
def test_prompts_of_another_salt_are_not_seen(live: tuple[str, Any], path: str) -> None:
    one, other = f"one{path}", f"other{path}"
    assert [cached(live[0], path, salt) > 0 for salt in (one, one, other, other, one)] == [False, True, False, True, True]
    cached(live[0], path, None)
    assert [cached(live[0], path, salt) > 0 for salt in (None, "", f"third{path}")] == [True, True, False]


def test_a_salt_is_short(live: tuple[str, Any]) -> None:
    answer = patient_http.post(f"{live[0]}/v1/completions", json={"model": "story", "prompt": "A", "cache_salt": "a" * 300})
    assert answer.json()["error"]["message"].startswith("cache_salt: should be a text of at most 256 characters, found 'aaa")


@pytest.mark.parametrize("pad", [[[]] * 9_000, [{}] * 9_000, [0] * 15_000, "a" * 30_000, {str(n): None for n in range(3_000)}])
def test_kept_responses_take_the_memory_that_is_counted(pad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_BYTES", 150_000)
    kept, body = store.Store(), json.dumps(pad)
    tracemalloc.start()
    for number in range(12):
        kept.add({"id": str(number), "tools": [json.loads(body)]}, [{"role": "user", "content": "a"}])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < kept.size_bytes <= store.MAX_BYTES
    assert taken < 1.1 * kept.size_bytes + 200_000
    assert kept.get("11").response["tools"] == [json.loads(body)]
    for number in list(kept.kept):
        kept.delete(number)
    assert kept.size_bytes == 0
