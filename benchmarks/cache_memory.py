"""What it gives that keys and values of all layers lie in one piece of memory, for which Linux has huge pages.

    python benchmarks/cache_memory.py PACKAGE [--length 2048] [--threads 2]

In one process and in turn: each tensor by itself, as NumPy allocates it, and side by side. Prints the median of a step behind a
prompt, and the ratio. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.kv_cache import shared as cache

STEPS = 12


def apart(kinds: list[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
    """As `allocate_contiguous`, but each array by itself."""
    return [np.empty(shape, dtype) for shape, dtype in kinds]


WAYS = {"each by itself": apart, "side by side": cache.allocate_contiguous}


def measure(decoder: Decoder) -> float:
    """Seconds of a step, as the median of some; they are taken back."""
    length, seconds = len(decoder.token_ids[0]), list[float]()
    for _ in range(STEPS):
        begun = time.perf_counter()
        decoder.feed([7])
        seconds.append(time.perf_counter() - begun)
    decoder.rewind(length)
    return statistics.median(seconds[2:])


def main() -> None:
    """Print medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    model = onnx_textgen.load(arguments.package, device="cpu", threads=arguments.threads, prefix_cache=0)
    ids = np.random.default_rng(0).integers(0, model.manifest.geometry.vocab_size, arguments.length).tolist()
    decoders = {}
    for name, allocate in WAYS.items():
        cache.allocate_contiguous, decoders[name] = allocate, model.new_context()
        prefill(decoders[name], ids)
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(arguments.rounds):
        for name in list(WAYS)[:: 1 - 2 * (turn % 2)]:
            time.sleep(0.05)
            found[name].append(measure(decoders[name]))
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, median in medians.items():
        print(f"{name:15} {median * 1e3:7.2f} ms a step, {medians['each by itself'] / median:.3f} times as fast")


if __name__ == "__main__":
    main()
