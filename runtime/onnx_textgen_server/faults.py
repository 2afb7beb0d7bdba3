"""What was found wrong with a request before a route saw it, in a line that a client can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KINDS = re.compile(r"str|int|float|bool|dict|list\[.*\]|[A-Z]\w*")
"""Parts of a place that name one of several kinds a value may be of; no name of a parameter is written so."""
ROUTES = "GET /v1/models, POST /v1/completions, POST /v1/chat/completions; /openapi.json has all"


def fault_of_body(found: Mapping[str, Any]) -> str:
    """The first error that pydantic found in a body."""
    place = found["loc"]
    if found["type"] == "json_invalid":
        return f"the body is no JSON: {found['ctx']['error']} at character {place[-1]}"
    if place == ("body",):
        return "the body should be a JSON object, sent with the header Content-Type: application/json"
    where = ".".join(str(part) for part in place if part != "body" and not (isinstance(part, str) and KINDS.fullmatch(part)))
    return f"{where or 'the body'}: {found['msg'].removeprefix('Value error, ')}"


def fault_of_route(status: int, path: str, allowed: str | None) -> str:
    """What is said of a path that is none, or one that takes another method."""
    if status == 405:
        return f"{path[:200]} takes {allowed or 'another method'} alone; this server answers {ROUTES}"
    return f"there is nothing at {path[:200]}; this server answers {ROUTES}"
