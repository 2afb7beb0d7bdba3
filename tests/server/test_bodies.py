"""What all bodies of all routes have in common: null, numbers, what changes no text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen_server.app import make_app
from onnx_textgen_server.ollama import schema as ollama
from onnx_textgen_server.openai.schema import read_prompts
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.requests.body import DEFAULT_ANSWER_TOKENS, IGNORED, Body, Request
from onnx_textgen_server.requests.parameters import NO_OP_VALUES, read_parameters, set_options
from onnx_textgen_server.requests.unknown_names import models_in
from onnx_textgen_server.transport.content_type import FORMS
from onnx_textgen_server.transport.error_messages import message_for_body

DOCS = Path(__file__).parents[2] / "docs"
MESSAGES = [{"role": "user", "content": "Hi"}]
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "/tokenize": {},
    "/detokenize": {"tokens": [1]},
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {},
    "/v1/embeddings": {"input": "a"},
    "/v1/rerank": {"query": "a", "documents": ["a"]},
    "/v2/rerank": {"query": "a", "documents": ["a"]},
    "/rerank": {"query": "a", "documents": ["a"]},
    "/v1/messages": {"max_tokens": 1, "messages": MESSAGES},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {},
    "/api/generate": {},
    "/api/embed": {"input": "a"},
    "/api/show": {},
}
"""What each route needs."""


def body_of(route: APIRoute) -> type[Request]:
    assert route.body_field is not None
    return route.body_field.field_info.annotation  # type: ignore[return-value]


ROUTES = {
    route.path: body_of(route)
    for route in make_app(ModelPool([])).routes
    if isinstance(route, APIRoute) and "POST" in route.methods and not route.path.startswith(FORMS)
}


def all_models() -> Iterator[type[BaseModel]]:
    left, seen = list[type[BaseModel]](ROUTES.values()), set[type[BaseModel]]()
    while left:
        model = left.pop()
        if model not in seen:
            seen.add(model)
            yield model
            left += [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]


def test_every_part_of_every_body_is_a_body() -> None:
    assert set(ROUTES) == set(NEEDED)
    assert all(issubclass(body, Request) for body in ROUTES.values())
    found = list(all_models())
    assert len(found) > 25
    assert [model.__name__ for model in found if not issubclass(model, Body)] == []


def test_null_is_the_default_of_every_field_that_has_one() -> None:
    for model in all_models():
        for name, field in model.model_fields.items():
            if not field.is_required():
                given = {field.alias or name: None}
                assert model.without_null(given) == {}, (model, name)  # type: ignore[attr-defined]
    for path, body in ROUTES.items():
        nulls = {field.alias or name: None for name, field in body.model_fields.items() if not field.is_required()}
        assert body.model_validate({**NEEDED[path], **nulls}) == body.model_validate(NEEDED[path]), path


@pytest.mark.parametrize("path", NEEDED)
def test_what_changes_no_text_is_ignored_on_every_route(path: str) -> None:
    body = ROUTES[path]
    own = {field.alias or name for name, field in body.model_fields.items()}
    more = {key: {"a": [1]} for key in IGNORED - own}
    assert body.model_validate({**NEEDED[path], **more}) == body.model_validate(NEEDED[path])


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert set_options({"top_k": 40.0, "bad_words_ids": [[5.0], [6]], "temperature": 0.5}) == {
        "top_k": 40,
        "bad_words_ids": [[5], [6]],
        "temperature": 0.5,
    }
    numbers = {"top_k": 40.0, "min_new_tokens": 1.0, "seed": 4.0, "no_repeat_ngram_size": 2.0, "dry_allowed_length": 2.0}
    for options in (numbers, {"num_predict": 4.0, "top_k": 40.0}):
        taken = ollama.ChatRequest(options={**options}).options_of_call(100)
        assert all(isinstance(value, int) for value in taken.values())
        GenerationConfig(**taken)
    for path, body in ROUTES.items():
        for name, field in body.model_fields.items():
            if (
                name != "context"
                and "int" in str(field.annotation)
                and "float" not in str(field.annotation)
                and "dict" not in str(field.annotation)
            ):
                given = [1.0] if "list" in str(field.annotation) else 1.0
                body.model_validate({**NEEDED[path], (field.alias or name): given})
    assert read_prompts([1.0, 2.0]) == read_prompts([[1.0, 2.0]]) == [[1, 2]]
    with pytest.raises(ValueError, match="should be text, token ids"):
        read_prompts([1.5])


NAMES = {"max_tokens", "max_completion_tokens", "max_output_tokens"}


def test_an_answer_nobody_gave_a_length_ends_at_the_documented_one() -> None:
    asked = 0
    for path, body in ROUTES.items():
        if not hasattr(body, "options_of_call") or path in ("/v1/completions", "/v1/messages"):  # OpenAI's 16; always given
            continue
        names = NAMES & set(body.model_fields) or {"options"}
        for given, context, length in ((None, 512, 512), (None, 10**6, DEFAULT_ANSWER_TOKENS), (-1, 10**6, 10**6), (7, 512, 7)):
            for name in names:
                value = {"num_predict": given} if name == "options" else given
                taken = body.model_validate({**NEEDED[path], name: value}).options_of_call(context)
                assert taken["max_new_tokens"] == length, (path, name, given)
                asked += 1
    assert asked >= 16
    assert f"{DEFAULT_ANSWER_TOKENS:,} tokens" in (DOCS / "serving.md").read_text(encoding="utf-8")


OFF = {
    "top_p": 0,
    "stop": [""],
    "regex": "",
    "grammar": "",
    "top_k": -1,
    "seed": -1,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5,
}


@pytest.mark.parametrize("name", OFF)
def test_values_that_others_take_as_off_or_greedy_are_taken(name: str) -> None:
    options = set_options(read_parameters({name: OFF[name]}, renamed={}))
    assert options == ({"top_k": 1} if name == "top_p" else {})
    GenerationConfig(**options)
    assert name not in NO_OP_VALUES or OFF[name] in NO_OP_VALUES[name]


def test_no_limit_is_minus_one() -> None:
    chat = ROUTES["/v1/chat/completions"]
    for name in ("max_tokens", "max_completion_tokens"):
        body: Any = chat.model_validate({"messages": MESSAGES, name: -1})
        assert body.options_of_call(77)["max_new_tokens"] == 77
    for path, name in (("/v1/completions", "max_tokens"), ("/v1/responses", "max_output_tokens")):
        body = ROUTES[path].model_validate({**NEEDED[path], name: -1})
        assert body.options_of_call(77)["max_new_tokens"] == 77


@pytest.mark.parametrize("path", NEEDED)
def test_what_is_wrong_with_a_body_is_said_in_our_words(path: str) -> None:
    """For each field, by values of other types."""
    body, wrong = ROUTES[path], [5, "a", [5], {"a": 5}, ["a"], [["a"]], [{"type": "a"}], [None], True, 1.5]
    told = set[str]()
    for name, field in body.model_fields.items():
        for value in wrong:
            try:
                body.model_validate({**NEEDED[path], (field.alias or name): value})
            except ValidationError as error:
                errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
                message = message_for_body(errors, body)
                told.add(message)
                assert message.startswith(field.alias or name)
    assert len(told) >= 2
    for message in told:
        assert "Input" not in message
        assert "valid" not in message
        assert "required" not in message.lower()
        assert re.match(r"[\w.]+: ", message), message
        assert len(message) < 300
        assert "\n" not in message
