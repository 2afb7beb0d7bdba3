"""Which encoder-decoders of transformers export, and how exactly: writes the table of docs/encoder_decoders.md.

    python -m tests.support.encoder_decoder_types --json FILE [--target standard] [--precision int8] [TYPE ...]

A tiny random model of each type is exported and proven. At fp32 its texts are compared with those that transformers generates:
greedy, three sources together, and with 4 beams. `FILE` keeps the rows from run to run; all of them are in the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

import onnx_textgen
from onnx_textgen_export import ExportError, export

from .tiny_encoder_decoders import CONTEXT, END, START, TYPES, VOCABULARY, tiny_encoder_decoder

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "encoder_decoders.md"
BEGIN, CLOSE = "<!-- measured: types -->\n", "<!-- end -->"
COLUMNS = (("ort", "fp32"), ("standard", "fp32"), ("ort", "int8"), ("ort", "int4"))
NEW_TOKENS = 24
BEAMS: tuple[dict[str, Any], ...] = (
    {"num_beams": 4},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 4, "no_repeat_ngram_size": 2},
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One type at one target and precision."""

    model_type: str
    target: str
    precision: str
    error: float | None = None
    """Largest logits error relative to the largest logit; of a quantised package with the same rounded weights in PyTorch."""
    reason: str = ""
    """Why it does not pass."""


def sources(*lengths: int) -> list[list[int]]:
    """Sources of these lengths, without special ids."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(START + 1, VOCABULARY - 1, (length,), generator=generator).tolist() for length in lengths]


def generated(model: Any, source: list[int], **options: object) -> list[int]:
    """The ids that transformers generates for a source, without start and end."""
    settings = {"max_new_tokens": NEW_TOKENS, "max_length": None, "do_sample": False, "num_beams": 1} | options
    with torch.no_grad():
        ids = model.generate(torch.tensor([source]), **settings)[0]
    return [token_id for token_id in ids.tolist()[1:] if token_id != END]


def first_difference(model: Any, package: onnx_textgen.Model) -> str:
    """How the package's texts differ from those of transformers; empty if they do not."""
    read = sources(3, 37, 20)
    together = package.generate(read, max_new_tokens=NEW_TOKENS, temperature=0)
    for source, text in zip(read, together, strict=True):
        if list(text.token_ids) != generated(model, source):
            return f"greedy text after {len(source)} tokens"
    for source in read[:2]:
        for options in BEAMS:
            found = package.generate(source, max_new_tokens=NEW_TOKENS, **options)
            if list(found.token_ids) != generated(model, source, **options):
                return f"text after {len(source)} tokens with {options}"
    return ""


def examine(model_type: str, target: Any, precision: Any) -> Row:
    """Export and compare one type."""
    model = tiny_encoder_decoder(model_type)
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = export(
                model, Path(folder) / "package", eos_ids=(END,), context_length=CONTEXT // 2, target=target, precision=precision
            )
        except ExportError as error:
            return Row(model_type, target, precision, reason=str(error))
        certificate = made.manifest.certificate
        measured = certificate["scenarios"] if precision == "fp32" else certificate["same_weights"]
        error = max(each["logits_error"] for each in measured)
        different = first_difference(model, onnx_textgen.load(made.folder, threads=1)) if precision == "fp32" else ""
        return Row(model_type, target, precision, error, f"WRONG: {different}" if different else "")


def table(rows: list[Row]) -> str:
    """The rows as a table with a column for each target and precision."""
    found = {(row.model_type, row.target, row.precision): row for row in rows}
    columns = [column for column in COLUMNS if any((row.target, row.precision) == column for row in rows)]
    names = [f"`{target}` {precision}" for target, precision in columns]
    counts = [
        f"{name}: {sum(row.error is not None and not row.reason for row in rows if (row.target, row.precision) == column)} pass"
        for name, column in zip(names, columns, strict=True)
    ]
    lines = [
        f"transformers {transformers.__version__}, torch {torch.__version__}; of {len(TYPES)} types {', '.join(counts)}.",
        "",
        f"| model type | {' | '.join(names)} | why not |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for model_type in sorted({row.model_type for row in rows}):
        cells = [cell(found.get((model_type, *column))) for column in columns]
        reasons = (row.reason for row in rows if row.model_type == model_type and row.reason)
        lines.append(f"| {model_type} | {' | '.join(cells)} | {next(reasons, '').replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def cell(row: Row | None) -> str:
    """What a column says of a type."""
    if row is None:
        return ""
    return "refused" if row.error is None else f"{row.error:.1e}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types; all without any")
    parser.add_argument("--target", default="ort", choices=("ort", "standard"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "int8", "int4"))
    parser.add_argument("--json", type=Path, required=True, help="rows made before: those made now take their place")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    known = [Row(**row) for row in json.loads(given.json.read_text(encoding="utf-8"))] if given.json.is_file() else []
    for model_type in given.types or TYPES:
        row = examine(model_type, given.target, given.precision)
        print(row, flush=True)
        known = [
            each for each in known if (each.model_type, each.target, each.precision) != (model_type, row.target, row.precision)
        ]
        known.append(row)
        given.json.write_text(json.dumps([dataclasses.asdict(each) for each in known], indent=1), encoding="utf-8")
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + "\n" + table(known) + "\n" + CLOSE + rest.split(CLOSE, 1)[1], encoding="utf-8")
    return 1 if any("WRONG" in row.reason for row in known) else 0


if __name__ == "__main__":
    sys.exit(main())
