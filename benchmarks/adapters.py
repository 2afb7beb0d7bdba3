"""What LoRA adapters cost: a token, a part of a prompt and a token of eight rows, with each adapter of a package and without.

    python benchmarks/adapters.py PACKAGE [--past 128] [--rounds 15] [--threads 2]

In one process and in turn, behind a past of the given length: medians, and the ratio to the graph without adapters. `mixed` are
rows that take the package's adapters in turn. Texts without an adapter run on the package's own graph, which adapters leave as it
is; --beside OTHER, the same package without adapters, measures that. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill

sys.path.append(str(Path(__file__).resolve().parent / "compare"))  # which is no package
from machine import processor

ROWS, PART, STEPS = 8, 128, 8


def fed(decoder: Decoder, past: list[int]) -> Decoder:
    """A decoder whose rows all hold a past."""
    for row in range(decoder.rows):
        prefill(decoder, past, row=row)
    return decoder


def measured(decoder: Decoder, length: int, action: Callable[[], object], times: int) -> float:
    """Median milliseconds of an action, which is rolled back each time."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
        for row in range(decoder.rows):
            decoder.rewind(length, row=row)
    return 1e3 * statistics.median(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    model = onnx_textgen.load(asked.package, device="cpu", threads=asked.threads)
    ids = np.random.default_rng(0).integers(0, model.manifest.geometry.vocab_size, asked.past + PART).tolist()
    past, part = ids[: asked.past], ids[asked.past :]
    alone, together = dict[str, Decoder](), dict[str, Decoder]()
    if asked.beside is not None:
        other = onnx_textgen.load(asked.beside, device="cpu", threads=asked.threads).opened
        alone["a package without adapters"], together["a package without adapters"] = other.new_context(), other.new_rows(ROWS)
    for name in (None, *model.adapters):
        title = "no adapter" if name is None else name
        alone[title], together[title] = model.new_context(adapter=name), model.opened.new_rows(ROWS, name)
    together["mixed"] = model.opened.new_rows(ROWS, model.adapters[0])
    for row, name in zip(range(ROWS), itertools.cycle(model.adapters), strict=False):
        together["mixed"].set_adapter(name, row=row)
    for decoder in (*alone.values(), *together.values()):
        fed(decoder, past)
    columns: dict[str, dict[str, list[float]]] = {"1 token": {}, f"{PART} tokens": {}, f"1 token of {ROWS} rows": {}}
    for turn in range(asked.rounds):
        for name in list(together)[:: 1 - 2 * (turn % 2)]:
            cells = list[float]()
            if name in alone:
                decoder = alone[name]
                cells.append(measured(decoder, len(past), lambda decoder=decoder: decoder.feed([7]), STEPS))  # type: ignore[misc]
                cells.append(measured(decoder, len(past), lambda decoder=decoder: decoder.feed(part), 1))  # type: ignore[misc]
            rows = together[name]
            step = measured(rows, len(past), lambda rows=rows: rows.step([7] * ROWS, [True] * ROWS), STEPS)  # type: ignore[misc]
            for column, cell in zip(list(columns)[-len(cells) - 1 :], [*cells, step], strict=True):
                columns[column].setdefault(name, []).append(cell)
    console = Console()
    console.print(
        f"{asked.package} on {processor()}, {asked.threads} threads, past of {asked.past} tokens; ms, and ratio to no adapter"
    )
    table = Table("", *columns)
    for name in together:
        cells_of = [found.get(name, []) for found in columns.values()]
        bases = [found["no adapter"] for found in columns.values()]
        ratios = [
            statistics.median(a / b for a, b in zip(own, base, strict=True)) if own else 0
            for own, base in zip(cells_of, bases, strict=True)
        ]
        table.add_row(
            name,
            *(f"{statistics.median(own):.2f} ({ratio:.2f})" if own else "" for own, ratio in zip(cells_of, ratios, strict=True)),
        )
    console.print(table)


if __name__ == "__main__":
    main()
