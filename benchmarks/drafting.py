"""What guessed tokens are worth: tokens per second with and without.

    python benchmarks/drafting.py PACKAGE [--assistant-model PACKAGE] [--threads 2]

Prompt lookup is measured on text that repeats what came before and on text that does not. The first goes round in a phrase of 24
tokens, as copying, editing and code do; the second draws its tokens from a distribution like that of words (Zipf's), so that
matches come and lead nowhere. An assistant model is measured where it guesses right always, in three places of four, and never.
Text and guesses are imposed on the models, which are run as ever, so that any packages can be measured. Calls with and without
drafts alternate. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

import onnx_textgen
from onnx_textgen.choosing import Chooser
from onnx_textgen.continuation import Continuation

PHRASE, NEW_TOKENS = 24, 192
REAL_CHOICE = Chooser.choose


def impose(text: list[int], agreement: float) -> None:
    """Have every continuation choose the tokens of `text`, and an assistant model guess that share of them."""
    is_right = np.random.default_rng(1).random(len(text)) < agreement

    def guess(self: Chooser, logits: np.ndarray, token_ids: Sequence[int]) -> int:
        REAL_CHOICE(self, logits, token_ids)  # it takes its time
        place = len(token_ids)
        return text[place] if is_right[place] else (text[place] + 1) % len(logits)

    Continuation.choose = lambda self, logits: text[len(self.token_ids)]  # type: ignore[method-assign]
    Chooser.choose = guess  # type: ignore[method-assign, assignment]


def measure(model: onnx_textgen.Model, name: str, prompt: list[int], drafts: dict[str, float], rounds: int) -> None:
    """Print medians of tokens per second and of their ratios."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    accepted = drafted = 0
    for seed in range(rounds):
        for is_drafted, each in sorted(speeds.items(), reverse=seed % 2 == 1):  # each goes first as often as the other
            options = {"max_new_tokens": NEW_TOKENS, "seed": seed, "ignore_eos": True, "num_assistant_tokens": 0}
            if model.assistant is None:
                del options["num_assistant_tokens"]
            stats = model.generate(prompt, **options | (drafts if is_drafted else {})).stats  # type: ignore[arg-type]
            each.append(stats.decode_tokens_per_second)
            accepted, drafted = accepted + stats.accepted_tokens, drafted + stats.drafted_tokens
    ratio = statistics.median(quick / plain for plain, quick in zip(*speeds.values(), strict=True))
    plain, quick = (statistics.median(each) for each in speeds.values())
    print(f"{name:28} {plain:7.1f} tokens/s, with drafts {quick:7.1f}: {ratio:.3f} times; {accepted:,} of {drafted:,} right")


def main() -> None:
    """Measure prompt lookup, and the assistant model where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--assistant-model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--drafts", type=int, default=8, help="tokens guessed at a time, at most")
    arguments = parser.parse_args()
    model = onnx_textgen.load(
        arguments.package,
        device="cpu",
        threads=arguments.threads,
        prefix_cache=0,
        assistant_model=arguments.assistant_model,
    )
    random, vocab_size = np.random.default_rng(0), model.limits.vocab_size
    phrase = random.choice(vocab_size, PHRASE, replace=False).tolist()
    words = (random.zipf(1.3, NEW_TOKENS + 2 * PHRASE) % vocab_size).tolist()
    prompt, text = words[: 2 * PHRASE], words[2 * PHRASE :]
    lookup = {"prompt_lookup_num_tokens": arguments.drafts}
    impose(phrase * NEW_TOKENS, 0)
    measure(model, "lookup, text repeats", phrase * 2, lookup, arguments.rounds)
    impose(text, 0)
    measure(model, "lookup, text does not", prompt, lookup, arguments.rounds)
    if model.assistant is not None:
        # random weights are never sure of anything
        assisted = {"num_assistant_tokens": arguments.drafts, "assistant_confidence_threshold": 1e-300}
        for agreement in (1.0, 0.75, 0.0):
            impose(text, agreement)
            measure(model, f"assistant right in {agreement:.0%}", prompt, assisted, arguments.rounds)


if __name__ == "__main__":
    main()
