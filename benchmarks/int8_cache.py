"""What a cache of 8 bits costs and gives, beside the package's own.

    python benchmarks/int8_cache.py PACKAGE [--contexts 128 2048 8192] [--text FILE --tokens N [--device hybrid]] [--threads 2]

PACKAGE was exported with --int8-cache. In one process and in turn, behind each context: a token, a part of a prompt as long as the
runtime makes them, and what the cache takes; medians, and the ratio of the package's own by that of 8 bits. With a text that the
model was not trained on (lines `<|endoftext|>` separate documents) it compares what both put next, the first half of a document
fed as a prompt and the rest token by token: the same token (top-1), the divergence of the distributions (KL, nats per token), the
perplexity. `--device hybrid` lets OpenVINO compute the prompts for the cache of 8 bits. The machine should do nothing else
meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import onnx_textgen
from onnx_textgen.api.model import Model
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.manifest import INT8_CACHE_GRAPH

STEPS = 8
ROUNDS = 9
DOCUMENT = 400
"""Tokens of a document that are looked at."""


def seconds(decoder: Decoder, ids: list[int], times: int) -> float:
    """Of feeding some tokens behind what is held, as the median; they are taken back."""
    length, found = len(decoder.token_ids[0]), list[float]()
    for _ in range(times):
        begun = time.perf_counter()
        decoder.feed(ids)
        found.append(time.perf_counter() - begun)
        decoder.rewind(length)
    return statistics.median(found)


def measure(models: dict[str, Model], context: int) -> None:
    """Print the line of a context."""
    drawn = np.random.default_rng(0).integers(0, models["own"].manifest.geometry.vocab_size, context + 1024).tolist()
    decoders = {name: model.new_context() for name, model in models.items()}
    for decoder in decoders.values():
        prefill(decoder, drawn[:context])
    part = drawn[context : context + decoders["own"].part_size]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for turn in range(ROUNDS):
        for name in list(models)[:: 1 - 2 * (turn % 2)]:
            seconds(decoders[name], [7], 2)
            found[name].append((seconds(decoders[name], [7], STEPS), seconds(decoders[name], part, 1)))
    cells = [f"{context:,}"]
    for index in (0, 1):
        own, small = ([each[index] for each in found[name]] for name in models)
        times = statistics.median(a / b for a, b in zip(own, small, strict=True))
        cells.append(f"{1e3 * statistics.median(own):.1f} -> {1e3 * statistics.median(small):.1f} ms ({times:.2f})")
    memory = [models[name].memory(context).total_bytes / 1e6 for name in models]
    print("| " + " | ".join([*cells, f"{memory[0]:.1f} -> {memory[1]:.1f}"]) + " |", flush=True)


def fed(decoder: Decoder, ids: list[int]) -> list[np.ndarray]:
    """Logits of a text from the middle on: its first half is fed as a prompt, the rest token by token."""
    half = len(ids) // 2
    return [prefill(decoder, ids[:half])[None].copy(), *(decoder.feed([token_id]).copy() for token_id in ids[half:])]


def compare_texts(models: dict[str, Model], path: Path, tokens: int, device: str) -> None:
    """Print what the two put next."""
    from onnx_textgen_export.proof.measures import compare, next_tokens  # noqa: PLC0415 - torch, which the rest needs not

    most, total = models["own"].encoder.context_length - 1, 0
    logits: dict[str, list[np.ndarray]] = {name: [] for name in models}
    targets = list[int | None]()
    for document in path.read_text(encoding="utf-8").split("<|endoftext|>"):
        ids = models["own"].encode(document.strip()[: 4 * DOCUMENT])[: min(DOCUMENT, most)] if document.strip() else []
        if len(ids) < DOCUMENT // 8:
            continue
        for name, model in models.items():
            logits[name] += fed(model.new_context(), ids)
        targets += next_tokens(ids)[len(ids) // 2 - 1 :]
        total += len(ids)
        if total >= tokens:
            break
    found = compare("text", np.concatenate(logits["int8"]), np.concatenate(logits["own"]), targets)
    print(
        f"\n{found.tokens:,} tokens of {path.name}, prompts for the cache of 8 bits on {device}: "
        f"same top-1 {found.top1_agreement:.2%}, KL {found.kl_divergence:.2e}, "
        f"perplexity {found.perplexity_change:+.2%}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--contexts", type=int, nargs="*", default=[128, 2048, 8192])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--device", default="cpu", choices=("cpu", "hybrid"))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    places = {"own": arguments.package, "int8": arguments.package / INT8_CACHE_GRAPH}
    models = {
        name: onnx_textgen.load(place, device="cpu", threads=arguments.threads, prefix_cache=0) for name, place in places.items()
    }
    longest = models["own"].encoder.context_length
    print("| behind | a token | a part of a prompt | cache, MB |\n|---:|---:|---:|---:|")
    for context in [each for each in arguments.contexts if each + 1024 <= longest]:
        measure(models, context)
    if arguments.text is not None:
        if arguments.device != "cpu":
            models["int8"] = onnx_textgen.load(places["int8"], device=arguments.device, threads=arguments.threads, prefix_cache=0)
        compare_texts(models, arguments.text, arguments.tokens, arguments.device)


if __name__ == "__main__":
    main()
