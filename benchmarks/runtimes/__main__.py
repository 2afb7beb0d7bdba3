"""Which runtimes write the same text of one package: greedy continuations, compared token by token.

    python benchmarks/runtimes --work DIR                                      # the models that ship with onnx-textgen
    python benchmarks/runtimes --work DIR --source stories=CHECKPOINT          # and a checkpoint at each precision and target
    python benchmarks/runtimes --work DIR --package FOLDER --runtime "Python|genai"
    python benchmarks/runtimes --work DIR --write docs/runtimes.md

Each package of 8 or 4 bits also has its form in float32 (`--exact`), with the same weights. A cell says how many continuations are
those of Python on ONNX Runtime, and in brackets how many are those of the form in float32. DIR keeps the packages and every result
(runtimes.jsonl); the table shows the last one of each cell. Node's libraries are those of the current folder:
npm install --ignore-scripts onnxruntime-node @huggingface/transformers. Needs the `dev` extra.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "compare"))
from columns import COLUMNS  # noqa: E402
from forms import Form, embedded_forms, exported_forms, given_forms  # noqa: E402
from machine import processor  # noqa: E402 - benchmarks/compare is no package
from measuring import SHORT, Continuations, equal, write  # noqa: E402
from page import Record, reasons, table, write_page  # noqa: E402
from prompts import PROMPTS  # noqa: E402

import onnx_textgen  # noqa: E402
from onnx_textgen.diagnostics.runtimes.own_engine import OwnEngine  # noqa: E402
from onnx_textgen.diagnostics.runtimes.protocol import Runtime, Task  # noqa: E402
from onnx_textgen.errors import OnnxTextgenError, first_line  # noqa: E402


def prompts_of(form: Form, count: int) -> list[tuple[int, ...]]:
    """The prompts as this package's token ids."""
    with onnx_textgen.load(form.folder, device="cpu") as model:
        return [tuple(model.encode(prompt)) for prompt in PROMPTS[:count]]


def reference(folder: Path, form: Form, prompts: list[tuple[int, ...]], tokens: int) -> Continuations:
    """What Python on ONNX Runtime writes."""
    return OwnEngine("cpu").continue_greedily(folder, form.manifest, [Task(prompt, tokens) for prompt in prompts])


def compare(form: Form, runtimes: dict[str, Runtime], options: argparse.Namespace) -> Iterator[Record]:
    """Run every runtime over one package."""
    manifest, prompts = form.manifest, prompts_of(form, options.prompts)
    ours, exact = (reference(folder, form, prompts, options.tokens) for folder in (form.folder, form.exact))
    for name, runtime in runtimes.items():
        about: Record = {"package": form.name, "runtime": name, "library": runtime.name, "wanted_tokens": options.tokens}
        begun = time.perf_counter()
        try:
            found, tokens = write(runtime, form.folder, manifest, prompts, tokens=options.tokens, limit_seconds=options.limit)
        except OnnxTextgenError as error:
            record = {"reason": first_line(error)}
        else:
            same, of_exact = equal(found, ours, tokens), equal(found, exact, tokens)
            record = {"prompts": len(found), "tokens": tokens, "same": same, "exact": of_exact, "rounds": not manifest.is_exact}
            if not found:
                record = {"reason": f"too slow for {options.limit} s"}
        yield about | record | {"seconds": round(time.perf_counter() - begun, 1)}


def cell_of(record: Record) -> tuple[Any, ...]:
    """What a result is of."""
    return tuple(record[key] for key in ("package", "runtime", "library", "wanted_tokens"))


def read_log(path: Path) -> list[Record]:
    """The results of earlier runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def forms_of(options: argparse.Namespace) -> list[Form]:
    """The packages that the options name."""
    forms = embedded_forms(options.work)
    for package in options.package:
        forms += given_forms(package, options.work)
    for source in options.source:
        name, _, checkpoint = source.partition("=")
        forms += exported_forms(name, checkpoint, options.work, options.int4.split())
    return [form for form in forms if re.search(options.only, form.name)]


def installed(pattern: str) -> dict[str, Runtime]:
    """The runtimes of this machine whose name the pattern finds; says which are missing."""
    found = {}
    for name, find in COLUMNS.items():
        if re.search(pattern, name):
            try:
                found[name] = find()
            except OnnxTextgenError as error:
                print(f"{name}: {error}", file=sys.stderr)
    return found


def report(records: list[Record], options: argparse.Namespace) -> str:
    """The conditions, the table and the reasons."""
    libraries = dict(sorted({record["runtime"]: record["library"] for record in records}.items()))
    about = f"{options.prompts} prompts, {options.tokens} tokens each, greedy, on {processor()}. "
    about += f"A runtime that was too slow for a cell's time wrote fewer, or {SHORT} tokens of each. "
    about += "; ".join(f"{name}: {library}" for name, library in libraries.items()) + "."
    return f"{about}\n\n{table(records)}\n\n{reasons(records)}".rstrip()


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--package", type=Path, action="append", default=[], help="a model folder")
    parser.add_argument(
        "--source", action="append", default=[], metavar="NAME=CHECKPOINT", help="to export at each precision and target"
    )
    parser.add_argument("--int4", default="", metavar="OPTIONS", help="options of its exports at int4")
    parser.add_argument("--only", default="", help="regular expression; packages whose name it finds")
    parser.add_argument("--runtime", default="", help="regular expression; runtimes whose name it finds")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one cell; a slow runtime writes less")
    parser.add_argument("--write", type=Path, help="a page with the lines <!-- measured: runtimes --> and <!-- end -->")
    options = parser.parse_args()
    options.work = options.work.resolve()
    return options


def main() -> None:
    """Measure, print, write."""
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)
    log, runtimes, forms = options.work / "runtimes.jsonl", installed(options.runtime), forms_of(options)
    known = {cell_of(record) for record in read_log(log)}
    for form in forms:
        missing = {name: each for name, each in runtimes.items() if (form.name, name, each.name, options.tokens) not in known}
        for record in compare(form, missing, options) if missing else ():
            print(json.dumps(record), file=sys.stderr, flush=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    last = {(record["package"], record["runtime"]): record for record in read_log(log)}
    order = list(COLUMNS)
    text = report(sorted(last.values(), key=lambda record: (record["package"], order.index(record["runtime"]))), options)
    print(text)
    if options.write:
        write_page(options.write, text)


if __name__ == "__main__":
    main()
