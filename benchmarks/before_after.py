"""The speed of this version of the runtime compared with another: the same package, short measurements that alternate.

    python benchmarks/before_after.py PACKAGE --before OTHER/bin/python [--threads 2]

OTHER is a virtual environment in which the other version is installed, such as `pip install -e` of a worktree of an earlier commit.
Both versions keep the package open in a process of their own and take turns of about half a second, the first one alternating, so
that the machine's other work reaches both alike. Prints medians in tokens per second, their ratio, and the median of the ratios of
neighbours. A ratio above 1 means that this version is faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CASES = {
    "decode": {128: 24, 512: 16, 2048: 12},
    "prefill": {128: 24, 512: 16, 2048: 8},
    "8 texts": {32: 8},
}
"""By what is measured: prompt tokens, and how often."""
NEW_TOKENS = 48

WORKER = """
import sys, time
import numpy, onnx_textgen
model = onnx_textgen.load(sys.argv[1], device="cpu", threads=int(sys.argv[2]), prefix_cache=0)
vocabulary = model.manifest.geometry.vocab_size
print(model.manifest.geometry.context_length, flush=True)
for line in sys.stdin:
    case, length, seed, new_tokens = line.rsplit(maxsplit=3)
    prompt = lambda number: numpy.random.default_rng(int(seed) + number).integers(vocabulary, size=int(length)).tolist()
    start, count = time.perf_counter(), int(length)
    if case == "prefill":
        model.generate(prompt(0), max_new_tokens=1, temperature=0, ignore_eos=True)
    elif case == "decode":
        chunks = model.stream(prompt(0), max_new_tokens=int(new_tokens) + 1, temperature=0, ignore_eos=True)
        next(chunks)
        start, count = time.perf_counter(), sum(1 for _ in chunks)
    else:
        prompts = [prompt(number) for number in range(8)]
        model.generate(prompts, max_new_tokens=int(new_tokens), temperature=0.8, top_p=0.9, seed=1, ignore_eos=True)
        count = 8 * int(new_tokens)
    print(count / (time.perf_counter() - start), flush=True)
"""
"""Uses only what every version's `Model` has."""


class Version:
    """One installed version, with the package open."""

    def __init__(self, python: str, package: str, threads: int) -> None:
        self.python, command = python, [python, "-c", WORKER, package, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.context_length = int(self.read())

    def read(self) -> str:
        """The process's next line."""
        assert self.process.stdout, "a pipe was asked for"
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"{self.python} ended; its message is above")
        return line

    def measure(self, case: str, length: int, seed: int) -> float:
        """Tokens per second."""
        assert self.process.stdin, "a pipe was asked for"
        self.process.stdin.write(f"{case} {length} {seed} {NEW_TOKENS}\n")
        self.process.stdin.flush()
        speed = float(self.read())
        time.sleep(0.05)  # until its threads have stopped looking for work
        return speed


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--before", required=True, metavar="PYTHON", help="the interpreter of the other version's environment")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    versions = [Version(python, options.package, options.threads) for python in (options.before, sys.executable)]
    for case, lengths in CASES.items():
        for length, rounds in lengths.items():
            if length + NEW_TOKENS >= versions[0].context_length:
                continue
            found: tuple[list[float], list[float]] = ([], [])
            for turn in range(-1, rounds):  # the first does not count
                order = (0, 1) if turn % 2 else (1, 0)
                speeds = {number: versions[number].measure(case, length, turn + 2) for number in order}
                if turn >= 0:
                    found[0].append(speeds[0])
                    found[1].append(speeds[1])
            before, after = map(statistics.median, found)
            pairs = statistics.median(new / old for old, new in zip(*found, strict=True))
            ratios = f"ratio {after / before:.3f}, of neighbours {pairs:.3f}"
            print(f"{case:8} {length:5,}: before {before:7.1f}, after {after:7.1f}; {ratios}", flush=True)


if __name__ == "__main__":
    main()
