"""On paper: how many machines a load needs, and what a million tokens cost on them, from measured speeds and given prices.

python benchmarks/cost.py --prompt 500 --text 200 --cpu-price 0.08 --gpu-price 3

The speeds are those of SmolLM2's shape (135 M parameters, int4): two cores from docs/performance.md, the H100 from docs/engines.md
(there the faster loop, onnxruntime-genai's). A machine is used up to `--load`, so that a request seldom waits and one may fail.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

DEMANDS = (0.1, 1, 10, 100, 1000)
"""Requests a second."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine does by itself."""

    name: str
    prefill: float
    """Tokens of prompts a second."""
    decode: float
    """Tokens a second of all texts together."""

    def requests(self, prompt: int, text: int) -> float:
        """Requests a second of so many tokens, if it does nothing else."""
        return 1 / (prompt / self.prefill + text / self.decode)


CPU = Machine("2 cores of a Xeon", 1372, 553)
GPU = Machine("H100", 73_500, 8_466)


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=500, help="tokens of a prompt that no cache has")
    parser.add_argument("--text", type=int, default=200, help="tokens of its answer")
    parser.add_argument("--cpu-price", type=float, default=0.08, help="of an hour of two cores")
    parser.add_argument("--gpu-price", type=float, default=3.0, help="of an hour of the GPU's machine")
    parser.add_argument("--load", type=float, default=0.6, help="share of its time in which a machine works")
    given = parser.parse_args()
    prices = {CPU: given.cpu_price, GPU: given.gpu_price}
    for machine, price in prices.items():
        most = machine.requests(given.prompt, given.text)
        tokens = most * given.text
        full = price / (3600 * tokens) * 1e6
        print(f"{machine.name}: {most:.2f} requests a second, {tokens:,.0f} tokens of answers; {full:.3f} a million when full")
    print("\n| requests a second | " + " | ".join(f"{each.name}: machines | a million tokens" for each in prices) + " |")
    print("|---:|" + "---:|---:|" * len(prices))
    for demand in DEMANDS:
        cells = []
        for machine, price in prices.items():
            count = max(1, math.ceil(demand / (given.load * machine.requests(given.prompt, given.text))))
            cells.append(f"{count:,} | {count * price / (3600 * demand * given.text) * 1e6:.2f}")
        print(f"| {demand:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
