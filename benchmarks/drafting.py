"""What guessed tokens are worth: tokens per second with and without, checked exactly and fast (`draft_verification`).

    python benchmarks/drafting.py PACKAGE [--assistant-model PACKAGE] [--threads 2]

Prompt lookup is measured on text that repeats what came before and on text that does not. The first goes round in a phrase of 24
tokens, as copying, editing and code do; the second draws its tokens from a distribution like that of words (Zipf's), so that
matches come and lead nowhere. An assistant model, or the package's draft head, is measured where it guesses right always, in 88
and in 75 places of a hundred, and never. Text and guesses are imposed on the models, which are run as ever, so that any packages
can be measured. Calls without drafts and with either way of checking them alternate. The machine should do nothing else meanwhile.

With `--tasks` prompt lookup is measured on what it is for, by a model that has a chat template and chooses for itself: a text is
edited, summarised with quotes and asked about, code is changed. What is printed then says also which texts came out otherwise.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

import onnx_textgen
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.sampling.sampler import Chooser

PHRASE, NEW_TOKENS = 24, 192
REAL_CHOICE = Chooser.choose
PASSAGE = (
    "The lighthouse on Skerry Rock was built in 1843 by the engineer Alan Marsh. It stands 31 metres high and its lamp can be "
    "seen for 24 nautical miles. Until 1971 three keepers lived there, relieved every four weeks by boat when the weather "
    "allowed it. In the winter of 1902 a storm kept the boat away for nine weeks, and the keepers lived on biscuits and fish. "
    "Since 1971 the lamp has been automatic, and the rooms of the keepers are a small museum that is open from May to September."
)
SUM = """def {0}(items):
    result = 0
    for item in items:
        result = result + item.{1} * item.count
    return result
"""
TASKS = {
    "editing": f"Repeat this text word for word, but change the name of the engineer to John Reed:\n\n{PASSAGE}",
    "summarising with quotes": f"Summarise this text and quote its most important sentences word for word:\n\n{PASSAGE}",
    "changing code": f"Rename the variable `result` to `total` and give the whole code:\n\n{SUM.format('total_price', 'price')}\n"
    f"{SUM.format('total_weight', 'weight')}",
    "answering over a passage": f"{PASSAGE}\n\nHow long was the boat away in 1902, and what did the keepers eat? Quote the text.",
}


def impose(text: list[int], agreement: float) -> None:
    """Have every continuation choose the tokens of `text`, and an assistant model guess that share of them."""
    is_right = np.random.default_rng(1).random(len(text)) < agreement

    def guess(self: Chooser, logits: np.ndarray, token_ids: Sequence[int]) -> int:
        REAL_CHOICE(self, logits, token_ids)  # it takes its time
        place = len(token_ids)
        return text[place] if is_right[place] else (text[place] + 1) % len(logits)

    Continuation.choose = lambda self, logits: text[len(self.token_ids)]  # type: ignore[method-assign]
    Chooser.choose = guess  # type: ignore[method-assign, assignment]


def measure(model: onnx_textgen.Model, name: str, prompt: list[int], drafts: dict[str, float], rounds: int, **options: int) -> None:
    """Print medians of tokens per second and of their ratios."""
    ways = {"plain": {}, **({way: drafts | {"draft_verification": way} for way in ("exact", "fast")})}
    off = {} if model.generator.assistant is None else {"num_assistant_tokens": 0}
    found: dict[str, list[onnx_textgen.Generation]] = {way: [] for way in ways}
    for seed in range(rounds):
        turn = seed % len(ways)
        for way in [*ways][turn:] + [*ways][:turn]:  # each goes first as often as the others
            given = {"max_new_tokens": NEW_TOKENS, "seed": seed, **off, **ways[way], **options}
            found[way].append(model.generate(prompt, **given))  # type: ignore[arg-type]
    speeds = {way: [each.stats.decode_tokens_per_second for each in texts] for way, texts in found.items()}
    line = f"{name:28} {statistics.median(speeds['plain']):7.1f} tokens/s"
    for way in ("exact", "fast"):
        ratio = statistics.median(quick / plain for plain, quick in zip(speeds["plain"], speeds[way], strict=True))
        right, made = (sum(getattr(each.stats, f"{kind}_tokens") for each in found[way]) for kind in ("accepted", "drafted"))
        other = sum(a.token_ids != b.token_ids for a, b in zip(found["plain"], found[way], strict=True))
        line += f"; {way} {statistics.median(speeds[way]):7.1f}: {ratio:.2f} times, {right:,} of {made:,} right"
        line += f", {other} of {rounds} texts otherwise" if other else ""
    print(line, flush=True)


def main() -> None:
    """Measure prompt lookup, and the assistant model or the draft head where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--assistant-model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--drafts", type=int, default=8, help="tokens guessed at a time, at most")
    parser.add_argument("--tasks", action="store_true", help="real tasks for a chat model, in the place of imposed texts")
    arguments = parser.parse_args()
    model = onnx_textgen.load(
        arguments.package,
        device="cpu",
        threads=arguments.threads,
        prefix_cache=0,
        assistant_model=arguments.assistant_model,
    )
    lookup = {"prompt_lookup_num_tokens": arguments.drafts}
    if model.generator.verification.verifier() is None:
        print("nothing here checks guesses exactly, so none are made that way")
    if arguments.tasks:
        for name, task in TASKS.items():
            ids = model.encode_chat([{"role": "user", "content": task}])
            measure(model, name, ids, lookup, arguments.rounds, temperature=0)
        return
    random = np.random.default_rng(0)
    ids = np.setdiff1d(np.arange(model.encoder.vocab_size), model.manifest.eos_ids)  # of which none ends a text
    phrase = random.choice(ids, PHRASE, replace=False).tolist()
    words = ids[random.zipf(1.3, NEW_TOKENS + 2 * PHRASE) % len(ids)].tolist()
    prompt, text = words[: 2 * PHRASE], words[2 * PHRASE :]
    impose(phrase * NEW_TOKENS, 0)
    measure(model, "lookup, text repeats", phrase * 2, lookup, arguments.rounds)
    impose(text, 0)
    measure(model, "lookup, text does not", prompt, lookup, arguments.rounds)
    if model.generator.assistant is not None:
        # random weights are never sure of anything
        assisted = {"num_assistant_tokens": arguments.drafts, "assistant_confidence_threshold": 1e-300}
        who = "draft head" if model.generator.assistant.is_head else "assistant"
        for agreement in (1.0, 0.88, 0.75, 0.0):
            impose(text, agreement)
            measure(model, f"{who} right in {agreement:.0%}", prompt, assisted, arguments.rounds)


if __name__ == "__main__":
    main()
