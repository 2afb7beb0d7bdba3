"""Ollama's forms of problems and streams."""

from __future__ import annotations

import json
from typing import Any

from ..serving.problems import Problem
from ..serving.wire import WireFormat


def problem_as_json(problem: Problem) -> dict[str, Any]:
    """The body of a response for a problem, which is also the last line of a stream that fails."""
    return {"error": problem.message}


def as_line(event: dict[str, Any]) -> str:
    """One line of a stream."""
    return json.dumps(event, separators=(",", ":")) + "\n"


OLLAMA = WireFormat(problem_as_json, as_line, media_type="application/x-ndjson")
