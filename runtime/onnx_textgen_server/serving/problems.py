"""Errors as clients see them. Each wire format has its own form for them."""

from __future__ import annotations

import dataclasses

from onnx_textgen import OnnxTextgenError
from onnx_textgen.errors import BusyError, ModelError, RuleError

CLOSED_BY_CLIENT = 499


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is not answered."""

    status: int
    message: str
    code: str | None = None
    """OpenAI's `code`."""


def problem_of(error: Exception) -> Problem:
    """The error as the client sees it."""
    if not isinstance(error, OnnxTextgenError):
        return Problem(500, f"the server failed ({type(error).__name__}); its log has more")
    if isinstance(error, BusyError):
        return Problem(429, str(error), "rate_limit_exceeded")
    if isinstance(error, ModelError) and not isinstance(error, RuleError):  # the constraint comes from the client
        return Problem(500, str(error))
    return Problem(400, str(error))
