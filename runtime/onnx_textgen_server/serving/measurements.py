"""Metrics for Prometheus, with the names of OpenTelemetry's conventions for generative AI. They hold no prompt, text or client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from onnx_textgen import Stats

from .traces import record_span

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
SECONDS_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
TOKENS = tuple(4**power for power in range(10))
MODEL, OPERATION = "gen_ai_request_model", "gen_ai_operation_name"


class Metrics:
    """The metrics of one server."""

    def __init__(self, texts_taken: Callable[[], float], models_loaded: Callable[[], float]) -> None:
        """The functions return the number of texts that run or wait now, and of models that are open now."""
        registry = self.registry = CollectorRegistry()
        self.duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From a request to the end of its answer",
            [OPERATION, MODEL, "outcome"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From a request to the first token of a text",
            [MODEL],
            buckets=SECONDS,
            registry=registry,
        )
        self.per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Of a text, per token after the first",
            [MODEL],
            buckets=SECONDS_PER_TOKEN,
            registry=registry,
        )
        self.tokens = Histogram(
            "gen_ai_client_token_usage", "Tokens of a text", [MODEL, "gen_ai_token_type"], buckets=TOKENS, registry=registry
        )
        self.refused = Counter("onnx_textgen_refused", "Requests that were not answered", ["reason"], registry=registry)
        active = Gauge("onnx_textgen_active_texts", "Texts that run or wait for a row", registry=registry)
        active.set_function(texts_taken)
        loaded = Gauge("onnx_textgen_loaded_models", "Models that are open", registry=registry)
        loaded.set_function(models_loaded)
        self.load = Histogram(
            "onnx_textgen_model_load_seconds",
            "Seconds that opening a model took",
            [MODEL],
            buckets=SECONDS,
            registry=registry,
        )
        self.closes = Counter("onnx_textgen_model_closes", "Models that were closed", [MODEL, "reason"], registry=registry)

    def opened(self, model: str, seconds: float) -> None:
        """Record that a model was opened."""
        self.load.labels(model).observe(seconds)

    def closed(self, model: str, reason: str) -> None:
        """Record that a model was closed: it was `idle`, others needed the `room`, its files `changed`, or at the `end`."""
        self.closes.labels(model, reason).inc()

    def answered(self, operation: str, model: str, outcome: str, seconds: float, texts: Sequence[Stats]) -> None:
        """Record a request; `outcome` is `done`, `cancelled` or `error`."""
        record_span(operation, model, outcome, seconds, texts)
        self.duration.labels(operation, model, outcome).observe(seconds)
        for stats in texts:
            if stats.generated_tokens:
                self.first_token.labels(model).observe(stats.first_token_seconds)
                self.tokens.labels(model, "input").observe(stats.prompt_tokens)
                self.tokens.labels(model, "output").observe(stats.generated_tokens)
            if stats.decode_tokens_per_second > 0:
                self.per_token.labels(model).observe(1 / stats.decode_tokens_per_second)

    def page(self) -> bytes:
        """The body of `/metrics`."""
        return generate_latest(self.registry)
