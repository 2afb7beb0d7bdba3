"""Spans of OpenTelemetry: one for each request, with the numbers of its answer and none of its text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import onnx_textgen
from onnx_textgen_server.serving import traces
from support import patient_http
from support.live_server import served

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
SECRET = "The secret dog"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The finished spans of this test."""
    exporter, provider = export.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(sdk.export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.fixture(scope="module")
def url(story: onnx_textgen.Model) -> Iterator[str]:
    with served({"story": story}) as (found, _):
        yield found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_is_a_span_with_its_numbers(url: str, spans: Any, stream: bool, eventually) -> None:
    body = {"model": "story", "prompt": SECRET, "max_tokens": 7, "min_new_tokens": 7, "n": 2, "stream": stream}
    assert patient_http.post(f"{url}/v1/completions", json=body).status_code == 200
    eventually(lambda: len(spans.get_finished_spans()) == 1)
    (span,) = spans.get_finished_spans()
    found = dict(span.attributes)
    prompt = len(onnx_textgen.load("story").encode(SECRET))
    assert span.name == "text_completion story"
    assert found["gen_ai.operation.name"] == "text_completion" and found["gen_ai.request.model"] == "story"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (2 * prompt, 14)
    assert 0 < found["gen_ai.response.time_to_first_chunk"] <= (span.end_time - span.start_time) / 1e9
    assert "secret" not in str(found) and span.status.is_ok


def test_a_client_that_leaves_is_an_error(url: str, spans: Any, eventually) -> None:
    body = {"model": "story", "prompt": SECRET, "max_tokens": 400, "min_new_tokens": 400, "stream": True}
    with httpx.Client() as client, client.stream("POST", f"{url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    eventually(lambda: len(spans.get_finished_spans()) == 1)
    (span,) = spans.get_finished_spans()
    assert span.attributes["error.type"] == "cancelled" and not span.status.is_ok


def test_without_opentelemetry_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch, spans: Any) -> None:
    monkeypatch.delitem(sys.modules, traces.API)
    traces.record_span("chat", "story", "done", 1.0, [])
    assert spans.get_finished_spans() == ()
