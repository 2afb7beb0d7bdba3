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

TIMED = ["decode 128", "prefill 512"]
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


def quality_table(found: dict[str, tuple[list[Record], list[Record]]]) -> str:
    """One line for each form of each model, the smallest first; below them those that have none, and why.

    `found` has the outcomes and the rounds by model. Where there is more than one kind of text, each has its column.
    """
    records = [each for outcomes, _ in found.values() for each in outcomes if "kl" in each]
    kinds = list(dict.fromkeys(kind for each in records for kind in each["kinds"]))
    timed = TIMED if any(rounds for _, rounds in found.values()) else []
    rows, reasons = [], []
    for model, (outcomes, rounds) in found.items():
        name, speed = ([model] if len(found) > 1 else []), speeds(rounds)
        for record in sorted((each for each in outcomes if "kl" in each), key=lambda each: each["bytes"]):
            figures = speed.get(key_of(record), {})
            times = [f"{middle(figures[each].values()):,.0f}" if each in figures else "" for each in timed]
            rows.append([*name, *cells(record, kinds), *times])
        reasons += [f"- {' '.join([*name, *key_of(each)])} was refused: {each['reason']}" for each in outcomes if "reason" in each]
    header = ["model"] if len(found) > 1 else []
    header += ["form", "MB", *(f"KL, {kind}" for kind in kinds if len(kinds) > 1), "KL, nats/token"]
    header += ["its 99th percentile", "same top-1", "perplexity", "made in", *(f"{each}, tokens/s" for each in timed)]
    return "\n\n".join(filter(None, (table(header, rows), "\n".join(reasons))))


def cells(record: Record, kinds: list[str]) -> list[str]:
    """What a line says of a form, its speeds left out."""
    each_kind = [divergence_cell(record["kinds"][kind]) for kind in kinds if len(kinds) > 1]
    losses = [*each_kind, divergence_cell(record["kl"]), divergence_cell(record["kl_99"])]
    shares = [f"{record['same_top']:.2%}", f"{record['perplexity']:+.2%}"]
    return [" ".join(key_of(record)), size_cell(record), *losses, *shares, cost_cell(record)]


def conditions(command: str, about: Record, machine: str, engines: str) -> str:
    """What a reader must know to repeat the figures."""
    return (
        f"Measured with `{command}` on {machine}, {about['threads']} threads; {engines}. Of each text the first "
        f"{about['tokens']:,} tokens in windows of {about['window']}, each fed alone from an empty context. Converters that "
        f"read data got {Path(about['calibration']).name}."
    )


def write_page(page: Path, models: str, text: str) -> None:
    """Put a text between the marks of some models on a page; raises `ValueError` where there are none."""
    mark = BEGIN.format(models)
    before, begin, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {mark.strip()} and {END}; add them where the table should stand")
    page.write_text(f"{before}{mark}{text}\n{END}{after}", encoding="utf-8")
