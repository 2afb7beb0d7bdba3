"""The dashboard for Grafana asks for metrics and labels that the server has."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from onnx_textgen import Stats
from onnx_textgen_server.serving.measurements import Metrics

DASHBOARD = Path(__file__).resolve().parents[2] / "examples" / "grafana.json"
OF_PROMETHEUS = {"le", "instance", "job"}


def test_every_expression_names_what_is_measured() -> None:
    metrics = Metrics(lambda: 0, lambda: 0)
    metrics.refused.labels("busy").inc()
    metrics.closed("m", "idle")
    metrics.answered("chat", "m", "done", 1.0, [Stats(2, 0, 3, 0.1, 0.2, 1.0, 20.0, 4.0, 7)])
    samples = [each for family in text_string_to_metric_families(metrics.page().decode()) for each in family.samples]
    names = {each.name for each in samples}
    labels = {label for each in samples for label in each.labels} | OF_PROMETHEUS
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 8
    for expression in expressions:
        assert set(re.findall(r"\b(?:gen_ai_(?:server|client)|onnx_textgen)_\w+", expression)) <= names
        assert {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")} <= labels
