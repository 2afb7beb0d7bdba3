"""OpenAI's forms of problems and streams."""

from __future__ import annotations

from typing import Any

from ..serving.problems import Problem
from ..serving.wire import WireFormat, server_sent


def problem_as_json(problem: Problem) -> dict[str, Any]:
    """The body of a response for a problem."""
    kind = "rate_limit_error" if problem.status == 429 else "server_error" if problem.status >= 500 else "invalid_request_error"
    return {"error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}}


OPENAI = WireFormat(problem_as_json, server_sent, end="data: [DONE]\n\n", ping=": ping\n\n")
