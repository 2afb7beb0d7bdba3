"""What the loop does between two runs of the graph, while one text is streamed: microseconds, by part.

    python benchmarks/between_runs.py PACKAGE [--threads 2]

Medians over the steps of some texts behind prompts of 128 random tokens. The clock's own marks are in the figures, a few of them
microseconds. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import onnx_textgen
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.inference.decoder import Decoder

TEXTS, PROMPT, NEW_TOKENS, WARM = 12, 128, 32, 4
PARTS = {
    ("run ends", "choice begins"): "the run's end: lengths, whose turn it is",
    ("choice begins", "choice ends"): "the choice",
    ("choice ends", "text ends"): "the token's text, stop strings, reasons to end",
    ("text ends", "step begins"): "handing the chunk over, and being asked for the next",
    ("step begins", "run begins"): "the next step's mask, token and binding",
}

Marks = list[tuple[str, float]]


def marked(marks: Marks, action: Callable[..., Any], begins: str = "", ends: str = "") -> Callable[..., Any]:
    """The same action, that leaves marks with the time."""

    @functools.wraps(action)
    def act(*given: object, **named: object) -> object:
        if begins:
            marks.append((begins, time.perf_counter()))
        found = action(*given, **named)
        if ends:
            marks.append((ends, time.perf_counter()))
        return found

    return act


def main() -> None:
    """Print the whole, and its parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = onnx_textgen.load(options.package, device="cpu", threads=options.threads, prefix_cache=0)
    marks: Marks = []
    ort = type(model.graph.ort)  # type: ignore[attr-defined]
    ort.run_with_iobinding = marked(marks, ort.run_with_iobinding, "run begins", "run ends")
    Continuation.choose = marked(marks, Continuation.choose, "choice begins", "choice ends")  # type: ignore[method-assign]
    Continuation.accept = marked(marks, Continuation.accept, ends="text ends")  # type: ignore[method-assign]
    Decoder.feed = marked(marks, Decoder.feed, begins="step begins")  # type: ignore[method-assign]
    steps: dict[tuple[str, str], list[float]] = {part: [] for part in PARTS}
    runs = []
    for seed in range(TEXTS):
        marks.clear()
        draw = random.Random(seed)
        prompt = [draw.randrange(model.manifest.geometry.vocab_size) for _ in range(PROMPT)]
        for _ in model.stream(prompt, max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, loop_guard="off"):
            pass
        for (first, begun), (second, ended) in itertools.pairwise(marks[WARM * (len(PARTS) + 1) :]):
            (runs if second == "run ends" else steps[first, second]).append(ended - begun)
    for part, name in PARTS.items():
        print(f"{1e6 * statistics.median(steps[part]):6.0f} us  {name}")
    between = sum(statistics.median(each) for each in steps.values())
    run = statistics.median(runs)
    print(f"{1e6 * between:6.0f} us  between two runs of {1e3 * run:.2f} ms: {between / (between + run):.1%} of a step")


if __name__ == "__main__":
    main()
