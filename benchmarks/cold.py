"""Seconds from the start of a new process to the first token of a package, the embedded default if none is named.

    python benchmarks/cold.py [PACKAGE] [--threads 2]

Prints the median and the extremes; the first process, whose files may not be in memory, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CODE = """
import sys, onnx_textgen
model = onnx_textgen.load(*sys.argv[2:], threads=int(sys.argv[1]))
next(iter(model.stream("Once upon a time", max_new_tokens=4)))
print("there", flush=True)
"""


def seconds(command: list[str]) -> float:
    """Until the process says that it has a token."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return time.perf_counter() - begun


def main() -> None:
    """Start processes one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    package = [arguments.package] if arguments.package else []
    found = [seconds([sys.executable, "-c", CODE, str(arguments.threads), *package]) for _ in range(arguments.rounds + 1)][1:]
    print(f"first token after {statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
