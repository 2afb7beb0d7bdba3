"""Measure prompt lookup on what it is for: tokens per second with and without, verified exactly and fast.

    python benchmarks/drafting.py PACKAGE [--threads 2] [--rounds 5]

A chat model edits a text, summarises it with quotes, answers over it, and changes code. Calls without drafts and with either
`draft_verification` alternate. Prints medians of the ratios, and how many texts came out otherwise. The machine should do nothing
else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics

import onnx_textgen

NEW_TOKENS, DRAFTED = 192, 8
WAYS: dict[str, dict[str, object]] = {
    "plain": {},
    "exact": {"prompt_lookup_num_tokens": DRAFTED, "draft_verification": "exact"},
    "fast": {"prompt_lookup_num_tokens": DRAFTED, "draft_verification": "fast"},
}
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


def measure(model: onnx_textgen.Model, name: str, prompt: list[int], rounds: int) -> None:
    """Print medians of tokens per second and of their ratios."""
    found: dict[str, list[onnx_textgen.Generation]] = {way: [] for way in WAYS}
    for number in range(rounds):
        turn = number % len(WAYS)
        for way in [*WAYS][turn:] + [*WAYS][:turn]:  # each goes first as often as the others
            found[way].append(model.generate(prompt, max_new_tokens=NEW_TOKENS, temperature=0, **WAYS[way]))  # type: ignore[arg-type]
    speeds = {way: [each.stats.decode_tokens_per_second for each in texts] for way, texts in found.items()}
    line = f"{name:28} {statistics.median(speeds['plain']):7.1f} tokens/s"
    for way in ("exact", "fast"):
        ratio = statistics.median(quick / plain for plain, quick in zip(speeds["plain"], speeds[way], strict=True))
        right, made = (sum(getattr(each.stats, f"{kind}_tokens") for each in found[way]) for kind in ("accepted", "drafted"))
        other = sum(a.token_ids != b.token_ids for a, b in zip(found["plain"], found[way], strict=True))
        line += f"; {way}: {ratio:.2f} times, {right:,} of {made:,} right, {other} of {rounds} texts otherwise"
    print(line, flush=True)


def main() -> None:
    """Measure each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = onnx_textgen.load(arguments.package, device="cpu", threads=arguments.threads, prefix_cache=0)
    for name, task in TASKS.items():
        measure(model, name, model.encode_chat([{"role": "user", "content": task}]), arguments.rounds)


if __name__ == "__main__":
    main()
