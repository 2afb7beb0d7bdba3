"""Tokens per second of many callers at once, beside one alone; and what a ticker in another thread sees of a long prompt.

    python benchmarks/batching.py PACKAGE [--threads 2] [--callers 8]

Rounds of one caller and of many alternate; each caller has a prompt of its own. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np

import onnx_textgen

PROMPT_TOKENS, NEW_TOKENS = 32, 96
TICK_SECONDS = 0.005


def tokens_per_second(model: onnx_textgen.Model, prompts: list[list[int]]) -> float:
    """All callers' new tokens, from the moment when all prompts are in to the end of the first text."""
    options = {"max_new_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True}
    begun, times = threading.Barrier(len(prompts)), list[tuple[float, float]]()

    def call(prompt: list[int]) -> None:
        stream = model.stream(prompt, **options)  # type: ignore[arg-type]
        next(stream)
        begun.wait()
        start = time.perf_counter()
        for _ in stream:
            pass
        times.append((start, time.perf_counter()))

    threads = [threading.Thread(target=call, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = max(end for _, end in times) - min(start for start, _ in times)
    return len(prompts) * (NEW_TOKENS - 1) / seconds


def ticks_kept(model: onnx_textgen.Model, prompt: list[int]) -> float:
    """The share of 5 ms ticks that another thread kept while a long prompt was fed."""
    done, ticks, started = threading.Event(), 0, time.perf_counter()
    work = threading.Thread(target=lambda: (model.generate(prompt, max_new_tokens=1), done.set()))
    work.start()
    while not done.is_set():
        time.sleep(TICK_SECONDS)
        ticks += 1
    seconds = time.perf_counter() - started
    work.join()
    started, idle = time.perf_counter(), 0
    while time.perf_counter() - started < 1:
        time.sleep(TICK_SECONDS)
        idle += 1
    return ticks / seconds / idle


def main() -> None:
    """Print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = onnx_textgen.load(
        arguments.package, device="cpu", threads=arguments.threads, prefix_cache=0, batch_size=arguments.callers
    )
    random, vocab_size = np.random.default_rng(0), model.manifest.geometry.vocab_size
    prompts = random.integers(0, vocab_size, (arguments.callers, PROMPT_TOKENS)).tolist()
    speeds: dict[int, list[float]] = {1: [], arguments.callers: []}
    for _ in range(arguments.rounds):
        for callers, each in speeds.items():
            each.append(tokens_per_second(model, prompts[:callers]))
    one, many = (statistics.median(each) for each in speeds.values())
    print(f"1 caller {one:.1f} tokens/s, {arguments.callers} callers {many:.1f} tokens/s: {many / one:.2f} times")
    length = min(2000, model.manifest.geometry.context_length - 1)
    print(
        f"5 ms ticks kept while {length:,} tokens are fed: {ticks_kept(model, random.integers(0, vocab_size, length).tolist()):.0%}"
    )


if __name__ == "__main__":
    main()
