"""Messages for requests that fail before they reach a route: malformed bodies, unknown paths, wrong methods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from onnx_textgen.options.checks import shown

from ..requests.unknown_names import names_at, unknown_parameter

TYPE_NAMES = re.compile(r"str|int|float|bool|dict(\[.*\])?|list\[.*\]|literal\[.*\]|[A-Z]\w*")
"""Parts of pydantic's `loc` that name a type of a union; no parameter has such a name."""
MOST_OF_NAME = 100
"""Characters of a parameter's name in a message; a key of the body may be as long as the body."""
ROUTES = "GET /v1/models, POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, /api/chat; /openapi.json has all"


KINDS: Mapping[str, str] = {
    **dict.fromkeys(("string_type", "string_sub_type"), "a text"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "union_tag_not_found"), "an object"),
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "string_too_long": "a text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}
"""What a value should be, by pydantic's types of errors."""


def message_for_body(errors: Sequence[Mapping[str, Any]], body: type[BaseModel] | None) -> str:
    """One line for the errors that pydantic found in a body; `body` is what it should have been.

    One is told: of a union, that of the type that fits furthest inside, with all that the same place could be.
    """
    first = errors[0]
    place = first["loc"]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']} at character {place[-1]}"
    if place == ("body",) and first["type"] != "value_error":
        return "the body should be a JSON object, sent with the header Content-Type: application/json"
    same = [each for each in errors if place_of(each)[: len(place_of(first))] == place_of(first)]
    found = max(same, key=lambda each: len(place_of(each)))
    if found["type"] == "extra_forbidden":
        inside = "".join(f"{part}: " for part in place_of(found)[:-1])
        names = names_at(body, found["loc"][1:-1]) if body is not None else ()
        return inside + unknown_parameter(str(found["loc"][-1]), names)
    where = ".".join(place_of(found))
    where = where if len(where) <= MOST_OF_NAME else f"{where[:MOST_OF_NAME]}..."
    return f"{where or 'the body'}: {what_is_wrong([each for each in errors if place_of(each) == place_of(found)])}"


def place_of(error: Mapping[str, Any]) -> tuple[str, ...]:
    """The names and numbers on the way to a value, without pydantic's names of types."""
    return tuple(
        str(part) for part in error["loc"] if part != "body" and not (isinstance(part, str) and TYPE_NAMES.fullmatch(part))
    )


def what_is_wrong(errors: Sequence[Mapping[str, Any]]) -> str:
    """What a value should be, and what was found."""
    first = errors[0]
    if first["type"] == "missing":
        return "it should be given, and is missing"
    kinds = dict.fromkeys(KINDS[each["type"]].format_map(each.get("ctx") or {}) for each in errors if each["type"] in KINDS)
    if not kinds:
        return str(first["msg"]).removeprefix("Value error, ")
    return f"should be {' or '.join(kinds)}, found {shown(first.get('input'))}"


def message_for_route(status: int, path: str, allowed: str | None) -> str:
    """One line for an unknown path, or for a path with another method."""
    if status == 405:
        return f"{path[:200]} takes only {allowed or 'another method'}; this server answers {ROUTES}"
    return f"there is nothing at {path[:200]}; this server answers {ROUTES}"
