"""Time to the first token of a second question over a long prefix that an earlier one had too, beside the first one's.

    python benchmarks/export.py --shape llama-135m --work DIR && onnx-textgen export DIR/llama-135m --out PACKAGE --precision int4
    python benchmarks/prefix.py PACKAGE [--prefix-tokens 2000] [--threads 2]

Each round has a prefix of its own; the model keeps nothing else.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

import onnx_textgen

QUESTION = 16


def main() -> None:
    """Print medians over the rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--prefix-tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = onnx_textgen.load(arguments.package, device="cpu", threads=arguments.threads)
    random, vocab_size = np.random.default_rng(0), model.manifest.geometry.vocab_size
    times: dict[str, list[float]] = {"first": [], "second": []}
    for _ in range(arguments.rounds):
        prefix = random.integers(0, vocab_size, arguments.prefix_tokens).tolist()
        for each in times.values():
            question = random.integers(0, vocab_size, QUESTION).tolist()
            stats = model.generate(prefix + question, max_new_tokens=2, temperature=0, ignore_eos=True).stats
            each.append(stats.first_token_seconds or 0.0)
        model.prefixes.clear()
    first, second = (statistics.median(each) for each in times.values())
    print(
        f"first {first * 1e3:.0f} ms, second {second * 1e3:.0f} ms ({second / first:.1%}); "
        f"{arguments.prefix_tokens} + {QUESTION} tokens, {arguments.threads} threads, {arguments.rounds} rounds"
    )


if __name__ == "__main__":
    main()
