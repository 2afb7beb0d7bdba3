"""The measurements as a table: printed, and written into a page between two marks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from peers import program
from report import middle, speeds, table

BEGIN, END = "<!-- measured: {} -->\n", "<!-- end -->"
PACKAGES = {
    "onnx-textgen": ("onnx-textgen", "onnxruntime"),
    "onnxruntime-genai": ("onnxruntime-genai", "onnxruntime"),
    "llama.cpp": ("llama-cpp-python",),
    "openvino-genai": ("openvino",),
    "conversions": ("optimum-intel", "nncf"),
    "transformers": ("transformers", "torch"),
}
"""Whose versions a reader must know, by environment."""

Record = dict[str, Any]
Key = tuple[str, str]
"""Whose and which form."""


def key_of(record: Record) -> Key:
    """What a record is about."""
    return record["peer"], record["precision"]


def versions(work: Path) -> str:
    """Versions of the packages in each environment that is there."""
    found = {}
    for environment, packages in PACKAGES.items():
        python = program(work, environment, "python")
        code = (
            "import importlib.metadata as m; found = {d.name: d.version for d in m.distributions()}; "
            f"print(*(f'{{name}} {{found[name]}}' for name in {packages} if name in found), sep=', ')"
        )
        if Path(python).exists():
            printed = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
            found |= dict.fromkeys(filter(None, printed.strip().split(", ")))
    return ", ".join(found)


def size_cell(record: Record) -> str:
    """MB of the files, and in brackets without a vocabulary that is inside."""
    whole, vocabulary = record["bytes"] / 1e6, record["vocabulary_bytes"] / 1e6
    digits = 1 if whole >= 10 else 2
    return f"{whole:.{digits}f}" + (f" ({whole - vocabulary:.{digits}f})" if vocabulary else "")


def divergence_cell(value: float) -> str:
    """Nats to three digits, small ones in powers of ten."""
    if value == 0:
        return "0"
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"


def cost_cell(record: Record) -> str:
    """Seconds and memory that the conversion took."""
    return f"{record['made_seconds']:.0f} s, {record['made_bytes'] / 1e9:.1f} GB" if "made_seconds" in record else ""


def quality_table(outcomes: list[Record], rounds: list[Record]) -> str:
    """One line for each form, the smallest first; below them those that have none, and why."""
    found = speeds(rounds)
    columns = ["decode 128", "prefill 512"] if found else []
    rows = []
    for record in sorted((each for each in outcomes if "kl" in each), key=lambda each: each["bytes"]):
        cells = [" ".join(key_of(record)), size_cell(record), divergence_cell(record["kl"]), divergence_cell(record["kl_99"])]
        cells += [f"{record['same_top']:.2%}", f"{record['perplexity']:+.2%}", cost_cell(record)]
        figures = found.get(key_of(record), {})
        rows.append(cells + [f"{middle(figures[name].values()):,.0f}" if name in figures else "" for name in columns])
    refused = [each for each in outcomes if "reason" in each]
    rows += [[" ".join(key_of(each)), "refused", *[""] * (5 + len(columns))] for each in refused]
    header = ["form", "MB", "KL, nats/token", "its 99th percentile", "same top-1", "perplexity", "made in"]
    reasons = "\n".join(f"- {' '.join(key_of(each))} was refused: {each['reason']}" for each in refused)
    units = [f"{name}, tokens/s" for name in columns]
    return table([*header, *units], rows) + (f"\n\n{reasons}" if reasons else "")


def conditions(command: str, about: Record, machine: str, engines: str) -> str:
    """What a reader must know to repeat the figures."""
    return (
        f"Measured with `{command}` on {machine}, {about['threads']} threads; {engines}. The text: {Path(about['text']).name}, its "
        f"first {about['tokens']:,} tokens in windows of {about['window']}, each fed alone from an empty context. Converters that "
        f"read data got {Path(about['calibration']).name}."
    )


def write_page(page: Path, model: str, text: str) -> None:
    """Put a text between the marks of a model on a page; raises `ValueError` where there are none."""
    mark = BEGIN.format(model)
    before, begin, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {mark.strip()} and {END}; add them where the table should stand")
    page.write_text(f"{before}{mark}{text}\n{END}{after}", encoding="utf-8")
