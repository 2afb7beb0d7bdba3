"""One package on ONNX Runtime, on OpenVINO and on both: prefill, decode over a short and a long text, loading, memory.

    python benchmarks/engines.py PACKAGE [--threads 2] [--rounds 7] [--devices cpu openvino hybrid]

Each engine has a process of its own, so that its peak memory is its own, and they are measured in turns. Rates are those of the
best round; the ratio to the first engine is the median of the rounds, which others at work on the machine disturb less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import onnx_textgen
from onnx_textgen.diagnostics.benchmark import peak_memory_mib
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.reading import read_manifest

PROMPTS, STEPS = (128, 512, 2048), 16
TEXTS = (128, 2048)
"""Tokens that decoding goes on from, the longer one cut to what the context leaves room for."""


def serve(connection: Connection, package: str, device: str, threads: int) -> None:
    """Load the package, then answer each `(prompt, steps)` with the seconds that feeding the prompt took, and each step."""
    start = time.perf_counter()
    model = onnx_textgen.load(package, device=device, threads=threads)
    connection.send(time.perf_counter() - start)
    geometry, context = model.manifest.geometry, model.new_context()
    ids = np.random.default_rng(0).integers(geometry.vocab_size, size=geometry.context_length).tolist()
    while (asked := connection.recv()) is not None:
        prompt, steps = asked
        context.rewind(0)
        start = time.perf_counter()
        prefill(context, ids[:prompt])
        fed = time.perf_counter()
        for _ in range(steps):
            context.feed([ids[0]])
        connection.send((fed - start, (time.perf_counter() - fed) / max(steps, 1)))
    connection.send(peak_memory_mib() or 0.0)


def main() -> None:
    """Print a line per engine and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--devices", nargs="+", default=["cpu", "openvino", "hybrid"])
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    context_length = read_manifest(Path(arguments.package)).geometry.context_length
    engines, loads = {}, {}
    for device in arguments.devices:
        here, there = spawn.Pipe()
        spawn.Process(target=serve, args=(there, arguments.package, device, arguments.threads), daemon=True).start()
        engines[device], loads[device] = here, here.recv()
    for length, is_prefill in [*((each, True) for each in PROMPTS), *((each, False) for each in TEXTS)]:
        length = min(length, context_length - STEPS)  # noqa: PLW2901 - as much as there is room for
        seconds: dict[str, list[float]] = {device: [] for device in engines}
        for number in range(arguments.rounds + 1):
            for device, connection in engines.items():
                connection.send((length, 0 if is_prefill else STEPS))
                prefill, step = connection.recv()
                if number:  # the first round makes room
                    seconds[device].append(prefill / length if is_prefill else step)
        first = seconds[arguments.devices[0]]
        for device, found in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(first, found, strict=True))
            what = f"prefill of {length}" if is_prefill else f"decode at {length}"
            print(f"{what:17} {device:14} {1 / min(found):8.1f} tok/s   {ratio:5.2f} times the first")
    for device, connection in engines.items():
        connection.send(None)
        print(f"{'load and memory':17} {device:14} {loads[device]:8.2f} s {connection.recv():10.0f} MiB at most")


if __name__ == "__main__":
    main()
