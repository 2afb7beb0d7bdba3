"""Time to the first token after a long system prompt: computed, reused from memory, and read from a folder after a restart.

    python benchmarks/saved_prefix.py PACKAGE [--prefix-tokens 1000] [--threads 2] [--rounds 9]

Each round has its own prefix and does all three, one after the other, each in a model that was just opened and has computed another
short prompt: a restart without the start of Python. The time to write the file is printed too; no text waits for it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import onnx_textgen
from onnx_textgen import Model

QUESTION = 16


def main() -> None:
    """Print the medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"computed": [], "from memory": [], "from disk": []}
    writing = list[float]()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        for number in range(arguments.rounds):
            folder = Path(place) / str(number)

            def opened(folder: Path = folder) -> Model:
                model = onnx_textgen.load(arguments.package, device="cpu", threads=arguments.threads, prefix_folder=folder)
                model.generate([5] * 8, max_new_tokens=2)  # allocates what the first run of a graph needs
                return model

            with opened() as model:
                prefix = random.integers(0, model.manifest.geometry.vocab_size, arguments.prefix_tokens).tolist()
                times["computed"].append(first_token_seconds(model, prefix, random))
                start = time.perf_counter()
                model.prefixes.close()
                writing.append(time.perf_counter() - start)
                times["from memory"].append(first_token_seconds(model, prefix, random))
            with opened() as model:
                times["from disk"].append(first_token_seconds(model, prefix, random))
            (file,) = folder.glob("*.npz")
            size = file.stat().st_size
            file.unlink()
    shown = ", ".join(f"{name} {1e3 * statistics.median(found):.0f} ms" for name, found in times.items())
    rest = f"{arguments.prefix_tokens} + {QUESTION} tokens, {arguments.threads} threads, {arguments.rounds} rounds"
    print(f"{shown}; writing {1e3 * statistics.median(writing):.0f} ms, {size / 1e6:.0f} MB; {rest}")


def first_token_seconds(model: Model, prefix: list[int], random: np.random.Generator) -> float:
    """Seconds until the first token of a question after the prefix."""
    question = random.integers(0, model.manifest.geometry.vocab_size, QUESTION).tolist()
    stats = model.generate(prefix + question, max_new_tokens=2, temperature=0, ignore_eos=True).stats
    return stats.first_token_seconds or 0.0


if __name__ == "__main__":
    main()
