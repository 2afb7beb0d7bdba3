"""Which model types of transformers export, and how exactly: exports a tiny random model of each, and writes docs/architectures.md.

    python -m tests.support.architectures --json FILE [--target standard] [--precision int8] [TYPE ...]

Each type runs in a process of its own, with a time limit. Beside the exporter's own proof, the package is compared here again with
the model as transformers runs it, uncached and untouched: logits of 48 tokens in uneven pieces, and 60 greedy tokens. `FILE` keeps
the rows of every target and precision from run to run; the table is written from all that it holds.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import logging
import multiprocessing
import resource
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import onnx_textgen
from onnx_textgen_export import ExportError
from onnx_textgen_export.exporting.exporter import export_source
from onnx_textgen_export.exporting.options import ExportOptions
from onnx_textgen_export.proof import measures
from onnx_textgen_export.tokenization.text_assets import TextAssets
from onnx_textgen_export.tracing.opening import make_source
from onnx_textgen_export.weights.streamed import OwnWeights

from .tiny_models import CONTEXT, not_a_text_decoder, tiny_model

TABLE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
PIECES = (7, 1, 19, 2, 14, 1, 1, 3)
GREEDY_TOKENS = 60
LOGITS_ERROR = 1e-4
DIVERGENCE = {"int8": 0.05, "int4": 0.25}
"""Largest of a quantised package, in nats per token: rounding changes the order of random logits."""
SECONDS, MEMORY_BYTES, PROCESSES = 300, 8 << 30, 2


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    model_type: str
    result: str
    """"passes", "refused", "WRONG", "CRASHED", or "no text decoder"."""
    door: str = ""
    error: float | None = None
    """Largest logits error, relative; of a quantised package, the largest divergence in nats per token."""
    reason: str = ""
    seconds: float = 0.0
    target: str = "ort"
    precision: str = "fp32"
    one_token: bool = False
    """Whether a run takes one token, because a recurrent layer does."""
    transformers: str = ""
    """Its version."""


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
            options = ExportOptions(name=model_type, target=target, precision=precision)
            made = export_source(source, OwnWeights(model), out, assets=TextAssets(), options=options)
        except ExportError as error:
            return Row(model_type, "refused", reason=str(error))
        foreign = operators_outside_the_standard(made.folder / "model.onnx") if target == "standard" else set[str]()
        if foreign:
            return Row(
                model_type, "WRONG", source.attention_path, reason=f"operators outside the standard: {', '.join(sorted(foreign))}"
            )
        if precision != "fp32":
            divergence = max(scenario["kl_divergence"] for scenario in made.manifest.certificate["scenarios"])
            return Row(model_type, "passes", source.attention_path, divergence, one_token=source.one_token)
        package = onnx_textgen.load(made.folder, threads=1)
        error, wrong = largest_error(model, package), first_wrong_token(model, package)
        proven = max(scenario["logits_error"] for scenario in made.manifest.certificate["scenarios"])
        if error > LOGITS_ERROR or wrong is not None:
            return Row(
                model_type,
                "WRONG",
                source.attention_path,
                max(error, proven),
                f"greedy token {wrong} differs" if wrong is not None else "logits",
            )
        return Row(model_type, "passes", source.attention_path, max(error, proven), one_token=source.one_token)


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
        measures.TOLERANCES[precision] = measures.Tolerance(np.inf, 0, DIVERGENCE[precision])
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            row = examine(model_type, target, precision)
    except BaseException as error:  # noqa: BLE001 - what crashes is a row of the table too
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        row = Row(model_type, "CRASHED", reason=f"{text} ({Path(place.filename).name}:{place.lineno})")
    seconds = round(time.perf_counter() - start, 1)
    answers.send(
        dataclasses.replace(row, seconds=seconds, target=target, precision=precision, transformers=transformers.__version__)
    )


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


COLUMNS = (("ort", "fp32"), ("standard", "fp32"), ("ort", "int8"), ("ort", "int4"))


def table(rows: list[Row]) -> str:
    """docs/architectures.md."""
    columns = [column for column in COLUMNS if any((row.target, row.precision) == column for row in rows)]
    by_type: dict[str, dict[tuple[str, str], Row]] = {}
    for row in sorted(rows, key=lambda row: row.model_type):
        by_type.setdefault(row.model_type, {})[row.target, row.precision] = row
    names = [f"`{target}` {precision}" for target, precision in columns]
    said = textwrap.fill(
        "Every model type of transformers' causal-LM mapping, exported as a tiny random model and compared with transformers:"
        " the exporter's own proof, then 48 logits fed in uneven parts, which must agree within 1e-4 of the largest, and 60 "
        "greedy tokens. Each figure at fp32 is the largest logits error, relative to the largest logit; at int8 and int4 it "
        "is the largest divergence from PyTorch in float32, in nats per token. At int8 and int4 the preferred token is not "
        "compared: the logits of random weights are nearly equal, so any rounding changes their order, most of all where "
        "experts are chosen. At `standard` every operator is in ONNX's own domain, and `onnx.checker` finds nothing. Types "
        "marked `fused` have one attention operator per layer; types marked `own` keep the attention code of transformers.",
        width=120,
    )
    made_by = "`python -m tests.support.architectures --json FILE` with each `--target` and `--precision`"
    versions = collections.Counter(row.transformers for row in rows)
    usual = versions.most_common(1)[0][0]
    others = [
        f"With transformers {version}: {names_of(row for row in rows if row.transformers == version)}."
        for version in sorted(versions)
        if version != usual
    ]
    single = names_of(row for row in rows if row.one_token)
    counts = [counted([row for row in rows if (row.target, row.precision) == column]) for column in columns]
    lines = [
        "# Architectures: which model types export",
        "",
        said,
        "",
        f"transformers {usual}, torch {torch.__version__}; made by {made_by}. In all:",
        "",
        *(f"- {name}: {count}" for name, count in zip(names, counts, strict=True)),
        "",
        *(line for each in others for line in (textwrap.fill(each, width=120), "")),
        *([f"A run takes any number of tokens, except with {single}, where it takes one.", ""] if single else []),
        f"| model type | attention | {' | '.join(names)} | why not |",
        f"|---|---|{'---|' * len(names)}---|",
    ]
    for model_type, found in by_type.items():
        door = next((row.door for row in found.values() if row.door), "")
        reason = next((row.reason for row in found.values() if row.reason), "").replace("|", "/")
        cells = [cell(found[column]) if column in found else "" for column in columns]
        lines.append(f"| {model_type} | {door} | {' | '.join(cells)} | {reason} |")
    return "\n".join(lines) + "\n"


def names_of(rows: Iterable[Row]) -> str:
    """Their model types, each once."""
    return ", ".join(sorted({row.model_type for row in rows}))


def counted(rows: list[Row]) -> str:
    """`163 passes, 16 refused`."""
    results = dict.fromkeys(row.result for row in rows)
    return ", ".join(f"{sum(row.result == result for row in rows)} {result}" for result in results)


def cell(row: Row) -> str:
    """What a column says of a type."""
    return f"{row.error:.1e}" if row.result == "passes" and row.error is not None else row.result


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types; all without any")
    parser.add_argument("--target", default="ort", choices=("ort", "standard"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "int8", "int4"))
    parser.add_argument("--json", type=Path, required=True, help="rows made before: those made now take their place")
    given = parser.parse_args()
    known = [Row(**row) for row in json.loads(given.json.read_text())] if given.json.is_file() else []
    rows = run_all(given.types or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), given.target, given.precision)
    merged = list({(row.model_type, row.target, row.precision): row for row in [*known, *rows]}.values())
    given.json.write_text(json.dumps([dataclasses.asdict(row) for row in merged], indent=1), encoding="utf-8")
    TABLE.write_text(table(merged), encoding="utf-8")
    return 1 if any(row.result in {"WRONG", "CRASHED"} for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
