"""The measurements as tables and plots: printed, and written into docs/performance.md between two marks."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
OURS = "onnx-textgen"
SMALL_CACHE = f"{OURS}, cache of 8 bits"

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
        elif "right" in record:
            figures["editing"][turn], figures["right"][turn] = record["speed"], record["right"]
        elif "context" in record:
            context = record["context"]
            figures[f"prefill {context}"][turn] = context / record["prefill"]
            figures[f"decode {context}"][turn] = 1 / middle(record["steps"])
    return dict(sorted(found.items(), key=lambda item: (not item[0][0].startswith(OURS), *item[0])))


def ratio(ours: Series, theirs: Series) -> float:
    """Median over the rounds of ours by theirs."""
    return middle(ours[turn] / theirs[turn] for turn in ours.keys() & theirs.keys())


COLUMNS = (
    "prefill 32",
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


def speed_table(found: dict[Key, dict[str, Series]]) -> str:
    """Tokens per second, and in brackets what ours is times that."""
    ours = {precision: figures for (peer, precision), figures in found.items() if peer == OURS}
    columns = [column for column in COLUMNS if any(column in figures for figures in found.values())]
    rows = []
    for (peer, precision), figures in found.items():
        cells, base = [f"{peer} {precision}"], ours.get("fp32" if precision == "bf16" else precision, {})
        for column in columns:
            if column not in figures:
                cells.append("")
                continue
            times = "" if peer == OURS or column not in base else f" ({ratio(base[column], figures[column]):.2f})"
            cells.append(f"{middle(figures[column].values()):,.0f}{times}")
        rows.append(cells)
    return table(["tokens/s (ours over it)", *columns], rows)


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


def small_cache_in_words(found: dict[Key, dict[str, Series]], precision: str) -> str:
    """Decoding with a cache of 8 bits beside the fastest of the others, at each context; empty where it was not measured."""
    ours, parts = found.get((SMALL_CACHE, precision), {}), list[str]()
    for column in [name for name in COLUMNS if name.startswith("decode") and name in ours]:
        others = {key[0]: figures[column] for key, figures in found.items() if not key[0].startswith(OURS) and column in figures}
        if others:
            least = min(others, key=lambda name: ratio(ours[column], others[name]))
            parts.append(f"{column}: {ratio(ours[column], others[least]):.2f} ({least})")
    return f"A cache of 8 bits over the fastest of the others, {', '.join(parts)}." if parts else ""


def editing_table(found: dict[Key, dict[str, Series]]) -> str:
    """Tokens per second without and with prompt lookup, and in brackets what ours with it is times that."""
    mine = next(figures["editing"] for (peer, _), figures in found.items() if peer == OURS)
    rows = []
    for key, figures in found.items():
        cells = [" ".join(key)]
        for name in ("decode 128", "editing"):
            series = figures.get(name, {})
            times = "" if series is mine or not series else f" ({ratio(mine, series):.2f})"
            cells.append(f"{middle(series.values()):,.0f}{times}" if series else "has none")
        rows.append([*cells, f"{middle(figures['right'].values()):.0%}" if "right" in figures else ""])
    return table(["editing, tokens/s (ours with prompt lookup over it)", "without", "with prompt lookup", "as it should be"], rows)


def cold_table(cold: list[Record], models: dict[Key, int]) -> str:
    """Seconds and bytes of a new process."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in cold:
        groups[record["peer"], record["precision"]].append(record)
    rows = [
        [
            f"{peer} {precision}",
            f"{middle(each['first token'] for each in group):.2f}",
            f"{middle(each['load'] for each in group):.2f}",
            f"{middle(each['peak'] for each in group) / 2**20:,.0f}",
            f"{models[peer, precision] / 1e6:,.0f}" if (peer, precision) in models else "",
        ]
        for (peer, precision), group in groups.items()
    ]
    return table(["a new process", "first token s", "load s", "peak MiB", "model MB"], rows)


def environment_table(environments: list[Record]) -> str:
    """Installed megabytes and import time by environment, and ours by package."""
    rows = [[each["name"], f"{sum(each['sizes'].values()) / 1e6:,.0f}", f"{each['seconds']:.2f}"] for each in environments]
    text = table(["installed", "MB", "import s"], rows)
    for each in environments:
        if each["name"] == OURS:
            largest = sorted(each["sizes"].items(), key=lambda item: -item[1])
            listed = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in largest if size >= 1e6)
            rest = sum(size for _, size in largest if size < 1e6)
            text += f"\n\n{OURS} by package, in MB: {listed}, all others {rest / 1e6:.1f}."
    return text


