"""Measures the speed of a model on this machine: prefill, decode, first token, load, memory, and texts in a batch.

The measured times are those of `Decoder` and greedy sampling, in which `generate` spends almost all of its time; a batch is
measured with `generate` itself. Prompts are pseudo-random ids, and end-of-text ids do not end a text, so every round does the same
work. An encoder-decoder reads them as its source, and its text begins with its start ids.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..api.loading import load
from ..api.model import Model
from ..backends.huge_pages import wait_for_collapse
from ..cancellation import Cancellation, CancelScope
from ..errors import OptionError, PromptError
from ..inference.prefill import prefill
from ..package.manifest import Manifest
from ..sampling.draw import most_likely

TEXTS, TEXT_PROMPT, TEXT_TOKENS = 8, 32, 64
"""Texts in a batch, tokens of the prompt of each, and new tokens of each; fewer tokens where the context is shorter."""


@dataclass(frozen=True, slots=True)
class Round:
    """The times of one prompt and its continuation."""

    prefill_seconds: float
    """From the start to the first token's logits, with the time to make the cache."""
    first_token_seconds: float
    decode_seconds: float
    """All tokens after the first."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers that `onnx-textgen bench` prints; rates are medians over the rounds."""

    model: str
    device: str
    precision: str
    target: str
    threads: int | None
    """None: ONNX Runtime's default."""
    prompt_tokens: int
    """Of an encoder-decoder: tokens of the source."""
    new_tokens: int
    rounds: int
    """Without the warm-up round before them."""
    load_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    first_token_ms: float
    cache_mib: float
    """Keys, values and states of the prompt and the new tokens; of an encoder-decoder also what its encoder gives."""
    peak_memory_mib: float | None
    """Of the whole process, before the batch; None if the system does not report it."""
    batch_tokens_per_second: float | None
    """New tokens per second of 8 texts in a batch, the time of their prompts included; None for an encoder-decoder, and if the keys
    and values of the texts do not fit in memory."""


def measure(
    package: str | Path | None = None,
    *,
    prompt_tokens: int | None = None,
    new_tokens: int = 64,
    rounds: int = 3,
    device: str = "auto",
    threads: int | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Measurement:
    """Load a model and time `rounds` prompts on it; `prompt_tokens` None: 512, or as many as fit in the context.

    Raises `OptionError` if the prompt and the new tokens do not fit in the context, and what `load` raises.
    """
    start = time.perf_counter()
    model = load(package, device=device, threads=threads)
    load_seconds = time.perf_counter() - start
    manifest = model.manifest
    prompt_tokens = min(512, longest_prompt(manifest, new_tokens)) if prompt_tokens is None else prompt_tokens
    check_lengths(manifest, prompt_tokens, new_tokens)
    wait_for_collapse()
    ids = np.random.default_rng(0).integers(manifest.geometry.vocab_size, size=prompt_tokens).tolist()
    timed = []
    for number in range(rounds + 1):  # the first is a warm-up, in which memory is allocated
        timed.append(time_round(model, ids, new_tokens))
        if on_round is not None:
            on_round(number)
    prefill_seconds, first_seconds, decode_seconds = (
        statistics.median(getattr(one, name) for one in timed[1:])
        for name in ("prefill_seconds", "first_token_seconds", "decode_seconds")
    )
    peak = peak_memory_mib()  # before the batch, which takes more
    return Measurement(
        model=manifest.name,
        device=model.device,
        precision=manifest.precision_name,
        target=manifest.target,
        threads=threads,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rounds=rounds,
        load_seconds=load_seconds,
        prefill_tokens_per_second=prompt_tokens / prefill_seconds,
        decode_tokens_per_second=(new_tokens - 1) / decode_seconds,
        first_token_ms=first_seconds * 1000,
        cache_mib=cache_bytes(model, prompt_tokens, new_tokens) / 2**20,
        peak_memory_mib=peak,
        batch_tokens_per_second=batch_tokens_per_second(model, rounds),
    )


def longest_prompt(manifest: Manifest, new_tokens: int) -> int:
    """The most tokens of a prompt that leaves room for the new ones; of an encoder-decoder those of a source."""
    return manifest.geometry.context_length - new_tokens if manifest.encoder is None else manifest.encoder.source_length


def check_lengths(manifest: Manifest, prompt_tokens: int, new_tokens: int) -> None:
    """Raise `OptionError` if a prompt and the new tokens do not fit in the model."""
    context, encoder = manifest.geometry.context_length, manifest.encoder
    if encoder is not None and (prompt_tokens > encoder.source_length or len(encoder.start_ids) + new_tokens > context):
        raise OptionError(
            f"a source of {prompt_tokens} tokens and {new_tokens} new ones do not fit in this encoder-decoder, which reads "
            f"{encoder.source_length} and writes {context - len(encoder.start_ids)}; ask for fewer"
        )
    if encoder is None and (prompt_tokens < 1 or prompt_tokens + new_tokens > context):
        raise OptionError(
            f"{prompt_tokens} prompt tokens and {new_tokens} new ones do not fit in the context of {context}; ask for fewer"
        )


def cache_bytes(model: Model, prompt_tokens: int, new_tokens: int) -> int:
    """Bytes of the cache after a prompt and the new tokens."""
    if (encoder := model.manifest.encoder) is None:
        return model.memory(prompt_tokens + new_tokens).total_bytes
    return model.memory(len(encoder.start_ids) + new_tokens, source_tokens=prompt_tokens).total_bytes


def time_round(model: Model, ids: list[int], new_tokens: int, *, cancel: Cancellation | None = None) -> Round:
    """Time one prompt on a new cache, then `new_tokens` greedy tokens; raises `InterruptedRunError` if it is cancelled."""
    scope = CancelScope(cancel)
    with scope.active():
        start = time.perf_counter()
        decoder = model.new_context()
        if (encoder := model.manifest.encoder) is not None:
            decoder.read_source(ids, scope=scope)
        logits = prefill(decoder, ids if encoder is None else encoder.start_ids, scope=scope)
        filled = time.perf_counter()
        token = most_likely(logits)
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            token = most_likely(decoder.feed([token], scope=scope)[-1])
        return Round(filled - start, first - start, time.perf_counter() - first)


def batch_tokens_per_second(model: Model, rounds: int) -> float | None:
    """New tokens per second of texts in a batch, the median of some rounds; None: see `Measurement`."""
    geometry, random = model.manifest.geometry, np.random.default_rng(1)
    new = min(TEXT_TOKENS, geometry.context_length // 2)
    length = min(TEXT_PROMPT, geometry.context_length - new)
    if model.manifest.encoder is not None:
        return None
    rates = []
    for _ in range(rounds):  # each with other prompts, because keys and values of the same ones would be reused
        prompts: list[list[int]] = random.integers(geometry.vocab_size, size=(TEXTS, length)).tolist()
        start = time.perf_counter()
        try:
            made = model.generate(prompts, max_new_tokens=new, temperature=0, ignore_eos=True, loop_guard="off")
        except PromptError:
            return None
        rates.append(sum(len(text.token_ids) for text in made) / (time.perf_counter() - start))
    return statistics.median(rates)


def peak_memory_mib() -> float | None:
    """The peak memory of this process, in MiB; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  (Unix only)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)  # macOS reports bytes, others KiB
