"""Which operators a package spends its time in, by ONNX Runtime's own profiler: a prompt, tokens over short and long texts, rows.

    python benchmarks/operators.py PACKAGE [--threads 2]

The profiler makes every operator a little slower, small ones most; shares are what counts.
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from onnx_textgen.backends.onnxruntime_session import CPU, make_options, open_on
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen.package.reading import read_manifest

PROMPT, STEPS = 512, 32
TEXTS = ((128, 1), (2048, 1), (64, 8))
"""Tokens of the text before a step, and rows of the step."""
MOST_OPERATORS = 8


def spent(package: Path, threads: int, *, text: int, steps: int, rows: int = 1) -> dict[str, float]:
    """Milliseconds by operator: of feeding a prompt where `steps` is 0, else of a step behind it, of that many rows at once."""
    geometry = read_manifest(package).geometry
    ids = [(7919 * index) % geometry.vocab_size for index in range(min(text, geometry.context_length - steps - 1))]
    with tempfile.TemporaryDirectory() as folder:
        options = make_options(threads)
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder, "profile"))
        session = open_on(package / GRAPH, CPU, options)
        decoder = Decoder(session, geometry, rows=rows, capacity=len(ids) + steps)
        for row in range(rows):
            decoder.feed(ids, row=row)
        for index in range(steps):
            decoder.step([ids[index]] * rows, [True] * rows)
        events = json.loads(Path(session.ort.end_profiling()).read_text())
    times: dict[str, float] = collections.defaultdict(float)
    runs = [event["ts"] for event in events if event["name"] == "model_run"]
    first = sorted(runs)[rows] if steps else 0  # without the prompts' runs
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= first:
            times[event["args"]["op_name"]] += event["dur"] / 1e3 / max(steps, 1)
    return times


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    columns = {f"prompt of {PROMPT}": (PROMPT, 0, 1)}
    columns |= {f"token behind {text:,}" + (f", {rows} rows" if rows > 1 else ""): (text, STEPS, rows) for text, rows in TEXTS}
    found = {
        name: spent(arguments.package, arguments.threads, text=text, steps=steps, rows=rows)
        for name, (text, steps, rows) in columns.items()
    }
    table = Table(title="milliseconds, and share of the run", title_justify="left")
    table.add_column("operator")
    for name in columns:
        table.add_column(name, justify="right")
    most = collections.Counter[str]()
    for times in found.values():
        most.update({operator: time / sum(times.values()) for operator, time in times.items()})
    for operator, _ in most.most_common(MOST_OPERATORS):
        table.add_row(
            operator,
            *(f"{times.get(operator, 0):.2f} {times.get(operator, 0) / sum(times.values()):4.0%}" for times in found.values()),
        )
    table.add_row("all", *(f"{sum(times.values()):.2f}" for times in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
