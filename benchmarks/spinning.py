"""How long the threads of a model should look for work after a run: decoding alone, and in turn with another model.

    python benchmarks/spinning.py PACKAGE OTHER_PACKAGE [--threads 2]

Without a limit ONNX Runtime's threads are still at it when the other model's run begins, and take a core from it. With too short a
one they sleep when the next token is fed. For each limit it prints tokens per second of the first package alone, and the
milliseconds of a step of it that follows a step of the other one. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time

import onnx_textgen
from onnx_textgen.backends import onnxruntime_session as session
from onnx_textgen.inference.decoder import Decoder

LIMITS = {"ONNX Runtime's own": -1} | {f"{limit} us": limit for limit in (0, 100, 200, 400, 600, 800, 1000)}
PROMPT, NEW_TOKENS, TURNS = [5] * 64, 100, 30


def milliseconds(decoder: Decoder) -> float:
    """A step, taken back."""
    start = time.perf_counter()
    decoder.feed([7])
    seconds = time.perf_counter() - start
    decoder.rewind(len(PROMPT))
    return seconds * 1e3


def main() -> None:
    """Print medians over the rounds, which take all limits in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("other_package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    pairs = {}
    for name, limit in LIMITS.items():
        session.SPIN_MICROSECONDS = limit
        folders = (arguments.package, arguments.other_package)
        pairs[name] = [onnx_textgen.load(each, device="cpu", threads=arguments.threads, prefix_cache=0) for each in folders]
    alone: dict[str, list[float]] = {name: [] for name in pairs}
    in_turn: dict[str, list[float]] = {name: [] for name in pairs}
    for seed in range(arguments.rounds):
        for name, (model, other) in pairs.items():
            stats = model.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True, seed=seed).stats
            alone[name].append(stats.decode_tokens_per_second)
            decoders = model.new_context(), other.new_context()
            for decoder in decoders:
                decoder.feed(PROMPT)
            times = [[milliseconds(decoder) for decoder in decoders] for _ in range(TURNS)]
            in_turn[name].append(statistics.median(first for first, _ in times))
            time.sleep(0.02)
    for name in pairs:
        speed, step = statistics.median(alone[name]), statistics.median(in_turn[name])
        print(f"{name:18} alone {speed:7.1f} tokens/s; a step in turn with the other {step:6.2f} ms")


if __name__ == "__main__":
    main()
