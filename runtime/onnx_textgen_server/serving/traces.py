"""A span of OpenTelemetry for each request, by its conventions for generative AI, where something has set OpenTelemetry up.

`opentelemetry-instrument onnx-textgen serve` does that. The span's parent is that of the HTTP request. It holds no prompt and no
text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from onnx_textgen import Stats

API = "opentelemetry.trace"


def record_span(operation: str, model: str, outcome: str, seconds: float, texts: Sequence[Stats]) -> None:
    """Record a request that has just ended; does nothing where OpenTelemetry is not in use."""
    trace: Any = sys.modules.get(API)
    if trace is None:
        return
    end = time.time_ns()
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "onnx-textgen",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": sum(stats.prompt_tokens for stats in texts),
        "gen_ai.usage.cache_read.input_tokens": sum(stats.reused_tokens for stats in texts),
        "gen_ai.usage.output_tokens": sum(stats.generated_tokens for stats in texts),
    }
    first = [stats.first_token_seconds for stats in texts if stats.generated_tokens]
    if first:
        attributes["gen_ai.response.time_to_first_chunk"] = min(first)
    span = trace.get_tracer("onnx-textgen").start_span(
        f"{operation} {model}", start_time=end - round(seconds * 1e9), attributes=attributes
    )
    if outcome != "done":
        span.set_attribute("error.type", outcome)
        span.set_status(trace.StatusCode.ERROR)
    span.end(end_time=end)
