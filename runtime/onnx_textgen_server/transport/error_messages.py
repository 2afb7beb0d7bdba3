"""Messages for requests that fail before they reach a route: malformed bodies, unknown paths, wrong methods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ..requests.unknown_names import names_at, unknown_parameter

TYPE_NAMES = re.compile(r"str|int|float|bool|dict(\[.*\])?|list\[.*\]|[A-Z]\w*")
"""Parts of pydantic's `loc` that name a type of a union; no parameter has such a name."""
MOST_OF_NAME = 100
"""Characters of a parameter's name in a message; a key of the body may be as long as the body."""
ROUTES = "GET /v1/models, POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, /api/chat; /openapi.json has all"


def message_for_body(found: Mapping[str, Any], body: type[BaseModel] | None) -> str:
    """One line for the first error that pydantic found in a body; `body` is what it should have been."""
    place = found["loc"]
    if found["type"] == "json_invalid":
        return f"the body is not JSON: {found['ctx']['error']} at character {place[-1]}"
    if place == ("body",):
        return "the body should be a JSON object, sent with the header Content-Type: application/json"
    if found["type"] == "extra_forbidden":
        inside = "".join(f"{part}: " for part in place[1:-1])
        return inside + unknown_parameter(str(place[-1]), names_at(body, place[1:-1]) if body is not None else ())
    where = ".".join(str(part) for part in place if part != "body" and not (isinstance(part, str) and TYPE_NAMES.fullmatch(part)))
    where = where if len(where) <= MOST_OF_NAME else f"{where[:MOST_OF_NAME]}..."
    return f"{where or 'the body'}: {found['msg'].removeprefix('Value error, ')}"


def message_for_route(status: int, path: str, allowed: str | None) -> str:
    """One line for an unknown path, or for a path with another method."""
    if status == 405:
        return f"{path[:200]} takes only {allowed or 'another method'}; this server answers {ROUTES}"
    return f"there is nothing at {path[:200]}; this server answers {ROUTES}"
