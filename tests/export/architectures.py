"""Which model types of transformers export, and how exactly: exports a tiny random model of each, and writes docs/architectures.md.

    python -m tests.export.architectures [--target standard] [--json FILE] [TYPE ...]

Each type runs in a process of its own, with a time limit. Beside the exporter's own proof, the package is compared here again with
the model as transformers runs it, uncached and untouched: logits of 48 tokens in uneven pieces, and 60 greedy tokens. With types
named, the table is printed only; without, it is written. `--json FILE` keeps rows from run to run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
import warnings
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import onnx_textgen
from onnx_textgen_export import ExportError, parity
from onnx_textgen_export.exporting import export_source
from onnx_textgen_export.opening import make_source
from onnx_textgen_export.text_assets import TextAssets
from onnx_textgen_export.weights import OwnWeights

from .tiny_models import CONTEXT, not_a_text_decoder, tiny_model

TABLE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
PIECES = (7, 1, 19, 2, 14, 1, 1, 3)
GREEDY_TOKENS = 60
LOGITS_ERROR = 1e-4
QUANTISED = parity.Tolerance(logits_error=np.inf, top1_agreement=0, kl_divergence=0.05)
"""For quantised packages: random weights have flat logits, whose order any rounding changes."""
SECONDS, MEMORY_BYTES, PROCESSES = 300, 8 << 30, 2


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    model_type: str
    result: str
    """"passes", "refused", "WRONG", "CRASHED", or "no text decoder"."""
    door: str = ""
    error: float | None = None
    """Largest logits error, relative."""
    reason: str = ""
    seconds: float = 0.0


def largest_error(model: transformers.PreTrainedModel, package: Any) -> float:
    """Of the logits of a text fed in pieces."""
    ids = np.random.default_rng(5).integers(3, 300, sum(PIECES)).tolist()
    with torch.no_grad():
        want = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    decoder, start, parts = package.new_context(), 0, []
    for size in PIECES:
        parts.append(decoder.feed(ids[start : start + size], every_position=True))
        start += size
    error = float(np.abs(np.concatenate(parts) - want).max() / np.abs(want).max())
    return error if np.isfinite(error) else float("inf")


def first_wrong_token(model: transformers.PreTrainedModel, package: Any) -> int | None:
    """Where the package's greedy continuation leaves that of transformers, if it does; ties in float32 count as equal."""
    prompt = np.random.default_rng(6).integers(3, 300, 12).tolist()
    new = list(package.generate(prompt, max_new_tokens=GREEDY_TOKENS, temperature=0).token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + new[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :].numpy()
    behind = logits.max(axis=1) - logits[np.arange(len(new)), new]
    wrong = np.flatnonzero(behind > 2e-6 * np.abs(logits).max())
    if len(wrong):
        return int(wrong[0])
    return None if len(new) == GREEDY_TOKENS else len(new)


def examine(model_type: str, target: Any, precision: Any) -> Row:
    """Build, export and compare one type; a quantised package is judged by the exporter's own proof alone."""
    if reason := not_a_text_decoder(model_type):
        return Row(model_type, "no text decoder", reason=reason)
    try:
        model = tiny_model(model_type)
    except ImportError as error:
        return Row(
            model_type, "refused", reason="transformers cannot build it: " + " ".join(str(error).split(" but it")[0].split())
        )
    config = model.config.get_text_config(decoder=True)
    length = None if isinstance(getattr(config, "max_position_embeddings", None), int) else CONTEXT
    with tempfile.TemporaryDirectory() as folder:
        try:
            source = make_source(model, length)
            out = Path(folder) / "package"
            made = export_source(
                source, OwnWeights(model), out, assets=TextAssets(), name=model_type, target=target, precision=precision
            )
        except ExportError as error:
            return Row(model_type, "refused", reason=str(error))
        foreign = operators_outside_the_standard(made.folder / "model.onnx") if target == "standard" else set[str]()
        if foreign:
            return Row(model_type, "WRONG", source.door, reason=f"operators outside the standard: {', '.join(sorted(foreign))}")
        if precision != "fp32":
            divergence = max(scenario["kl_divergence"] for scenario in made.manifest.certificate["scenarios"])
            return Row(model_type, "passes", source.door, divergence)
        package = onnx_textgen.load(made.folder, threads=1)
        error, wrong = largest_error(model, package), first_wrong_token(model, package)
        proven = max(scenario["logits_error"] for scenario in made.manifest.certificate["scenarios"])
        if error > LOGITS_ERROR or wrong is not None:
            return Row(
                model_type,
                "WRONG",
                source.door,
                max(error, proven),
                f"greedy token {wrong} differs" if wrong is not None else "logits",
            )
        return Row(model_type, "passes", source.door, max(error, proven))


def operators_outside_the_standard(path: Path) -> set[str]:
    """The operators that are not ONNX's own; raises what `onnx.checker` finds wrong."""
    onnx.checker.check_model(path)
    graph = onnx.load(path, load_external_data=False)
    return {f"{node.domain}::{node.op_type}" for node in graph.graph.node if node.domain not in ("", "ai.onnx")}


def worker(model_type: str, target: str, precision: Any, answers: Connection) -> None:
    """In a process of its own: send the row back."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if precision != "fp32":
        parity.TOLERANCES[precision] = QUANTISED
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            row = examine(model_type, target, precision)
    except BaseException as error:  # noqa: BLE001 - what crashes is a row of the table too
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        row = Row(model_type, "CRASHED", reason=f"{text} ({Path(place.filename).name}:{place.lineno})")
    answers.send(dataclasses.replace(row, seconds=round(time.perf_counter() - start, 1)))


def run_all(types: list[str], target: str, precision: str) -> list[Row]:
    """Every type, `PROCESSES` at once."""
    context = multiprocessing.get_context("fork")
    waiting, running, rows = list(types), {}, []
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            model_type = waiting.pop(0)
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=worker, args=(model_type, target, precision, theirs))
            process.start()
            theirs.close()
            running[mine] = (model_type, process, time.monotonic() + SECONDS)
        ready = wait(list(running), timeout=1)
        for pipe, (model_type, process, deadline) in list(running.items()):
            if pipe in ready:
                try:
                    row = pipe.recv()
                except EOFError:
                    row = Row(model_type, "CRASHED", reason="the process died")
            elif time.monotonic() > deadline:
                process.kill()
                row = Row(model_type, "CRASHED", reason=f"took more than {SECONDS} s")
            else:
                continue
            process.join()
            del running[pipe]
            rows.append(row)
            print(
                f"{row.model_type:28} {row.result:16} {row.door:6} {row.error or 0:.1e} {row.seconds:6.1f} s  {row.reason}",
                flush=True,
            )
    return sorted(rows, key=lambda row: row.model_type)


def table(rows: list[Row], target: str) -> str:
    """docs/architectures.md."""
    counts = {result: sum(row.result == result for row in rows) for result in dict.fromkeys(row.result for row in rows)}
    lines = [
        "# Architectures",
        "",
        "Every model type of transformers' causal-LM mapping, exported as a tiny random model and compared with transformers",
        "itself: the exporter's own proof, then 48 logits in uneven pieces within 1e-4 of the largest, and 60 greedy tokens.",
        "Types marked `fused` have one attention operator per layer (`attention`), `own` keep the attention code of transformers.",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__}, fp32, target `{target}`; made by",
        "`python -m tests.export.architectures`. In all: "
        + ", ".join(f"{count} {result}" for result, count in counts.items())
        + ".",
        "",
        "| model type | result | attention | largest error | why not |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        error = f"{row.error:.1e}" if row.error is not None else ""
        lines.append(f"| {row.model_type} | {row.result} | {row.door} | {error} | {row.reason.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types; all without any, and the table is written")
    parser.add_argument("--target", default="ort", choices=("ort", "standard"))
    parser.add_argument("--json", type=Path, help="rows made before: those made now take their place, and all are written")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "int8", "int4"))
    given = parser.parse_args()
    rows = run_all(given.types or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), given.target, given.precision)
    if given.json:
        known = {row["model_type"]: Row(**row) for row in json.loads(given.json.read_text())} if given.json.is_file() else {}
        rows = sorted((known | {row.model_type: row for row in rows}).values(), key=lambda row: row.model_type)
        given.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1), encoding="utf-8")
    if given.json or not given.types:
        TABLE.write_text(table(rows, given.target), encoding="utf-8")
    return 1 if any(row.result in {"WRONG", "CRASHED"} for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
