"""Shows the comparison with PyTorch in the same way in `export`, `verify`, `info` and `inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import screen
from .tables import Table

NUMBERS: dict[str, tuple[str, str]] = {
    "tokens": ("positions", "{}"),
    "logits_error": ("logits error", "{:.1e}"),
    "top1_agreement": ("same top-1", "{:.1%}"),
    "kl_divergence": ("KL", "{:.1e}"),
    "perplexity_change": ("perplexity", "{:+.2%}"),
    "error": ("error", "{:.1e}"),
    "cosine": ("cosine", "{:.6f}"),
}
"""Entries of a scenario record: the column's name and the format of its numbers. The last two are of text encoders."""

ROUNDING = {
    "kl_mean": ("KL", "{:.1e}"),
    "kl_p99": ("its 99th percentile", "{:.1e}"),
    "top1_agreement": NUMBERS["top1_agreement"],
    "perplexity_change": NUMBERS["perplexity_change"],
    "tokens": ("tokens", "{:,}"),
}
"""Entries of what rounding costs on a text: their names and formats."""


def scenario_table(scenarios: Iterable[Mapping[str, Any]], title: str = "compared with PyTorch") -> Table:
    """A table with a row per scenario record; a record with `"admitted": False` is marked as different."""
    scenarios = list(scenarios)
    verdicts = [] if all(scenario.get("admitted", True) for scenario in scenarios) else [""]
    shown = {key: each for key, each in NUMBERS.items() if any(is_number(scenario.get(key)) for scenario in scenarios)}
    columns = ("scenario", *(name for name, _ in shown.values()), *verdicts)
    table = Table(columns, numbers=frozenset(dict(shown.values())), prose=frozenset({"scenario"}), title=title)
    for scenario in scenarios:
        numbers = [form.format(scenario[key]) if is_number(scenario.get(key)) else "" for key, (_, form) in shown.items()]
        verdict = "" if scenario.get("admitted", True) else "DIFFERENT"
        table.add(str(scenario.get("name", "")), *numbers, *([verdict] if verdicts else []))
    return table


def summary_in_words(summary: Mapping[str, Any]) -> str:
    """A certificate's summary: `5.2 MB; same top-1 99.1%, KL 1.2e-03, perplexity +0.80%`; empty if it has no such numbers."""
    parts = [f"{name} {form.format(summary[key])}" for key, (name, form) in NUMBERS.items() if is_number(summary.get(key))]
    size = [screen.size(summary["size_bytes"])] if is_number(summary.get("size_bytes")) else []
    return "; ".join([*size, *([", ".join(parts)] if parts else [])])


def rounding_in_words(cost: Mapping[str, Any]) -> str:
    """Return the cost of rounding on a text: `KL 1.9e-03, its 99th percentile 7.4e-03, perplexity +0.26%, tokens 1,024`."""
    return ", ".join(f"{name} {form.format(cost[key])}" for key, (name, form) in ROUNDING.items() if is_number(cost.get(key)))


def precision_in_words(precision: str, quantization: Mapping[str, Any]) -> str:
    """How weights are stored: `int4 (block size 32, symmetric, k_quant, head bits 8, accuracy level 4)`."""
    from ...package.manifest import precision_name  # noqa: PLC0415  (numpy)

    name = precision_name(precision, quantization)
    details = [in_words(key.replace("_", " "), value) for key, value in quantization.items() if key not in ("bits", "sources")]
    if name.endswith("as stored"):
        details = [each.removeprefix("as stored ") for each in reversed(details)]
    return f"{name} ({', '.join(details)})" if details else name


def sources_in_words(sources: object) -> Iterator[tuple[str, str]]:
    """How the source stored matrices, and what became of them: `Q4_1`, `kept: q_proj, k_proj`."""
    for form, layers in sources.items() if isinstance(sources, Mapping) else ():
        if isinstance(layers, Mapping):
            parts = [f"{what}: {', '.join(map(str, names))}" for what, names in layers.items() if isinstance(names, list)]
            yield str(form), "; ".join(parts)


def in_words(name: str, value: object) -> str:
    """One setting: `block size 32`, `symmetric`, `not symmetric`, `k_quant`, `mix int4 block 16 46.6 MB, int8 block 64 57.0 MB`."""
    if isinstance(value, Mapping):
        sizes = (f"{kind} {screen.size(count)}" for kind, count in value.items() if is_number(count))
        return f"{name} {', '.join(sizes)}"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, list):
        return f"{name} of {', '.join(map(str, value))}"
    if name == "activations":
        return f"{value} {name}"
    if name == "ternary":
        return f"{value} ternary matrices at 2 bits"
    if isinstance(value, str):
        return value
    return f"{name} {value}"


def is_number(value: object) -> bool:
    """Return whether an entry of a manifest that may have any type is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
