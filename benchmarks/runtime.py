"""What the runtime adds to ONNX Runtime: `python benchmarks/runtime.py --work DIR` (makes its model there the first time).

On a random-weight Llama of 135 M parameters (hidden 576, 30 layers, 9 heads, 3 key/value heads, intermediate 1536, vocabulary
49,152, tied), float32, 2 threads, batch 1, it prints, as medians over interleaved rounds:

- the time of one decode step through the runtime (feed, greedy choice, detokenise) over a bare `run_with_iobinding` of the same
  session at the same place in the context;
- the time of one step with room for 4,096 tokens over that with room for 512;
- the logits rows that a prefill of 512 tokens computes, and its speed;
- the time that importing the package and opening the model take in a fresh process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import onnx_textgen
from onnx_textgen.backends.onnxruntime_session import OrtValue
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.options.generation_config import GenerationConfig

CONTEXT = 128
STEPS = 24


def make_model(folder: Path) -> None:
    """Export the random 135 M model."""
    import torch  # noqa: PLC0415 - only the first run needs the exporter
    import transformers  # noqa: PLC0415

    from onnx_textgen_export import export  # noqa: PLC0415

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    export(model, folder, name="llama-135m-random", report=lambda stage: print(stage, "...", file=sys.stderr))


def filled(model: onnx_textgen.Model, capacity: int) -> Decoder:
    """A decoder that holds `CONTEXT` tokens."""
    decoder = Decoder(model.graph, model.manifest.geometry, capacity=capacity)
    decoder.feed([(7 * i) % 1000 for i in range(CONTEXT)])
    return decoder


def runtime_steps(model: onnx_textgen.Model, decoder: Decoder) -> Callable[[], float]:
    """Milliseconds per token through the runtime."""

    def measure() -> float:
        decoder.rewind(CONTEXT)
        config = GenerationConfig(temperature=0, max_new_tokens=10**6)
        continuation = Continuation(None, [1], config, model.generator.limits)
        token, start = 1, time.perf_counter()
        for _ in range(STEPS):
            logits = decoder.feed([token])[-1]
            token = continuation.choose(logits)
            continuation.accept(token, logits)
        return (time.perf_counter() - start) / STEPS * 1e3

    return measure


def bare_steps(model: onnx_textgen.Model, decoder: Decoder) -> Callable[[], float]:
    """Milliseconds per token of the session alone, at the middle of the places the runtime's steps are at."""
    binding = decoder.cache.begin(0, STEPS)
    total = CONTEXT + STEPS // 2
    for name, array in {
        "input_ids": np.array([[1]], dtype=np.int64),
        "attention_mask": np.ones((1, total), dtype=np.int64),
        "logits_positions": np.array([-1], dtype=np.int64),
    }.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("logits", "cpu")

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            model.graph.ort.run_with_iobinding(binding)
        return (time.perf_counter() - start) / STEPS * 1e3

    return measure


def compare(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Medians of both and of their ratio, measured in turns."""
    pairs = [(first(), second()) for _ in range(rounds)]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return medians[0], medians[1], statistics.median(a / b for a, b in pairs)


def fresh_process(code: str) -> float:
    """Seconds that `code` says it took, median of five new interpreters."""
    script = f"import time; s = time.perf_counter(); {code}; print(time.perf_counter() - s)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout) for _ in range(5)
    ]
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the runtime adds to ONNX Runtime.")
    parser.add_argument("--work", type=Path, required=True, help="folder for the model, 0.6 GB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    folder = options.work / "llama-135m-fp32"
    if not folder.exists():
        make_model(folder)
    model = onnx_textgen.load(folder, threads=options.threads, device="cpu")
    small, large = filled(model, 512), filled(model, 4096)
    runtime, bare, ratio = compare(runtime_steps(model, small), bare_steps(model, filled(model, 512)), options.rounds)
    print(f"decode step at {CONTEXT}: runtime {runtime:.2f} ms, bare session {bare:.2f} ms, ratio {ratio:.3f}")
    wide, narrow, ratio = compare(runtime_steps(model, large), runtime_steps(model, small), options.rounds)
    print(f"decode step with room for 4,096: {wide:.2f} ms, for 512: {narrow:.2f} ms, ratio {ratio:.3f}")
    prompt, times = [(7 * i) % 1000 for i in range(512)], []
    for _ in range(5):
        decoder = Decoder(model.graph, model.manifest.geometry, capacity=512)
        start = time.perf_counter()
        logits = decoder.feed(prompt)
        times.append(512 / (time.perf_counter() - start))
    print(f"prefill of 512: {statistics.median(times):.0f} tokens/s, logits {list(logits.shape)}")
    print(f"import of everything: {fresh_process('import onnx_textgen.api.model'):.2f} s in a fresh process")
    print(f"load of the embedded default: {fresh_process('import onnx_textgen; onnx_textgen.load()'):.2f} s, import included")


if __name__ == "__main__":
    main()
