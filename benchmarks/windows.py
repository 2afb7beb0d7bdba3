"""What it saves that layers with a sliding window hold the end of a text only.

    python benchmarks/windows.py PACKAGE [--contexts 512 2048 8192 32000] [--threads 2] [--tokens 1500] [--cpu-time]

In one process and in turn, with the whole past and without: behind each context, a token and a part of a prompt as long as the
runtime makes them. Keys and values before it are random numbers, the same for both. Prints medians, the median of the ratios, the
memory of the cache (what is allocated, and what `memory` plans), and how far the logits differ. With `--tokens` both draw a text
from one prompt, and the ids are compared. The machine should do nothing else meanwhile; on a busy one, `--threads 1 --cpu-time`
counts the processor's time instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import onnx_textgen
from onnx_textgen.api.model import Model
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.kv_cache.snapshot import Snapshot

STEPS, ROUNDS = 8, 9
Clock = Callable[[], float]
NAMES = ("whole past", "windows")


def seconds(decoder: Decoder, ids: list[int], times: int, clock: Clock) -> tuple[float, np.ndarray]:
    """Of feeding some tokens behind what is held, as the median, and their logits; they are taken back."""
    length, found = len(decoder.token_ids[0]), list[float]()
    for _ in range(times):
        begun = clock()
        logits = decoder.feed(ids)
        found.append(clock() - begun)
        decoder.rewind(length)
    return statistics.median(found), logits


def filled(model: Model, context: int) -> Decoder:
    """A decoder that holds random keys and values of `context` tokens."""
    decoder, draw = model.new_context(), np.random.default_rng(0)
    tensors = {one.past: draw.normal(size=one.sized(1, context)).astype(one.dtype) for one in decoder.cache.tensors}
    decoder.reserve(model.manifest.geometry.context_length)
    decoder.restore(Snapshot((2,) * context, tensors), context)
    return decoder


def measure(models: dict[str, Model], context: int, clock: Clock) -> None:
    """Print the line of a context."""
    vocabulary = models["windows"].manifest.geometry.vocab_size
    decoders = {name: filled(model, context) for name, model in models.items()}
    part = np.random.default_rng(1).integers(0, vocabulary, decoders["windows"].part_size).tolist()
    cells, unequal = [f"{context:,}"], 0.0
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for turn in range(ROUNDS):
        for name in NAMES[:: 1 - 2 * (turn % 2)]:
            seconds(decoders[name], [7], 2, clock)
            found[name].append((seconds(decoders[name], [7], STEPS, clock)[0], seconds(decoders[name], part, 1, clock)[0]))
    for ids in ([7], part):
        whole, windows = (seconds(decoders[name], ids, 1, clock)[1].copy() for name in NAMES)
        unequal = max(unequal, float(np.abs(whole - windows).max() / np.abs(whole).max()))
    for index in (0, 1):
        before, after = ([each[index] for each in found[name]] for name in NAMES)
        times = statistics.median(a / b for a, b in zip(before, after, strict=True))
        cells.append(f"{1e3 * statistics.median(before):.1f} -> {1e3 * statistics.median(after):.1f} ms ({times:.2f})")
    cells.append("same bits" if not unequal else f"{unequal:.0e}")
    print("| " + " | ".join(cells) + " |", flush=True)


def allocated(model: Model) -> float:
    """Megabytes of the buffers for a full context."""
    decoder = model.new_context()
    decoder.reserve(model.manifest.geometry.context_length)
    return sum(buffer.numpy().nbytes for buffer in decoder.cache.buffers.values()) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--contexts", type=int, nargs="*", default=[512, 2048, 8192, 32000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=0, help="tokens of the texts that are compared")
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    models = {
        name: onnx_textgen.load(
            arguments.package, device="cpu", threads=arguments.threads, prefix_cache=0, whole_past=name == "whole past"
        )
        for name in NAMES
    }
    longest = models["windows"].manifest.geometry.context_length
    for name, model in models.items():
        print(f"{name}: {allocated(model):,.1f} MB for {longest:,} tokens, planned {model.memory().total_bytes / 1e6:,.1f}")
    print("\n| behind | a token | a part of a prompt | logits |\n|---:|---:|---:|---|")
    for context in [each for each in arguments.contexts if each + 256 <= longest]:
        measure(models, context, time.process_time if arguments.cpu_time else time.perf_counter)
    if arguments.tokens:
        prompt = np.random.default_rng(2).integers(0, models["windows"].manifest.geometry.vocab_size, 64).tolist()
        texts = [
            model.generate(prompt, max_new_tokens=arguments.tokens, seed=1, ignore_eos=True).token_ids for model in models.values()
        ]
        print(f"\na text of {len(texts[0]):,} drawn tokens: {'the same' if texts[0] == texts[1] else 'another one'}")


if __name__ == "__main__":
    main()
