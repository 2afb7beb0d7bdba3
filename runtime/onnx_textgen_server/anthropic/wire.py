"""Anthropic's forms of problems and streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..serving.problems import Problem
from ..serving.wire import WireFormat, server_sent

VERSION_HEADER = "anthropic-version"
"""What Anthropic's clients send with every request."""
PROBLEM_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""The others are `invalid_request_error`, and from 500 on `api_error`."""


def problem_as_json(problem: Problem) -> dict[str, Any]:
    """The body of a response for a problem, which is also the event of a stream that fails."""
    kind = PROBLEM_TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def as_event(event: dict[str, Any]) -> str:
    """An event, with its type as its name."""
    return server_sent(event, name=event["type"])


ANTHROPIC = WireFormat(problem_as_json, as_event, ping=as_event({"type": "ping"}))