def roofline_table(found: dict[Key, dict[str, Series]], models: dict[Key, int], machine: Record) -> str:
    """What part of the memory's rate the reading of all weights is, at a short context, where hardly anything else is read."""
    rows = []
    for key, figures in found.items():
        if "decode 128" in figures and key in models:
            read = models[key] * middle(figures["decode 128"].values())
            rows.append([" ".join(key), f"{read / 1e9:.1f}", f"{read / machine['read']:.0%}"])
    return table(["weights read while decoding", "GB/s", "of the machine's rate"], rows)


def plot(found: dict[Key, dict[str, Series]], shape: str, precision: str, kind: str) -> Path:
    """Tokens per second against the context, a line for each peer."""
    import matplotlib  # noqa: PLC0415 - only where pictures are made

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (peer, exact), figures in found.items():
        points = sorted(
            (int(name.split()[1]), middle(series.values())) for name, series in figures.items() if name.startswith(kind)
        )
        if points:
            label = peer if exact == precision else f"{peer} {exact}"
            axes.plot(*zip(*points, strict=True), marker="o", label=label, linewidth=3 if peer.startswith(OURS) else 1.2)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of the prompt" if kind == "prefill" else "tokens of context")
    axes.set_ylabel("tokens per second")
    axes.set_title(f"{kind}, {shape}, {precision}, 2 threads", loc="left")
    contexts = sorted({int(name.split()[1]) for figures in found.values() for name in figures if name.startswith(kind)})
    axes.set_xticks(contexts, [f"{context:,}" for context in contexts])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.3)
    path = PICTURES / f"{kind}-{shape}-{precision}.svg"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return path


def report(results: Path, *, write: bool) -> None:
    """Print the tables; with `write`, put them and the plots into the page."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_kind[record["kind"]].append(record)
    machine = by_kind["machine"][-1]
    read, multiply = (middle(each[name] for each in by_kind["machine"]) / 1e9 for name in ("read", "multiply"))
    parts = [
        f"The machine, {machine.get('processor', machine['cores'])}, 2 threads: memory is read at {read:.1f} GB/s, "
        f"float32 numbers are multiplied and added at {multiply:.0f} GFLOP/s."
    ]
    environments = {record["name"]: record for record in by_kind["environment"]}
    if environments:
        parts += ["### Installed size and import", environment_table(list(environments.values()))]
    models = {(each["shape"], each["peer"], each["precision"]): each["bytes"] for each in by_kind["model"]}
    for shape in dict.fromkeys(record["shape"] for record in by_kind["round"]):
        for precision in ("int4", "int8", "fp32"):
            kinds = {precision, "bf16"} if precision == "fp32" else {precision}

            def those(kind: str, shape: str = shape, kinds: set[str] = kinds) -> list[Record]:
                return last_run([each for each in by_kind[kind] if each["shape"] == shape and each["precision"] in kinds])

            if not (rounds := those("round")):
                continue
            found, sizes = speeds(rounds), {key[1:]: size for key, size in models.items() if key[0] == shape}
            if any("editing" in figures for figures in found.values()):
                parts += [f"### {shape}, {precision}", editing_table(found)]
                continue
            parts += [f"### {shape}, {precision}", speed_table(found)]
            parts += [text for text in (best_table(found, precision), small_cache_in_words(found, precision)) if text]
            if cold := those("cold"):
                parts.append(cold_table(cold, sizes))
            parts.append(roofline_table(found, sizes, machine))
            widest = max(
                (spread(series.values()), " ".join((*key, name)))
                for key, figures in found.items()
                for name, series in figures.items()
            )
            parts.append(f"Widest spread (half the distance of the quartiles): {widest[0]:.0%}, {widest[1]}.")
            if write:
                for kind in ("prefill", "decode"):
                    parts.append(f"![{kind} of {shape} at {precision}](pictures/{plot(found, shape, precision, kind).name})")
    failures = {(each.get("shape", ""), each["peer"], each["precision"]): each["error"] for each in by_kind["failure"]}
    measured = {(each["shape"], each["peer"], each["precision"]) for each in by_kind["round"]}
    lost = [f"- {' '.join(key)}: {why}" for key, why in failures.items() if key not in measured]
    if lost:
        parts += ["### What could not be measured", "\n".join(lost)]
    text = "\n\n".join(parts)
    print(text)
    if write:
        page = PAGE.read_text()
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
