"""What prompt lookup is worth: tokens per second with and without, on text that repeats what came before and on text that does not.

    python benchmarks/drafting.py PACKAGE [--threads 2]

The first kind goes round in a phrase of 24 tokens, as copying, editing and code do; the second draws its tokens from a distribution
like that of words (Zipf's), so that matches come and lead nowhere. Both are imposed on the model, which is run as ever, so that any
package can be measured. Calls with and without drafts alternate. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

import onnx_textgen
from onnx_textgen.continuation import Continuation

PHRASE, NEW_TOKENS = 24, 192


def impose(text: list[int]) -> None:
    """Have every continuation choose the tokens of `text`, whatever the logits are."""
    Continuation.choose = lambda self, logits: text[len(self.token_ids)]  # type: ignore[method-assign]


def main() -> None:
    """Print medians of tokens per second and of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--drafts", type=int, default=8, help="prompt_lookup_num_tokens")
    arguments = parser.parse_args()
    model = onnx_textgen.load(arguments.package, device="cpu", threads=arguments.threads, prefix_cache=0)
    random, vocab_size = np.random.default_rng(0), model.manifest.geometry.vocab_size
    phrase = random.choice(vocab_size, PHRASE, replace=False).tolist()
    words = (random.zipf(1.3, NEW_TOKENS + 2 * PHRASE) % vocab_size).tolist()
    for name, prompt, text in (
        ("repeats", phrase * 2, phrase * NEW_TOKENS),
        ("does not", words[: 2 * PHRASE], words[2 * PHRASE :]),
    ):
        impose(text)
        speeds: dict[int, list[float]] = {0: [], arguments.drafts: []}
        accepted = drafted = 0
        for seed in range(arguments.rounds):
            for drafts, each in sorted(speeds.items(), reverse=seed % 2 == 1):  # each goes first as often as the other
                options = {"max_new_tokens": NEW_TOKENS, "seed": seed, "ignore_eos": True}
                stats = model.generate(prompt, prompt_lookup_num_tokens=drafts, **options).stats  # type: ignore[arg-type]
                each.append(stats.decode_tokens_per_second)
                accepted, drafted = accepted + stats.accepted_tokens, drafted + stats.drafted_tokens
        ratio = statistics.median(b / a for a, b in zip(*speeds.values(), strict=True))
        plain, quick = (statistics.median(each) for each in speeds.values())
        print(f"{name:9} {plain:7.1f} tokens/s, with drafts {quick:7.1f}: {ratio:.3f} times; {accepted:,} of {drafted:,} right")


if __name__ == "__main__":
    main()
