"""onnx-textgen beside what one would use instead, in one run.

    python benchmarks/compare --work DIR                                   # all shapes, precisions and peers: hours
    python benchmarks/compare --work DIR --quick                           # the README's figures at int4: a minute
    python benchmarks/compare --work DIR --shape llama-135m --precision int4
    python benchmarks/compare --work DIR --peer "onnx-textgen|llama"       # those whose name the expression finds
    python benchmarks/compare --work DIR --shape llama-135m --only-report --write    # its tables into docs/performance.md

`--quick` compares with onnxruntime-genai and llama.cpp, with prompts up to 512 tokens. Its first run takes far longer: it compiles
llama.cpp. DIR keeps environments, checkpoints, converted models and every measurement (results.jsonl), some 30 GB for all. Needs
the `dev` extra. Peers run one after the other, in turn, each in a process of its own; the machine should do nothing else
meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from compileall import compile_dir
from pathlib import Path

THREADS = 2
ROUNDS = {128: 10, 512: 8, 2048: 3, 8192: 1}
"""Rounds by tokens of the prompt."""
QUICK_PEERS = "^(onnx-textgen|onnx-textgen, hybrid|onnxruntime-genai, best build|llama.cpp)$"


def run(options: argparse.Namespace) -> None:
    """Prepare what is missing, measure, and append to the results."""
    log = Log(options.work / "results.jsonl")
    peers = [peer for peer in all_peers() if peer.precision in options.precision and re.search(options.peer, peer.name)]
    environments = environments_of(peers)
    for name in environments:
        make_environment(options.work, name)
    compile_dir(ROOT / "runtime", quiet=2)  # as pip compiles the others: else each start would, where the shell forbids to keep it
    rates = {"read": read_rate(THREADS), "multiply": multiply_rate()}
    log.write("machine", rates | {"cores": os.cpu_count(), "processor": processor()})
    for shape in options.shape:
        checkpoint = options.work / "checkpoints" / shape
        if not checkpoint.exists():
            make_checkpoint(checkpoint, SHAPES[shape])
        for precision in [each for each in options.precision if each != "bf16"]:
            kinds = {precision, "bf16"} if precision == "fp32" else {precision}
            chosen = [peer for peer in peers if peer.precision in kinds]
            run_side_by_side(options, log, shape, convert_all(options.work, log, chosen, checkpoint))


def convert_all(work: Path, log: Log, peers: list[Peer], checkpoint: Path) -> dict[Peer, Path]:
    """Each peer's model of a checkpoint, but for those whose converter fails."""
    models = {}
    for peer in peers:
        try:
            models[peer] = convert(work, peer, checkpoint)
        except subprocess.CalledProcessError as error:
            log.write("failure", about(peer, checkpoint.name) | {"error": f"could not be converted: exit code {error.returncode}"})
    return models


def about(peer: Peer, shape: str) -> dict[str, object]:
    """What a record says of whom it is about."""
    return {"shape": shape, "peer": peer.name, "precision": peer.precision}


def run_side_by_side(options: argparse.Namespace, log: Log, shape: str, models: dict[Peer, Path]) -> None:
    """Cold starts in turn, then rounds."""
    vocab_size = SHAPES[shape].sizes["vocab_size"]
    for _ in range(options.cold):
        for peer, model in models.items():
            try:
                log.write("cold", about(peer, shape) | cold_start(options.work, peer, model, THREADS, vocab_size))
            except PeerError as error:
                log.write("failure", about(peer, shape) | {"error": str(error)})
    contexts = {length: min(options.rounds, rounds) for length, rounds in ROUNDS.items() if length <= options.longest}
    sizes = {"threads": THREADS, "vocab_size": vocab_size, "length": max(contexts) + 64}
    for found in measure(options.work, models, contexts=contexts, **sizes):
        log.write("failure" if "error" in found else "round", {"shape": shape, **found})


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--precision", action="append", choices=["int4", "int8", "fp32", "bf16"])
    parser.add_argument("--peer", default="", help="regular expression")
    parser.add_argument("--rounds", type=int, default=10, help="at most")
    parser.add_argument("--longest", type=int, default=8192, help="longest prompt")
    parser.add_argument("--cold", type=int, default=3, help="cold starts of each peer")
    parser.add_argument("--only-report", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables of these shapes into docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="one shape at int4, two peers, three rounds")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.precision = ["llama-135m"], ["int4"]
        options.peer = options.peer or QUICK_PEERS
        options.rounds, options.longest, options.cold = 3, 512, 1
    options.shape = options.shape or list(SHAPES)
    options.precision = options.precision or ["int4", "int8", "fp32", "bf16"]
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.only_report:
        run(options)
    report(options.work / "results.jsonl", options.shape, options.precision, write=options.write)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))  # before NumPy is imported
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from log import Log
    from machine import multiply_rate, processor, read_rate
    from models import SHAPES, make_checkpoint
    from peers import ROOT, Peer, all_peers, convert, environments_of, make_environment
    from report import report
    from rounds import PeerError, cold_start, measure

    main()
