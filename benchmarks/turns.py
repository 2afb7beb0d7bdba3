"""A conversation as an agent sends it: a long system prompt, then turns that repeat all before them.

    python benchmarks/turns.py PACKAGE [--system 12000] [--turns 30] [--new 150] [--answer 60] [--device cpu] [--threads 2]

Each turn sends the whole chat, as the clients of a server do. Two models answer the same messages in turn: one with what is kept
by default, the other with `exact_history=True`, which computes answers again when they return in a prompt. Prints, from the second
turn on, the share of the prompt that came from the cache; the time of the first token, and its ratio to that of the new tokens, in
an empty context and behind an equal history that was read as a prompt; and in how many turns the answers are the same. The text is
this repository's documentation. Medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_textgen
from onnx_textgen import Generation, Model, Session
from onnx_textgen.text.prefixes import common_prefix

DOCS = Path(__file__).resolve().parent.parent / "docs"


def documentation(model: Model) -> Iterator[int]:
    """Token ids of all pages, one after the other, again and again."""
    pages = [model.tokenizer.encode(page.read_text(encoding="utf-8")) for page in sorted(DOCS.glob("*.md"))]
    return itertools.cycle(itertools.chain.from_iterable(pages))


def text_of(model: Model, ids: Iterator[int], count: int) -> str:
    """The next `count` tokens as text."""
    return model.tokenizer.decode(list(itertools.islice(ids, count)))


def alone(model: Model, prompt: list[int], found: Generation) -> float:
    """Seconds until the first token of a turn's new tokens, in an empty context."""
    new = prompt[found.stats.reused_tokens :]
    return model.generate(new, max_new_tokens=1, seed=1).stats.first_token_seconds


def behind(session: Session, prompt: list[int], found: Generation) -> float:
    """The same behind the tokens before them, which a session has read as a prompt."""
    for end in (found.stats.reused_tokens, len(prompt)):
        session.rewind(common_prefix(session.token_ids, prompt[:end]))
        session.append(prompt[len(session) : end])
        seconds = session.generate(max_new_tokens=1, seed=1).stats.first_token_seconds
    return seconds


def main() -> None:
    """Read the options, talk, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="smollm2")
    for name, default in (("system", 12000), ("turns", 30), ("new", 150), ("answer", 60), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    how: dict[str, Any] = {"device": options.device, "threads": options.threads}
    models = {name: onnx_textgen.load(options.package, exact_history=name == "exact", **how) for name in ("default", "exact")}
    reader = onnx_textgen.load(options.package, prefix_cache=0, **how)
    words, history = documentation(reader), reader.session()
    messages = [{"role": "system", "content": text_of(reader, words, options.system)}]
    rows, same = {name: list[tuple[float, ...]]() for name in models}, 0
    for turn in range(options.turns):
        messages.append({"role": "user", "content": text_of(reader, words, options.new)})
        prompt, answers = reader.encode_chat(messages), list[str]()
        for name, model in models.items():
            found = model.generate(prompt, max_new_tokens=options.answer, temperature=0.7, seed=turn)
            answers.append(found.text)
            if turn:
                first, reused = found.stats.first_token_seconds, found.stats.reused_tokens
                ratios = (first / alone(reader, prompt, found), first / behind(history, prompt, found)) if name == "default" else ()
                rows[name].append((reused / len(prompt), first, *ratios))
        same += answers[0] == answers[1]
        messages.append({"role": "assistant", "content": answers[0]})
    about = f"{options.device}, {options.threads} threads"
    print(f"{options.package}: {len(prompt):,} tokens in the last prompt, {options.turns} turns, {about}")
    for name, found in rows.items():
        shares, seconds, *ratios = zip(*found, strict=True)
        print(f"{name}: from the cache {min(shares):.1%} to {max(shares):.1%}; first token {statistics.median(seconds):.3f} s")
        for ratio, what in zip(ratios, ("in an empty context", "behind an equal history"), strict=False):
            print(f"  {statistics.median(ratio):.2f} of the time of the new tokens {what}")
    print(f"the same answer in {same} of {options.turns} turns")


if __name__ == "__main__":
    main()
