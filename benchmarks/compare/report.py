"""The measurements as tables: printed, and written into docs/performance.md between two marks."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
OURS = "onnx-textgen"

Record = dict[str, Any]
Key = tuple[str, str]
"""Peer and precision."""
Series = dict[int, float]
"""A figure by round."""


def middle(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(list(values))


def spread(values: Iterable[float]) -> float:
    """Half the distance of the quartiles over the median; 0 for fewer than three values."""
    ordered = sorted(values)
    if len(ordered) < 3:
        return 0.0
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive")
    return (quartiles[2] - quartiles[0]) / 2 / statistics.median(ordered)


def last_run(records: list[Record]) -> list[Record]:
    """Those of the newest run among the records."""
    newest = max((record["run"] for record in records), default="")
    return [record for record in records if record["run"] == newest]


def speeds(rounds: list[Record]) -> dict[Key, dict[str, Series]]:
    """Tokens per second of each peer: `prefill 512`, `decode 128`, `8 together` ..., by round."""
    found: dict[Key, dict[str, Series]] = defaultdict(lambda: defaultdict(dict))
    for record in rounds:
        figures, turn = found[record["peer"], record["precision"]], record["round"]
        if "together" in record:
            figures[f"{record['together']} together"][turn] = record["together"] * 64 / record["seconds"]
        elif "context" in record:
            context = record["context"]
            figures[f"prefill {context}"][turn] = context / record["prefill"]
            figures[f"decode {context}"][turn] = 1 / middle(record["steps"])
    return dict(sorted(found.items(), key=lambda item: (not item[0][0].startswith(OURS), *item[0])))


def ratio(ours: Series, theirs: Series) -> float:
    """Median over the rounds of ours by theirs."""
    return middle(ours[turn] / theirs[turn] for turn in ours.keys() & theirs.keys())


COLUMNS = (
    "prefill 128",
    "prefill 512",
    "prefill 2048",
    "decode 128",
    "decode 512",
    "decode 2048",
    "decode 8192",
    "8 together",
)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown; the first column is text, the others figures."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def speed_table(found: dict[Key, dict[str, Series]], cold: list[Record], precision: str) -> str:
    """Tokens per second, in brackets what ours is times that; then a new process's first token and peak memory."""
    ours = found.get((OURS, precision), {})
    columns = [column for column in COLUMNS if any(column in figures for figures in found.values())]
    rows = []
    for (peer, exact), figures in found.items():
        cells = [peer if exact == precision else f"{peer} {exact}"]
        for column in columns:
            if column not in figures:
                cells.append("")
                continue
            times = "" if peer == OURS or column not in ours else f" ({ratio(ours[column], figures[column]):.2f})"
            cells.append(f"{middle(figures[column].values()):,.0f}{times}")
        starts = [record for record in cold if (record["peer"], record["precision"]) == (peer, exact)]
        cells.append(f"{middle(start['first token'] for start in starts):.2f}" if starts else "")
        cells.append(f"{middle(start['peak'] for start in starts) / 2**20:,.0f}" if starts else "")
        rows.append(cells)
    return table(["tokens/s (ours over it)", *columns, "first token, s", "peak MiB"], rows)


def best_table(found: dict[Key, dict[str, Series]], precision: str) -> str:
    """Each of ours as a multiple of the fastest of all others, column by column; empty if no other was measured."""
    ours = {peer: figures for (peer, exact), figures in found.items() if peer.startswith(OURS) and exact == precision}
    others = {peer: figures for (peer, exact), figures in found.items() if not peer.startswith(OURS) and exact == precision}
    best = {
        column: max((name for name in others if column in others[name]), key=lambda name: middle(others[name][column].values()))
        for column in COLUMNS
        if any(column in figures for figures in others.values())
    }
    if not best:
        return ""
    rows = [
        [name, *(f"{ratio(figures[column], others[best[column]][column]):.2f}" if column in figures else "" for column in best)]
        for name, figures in ours.items()
    ]
    return table(["over the fastest of the others", *best], [*rows, ["the fastest of the others", *best.values()]])


def report(results: Path, shapes: Sequence[str], precisions: Sequence[str], *, write: bool) -> None:
    """Print the tables of these shapes and precisions; with `write`, put the speeds into the page."""
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for line in results.read_text().splitlines():
        record = json.loads(line)
        by_kind[record["kind"]].append(record)
    machine = by_kind["machine"][-1]
    read, multiply = (middle(each[name] for each in by_kind["machine"]) / 1e9 for name in ("read", "multiply"))
    parts = [
        f"The machine, {machine['processor']}, 2 threads: memory is read at {read:.1f} GB/s, "
        f"float32 numbers are multiplied and added at {multiply:.0f} GFLOP/s."
    ]
    for shape in shapes:
        for precision in [each for each in precisions if each != "bf16"]:
            kinds = {precision, "bf16"} if precision == "fp32" else {precision}
            rounds, cold = (
                last_run([each for each in by_kind[kind] if each["shape"] == shape and each["precision"] in kinds])
                for kind in ("round", "cold")
            )
            if not rounds:
                continue
            found = speeds(rounds)
            widest = max(spread(series.values()) for figures in found.values() for series in figures.values())
            parts += [f"### {shape}, {precision}", speed_table(found, cold, precision)]
            parts.append(f"Widest spread of a figure (half the distance of its quartiles): {widest:.0%}.")
            print(f"{shape}, {precision}\n\n{best_table(found, precision)}\n")
    text = "\n\n".join(parts)
    print(text)
    for failure in by_kind["failure"]:
        print(f"{failure['peer']} {failure['precision']}, {failure.get('shape', '')}: {failure['error']}")
    if write:
        page = PAGE.read_text()
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
