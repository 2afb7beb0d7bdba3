"""Quality per byte of quantised forms, beside the peers: same weights, same text, same tokens for everyone.

    python benchmarks/quality TEXTS CHECKPOINT --work DIR                              # all forms: an hour at 135 M parameters
    python benchmarks/quality TEXTS CHECKPOINT --work DIR --peer llama --rounds 0      # those that the expression finds, no speed
    python benchmarks/quality TEXTS CHECKPOINT --work DIR --peer onnx-textgen --anew   # convert once more: the exporter has changed
    python benchmarks/quality TEXTS CHECKPOINT CHECKPOINT --work DIR --peer none --write docs/quality.md   # one table for both

TEXTS is a file, or a folder of files, each a kind of text with its own column (`benchmarks/quality/kinds.py` makes one).
Each peer's converter makes its model from the checkpoint folder; a worker process then loads it and gives the logits of every
position, which are compared with the float32 checkpoint's. DIR keeps environments, models and every measurement (quality.jsonl);
the table and the plot show the last one of each form, of this run or an earlier one on the same texts. Needs the `dev` extra.
The engines, environments and workers are those of benchmarks/compare. `--environment transformers=PATH` lets a virtual environment
that is there already serve, in place of a new one, in this run and later ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "compare"))
from log import Log  # noqa: E402 - benchmarks/compare is no package
from machine import processor  # noqa: E402
from making import Maker, RefusedError, size_of  # noqa: E402
from measuring import Bench  # noqa: E402
from page import conditions, key_of, quality_table, versions, write_page  # noqa: E402
from peers import ENVIRONMENTS, ROOT, Peer, environments_of, make_environment, use_environment  # noqa: E402
from plot import write_plot  # noqa: E402
from report import last_run  # noqa: E402
from texts import read_kinds, read_windows  # noqa: E402
from variants import REFERENCE, SOURCES, all_variants  # noqa: E402

Record = dict[str, Any]
CALIBRATION = ROOT / "export" / "onnx_textgen_export" / "texts" / "calibration.txt"
CALIBRATION_WINDOW = 512


def settings(options: argparse.Namespace) -> Record:
    """What a measurement depends on, the form and the model apart: they stand in one table where all of this is the same."""
    names = ("texts", "calibration", "tokens", "window", "threads")
    return {name: value if isinstance(value := getattr(options, name), int) else str(value) for name in names}


def run(options: argparse.Namespace, checkpoint: Path, log: Log) -> None:
    """Convert a checkpoint and measure, and append to the log."""
    peers = [peer for peer in variants_of(checkpoint) if re.search(options.peer, f"{peer.name} {peer.precision}")]
    sources = [source for word, source in SOURCES.items() if any(word in line for peer in peers for line in peer.convert)]
    if not peers:
        return
    for name in environments_of([REFERENCE, *peers, *sources]):
        make_environment(options.work, name)
    kinds = read_kinds(options.texts, checkpoint, window=options.window, tokens=options.tokens)
    bench, maker, models = Bench(options.work, kinds, options.threads), make_maker(options, checkpoint), {}
    about = settings(options) | {"checkpoint": str(checkpoint)}
    bench.write_logits(REFERENCE, checkpoint, bench.reference)
    for peer in peers:
        print(f"{peer.name} {peer.precision} ...", file=sys.stderr, flush=True)
        found = {"peer": peer.name, "precision": peer.precision}
        try:
            models[peer] = maker.make(peer, anew=options.anew)
            found |= bench.divergence(peer, models[peer])
            found |= dataclasses.asdict(size_of(options.work, peer, models[peer])) | maker.cost(peer)
        except RefusedError as error:
            models.pop(peer, None)
            found["reason"] = str(error)
        log.write("outcome", about | found)
    for record in bench.speeds(models, options.rounds if models else 0):
        log.write("failure" if "error" in record else "round", record | about)  # the tokens it wrote are left out


def variants_of(checkpoint: Path) -> list[Peer]:
    """Every form of a checkpoint."""
    config = json.loads((checkpoint / "config.json").read_text())
    return all_variants(config.get("hidden_size") or config["n_embd"])


def make_maker(options: argparse.Namespace, checkpoint: Path) -> Maker:
    """The converter of a checkpoint, its calibration windows written to a file."""
    windows = read_windows(options.calibration, checkpoint, window=CALIBRATION_WINDOW)
    tokens = options.work / f"calibration-{checkpoint.name}.json"
    tokens.write_text(json.dumps(windows))
    return Maker(options.work, checkpoint, tokens)


def results(options: argparse.Namespace, checkpoint: Path, log: Log) -> tuple[list[Record], list[Record]]:
    """The last outcome of each form and its last rounds, of this run or an earlier one with the same settings."""
    here = (settings(options) | {"checkpoint": str(checkpoint)}).items()
    known = {(peer.name, peer.precision) for peer in variants_of(checkpoint)}
    records = [json.loads(line) for line in log.path.read_text().splitlines()] if log.path.exists() else []
    records = [each for each in records if key_of(each) in known and all(each.get(name) == value for name, value in here)]
    outcomes = {key_of(each): each for each in records if each["kind"] == "outcome"}
    rounds = [each for each in records if each["kind"] == "round"]
    last = [last_run([each for each in rounds if key_of(each) == key]) for key in outcomes]
    return list(outcomes.values()), [each for some in last for each in some]


def report(options: argparse.Namespace, log: Log) -> None:
    """Print the table; write and draw what was asked for."""
    found = {checkpoint.name: results(options, checkpoint, log) for checkpoint in options.checkpoints}
    models = " ".join(found)
    command = (
        f"python benchmarks/quality {options.texts.name} {models} --work DIR --tokens {options.tokens} "
        f"--window {options.window} --threads {options.threads} --rounds {options.rounds}"
    )
    about = conditions(command, settings(options), processor(), versions(options.work))
    text = f"{about}\n\n{quality_table(found)}"
    print(text)
    if options.write:
        write_page(options.write, models, text)
    for number, (model, (outcomes, _)) in enumerate(found.items()):
        if number < len(options.plot):
            write_plot(options.plot[number], [each for each in outcomes if "kl" in each], model)


def environment(text: str) -> tuple[str, Path]:
    """`NAME=PATH` of an option."""
    name, _, path = text.partition("=")
    if name not in ENVIRONMENTS or not Path(path, "bin", "python").exists():
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(ENVIRONMENTS)}, =, and a virtual environment; found {text}")
    return name, Path(path)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="a text, or a folder with one for each kind")
    parser.add_argument("checkpoints", type=Path, nargs="+", help="Hugging Face folders with safetensors and tokenizer.json")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of each text")
    parser.add_argument("--window", type=int, default=512, help="tokens fed at a time")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION, help="a text, another one, for converters that read data")
    parser.add_argument("--peer", default="", help="regular expression; those whose name and form it finds are measured")
    parser.add_argument("--anew", action="store_true", help="convert once more what an earlier run has converted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of the speed; 0 leaves it out")
    parser.add_argument("--environment", type=environment, action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--write", type=Path, help="a page with the lines <!-- measured: CHECKPOINTS' NAMES --> and <!-- end -->")
    parser.add_argument("--plot", type=Path, nargs="*", default=[], help="a picture of each checkpoint to draw, .svg or .png")
    options = parser.parse_args()
    for name in ("work", "texts", "calibration"):
        setattr(options, name, getattr(options, name).resolve())
    options.checkpoints = [checkpoint.resolve() for checkpoint in options.checkpoints]
    return options


def main() -> None:
    """Read the options, run, print."""
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)
    for name, folder in options.environment:
        use_environment(options.work, name, folder)
    log = Log(options.work / "quality.jsonl")
    for checkpoint in options.checkpoints:
        run(options, checkpoint, log)
    report(options, log)


if __name__ == "__main__":
    main()
