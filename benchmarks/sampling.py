"""How long one row of logits takes to become a token id: `python benchmarks/sampling.py [VOCABULARY]` prints medians in ms."""

import dataclasses
import statistics
import sys
import timeit

import numpy as np

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.sampler import Chooser

CONFIGS = {
    "greedy": GenerationConfig(temperature=0),
    "temperature 0.8": GenerationConfig(temperature=0.8),
    "temperature 0.8, top-k 50": GenerationConfig(temperature=0.8, top_k=50),
    "temperature 0.8, top-k 50, top-p 0.9": GenerationConfig(temperature=0.8, top_k=50, top_p=0.9),
    "temperature 0.8, top-p 0.9": GenerationConfig(temperature=0.8, top_p=0.9),
    "temperature 0.8, min-p 0.05": GenerationConfig(temperature=0.8, min_p=0.05),
    "temperature 0.8, typical-p 0.9": GenerationConfig(temperature=0.8, typical_p=0.9),
    "temperature 0.8, top-n-sigma 1": GenerationConfig(temperature=0.8, top_n_sigma=1),
    "temperature 0.8, XTC 0.5": GenerationConfig(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.05),
    "temperature 0.8, mirostat 2": GenerationConfig(temperature=0.8, mirostat=2),
    "greedy, logit bias": GenerationConfig(temperature=0, logit_bias=((5, 3.0), (7, -100.0))),
    "greedy, repetition penalty": GenerationConfig(temperature=0, repetition_penalty=1.1),
    "greedy, presence and frequency": GenerationConfig(temperature=0, presence_penalty=0.5, frequency_penalty=0.5),
    "greedy, no-repeat 3-gram": GenerationConfig(temperature=0, no_repeat_ngram_size=3),
    "greedy, DRY": GenerationConfig(temperature=0, dry_multiplier=0.8),
}
REPEATS = 300
HISTORY = 2000
"""Tokens of prompt and text that the penalties look at."""


def median_ms(config: GenerationConfig, logits: np.ndarray) -> float:
    """Measure the median time of one choice in milliseconds."""
    ids = np.random.default_rng(1).integers(0, logits.size, HISTORY).tolist()
    chooser = Chooser(dataclasses.replace(config, seed=1), prompt_ids=ids[: HISTORY // 2], eos_ids=[2])
    new_ids = ids[HISTORY // 2 :]
    chooser.choose(logits, new_ids)

    def choose() -> None:
        new_ids.append(chooser.choose(logits, new_ids))

    return 1e3 * statistics.median(timeit.repeat(choose, number=1, repeat=REPEATS))


def median_ms_of_beam(logits: np.ndarray, beams: int = 4) -> float:
    """Measure the same of the penalties alone, for beams that take turns and have parted 20 tokens before."""
    random = np.random.default_rng(1)
    ids = random.integers(0, logits.size, HISTORY).tolist()
    chooser = Chooser(GenerationConfig(repetition_penalty=1.1, seed=1), prompt_ids=ids[: HISTORY // 2], eos_ids=[2])
    texts = [[*ids[HISTORY // 2 :], *random.integers(0, logits.size, 20).tolist()] for _ in range(beams)]
    chooser.process(logits, texts[0])

    def step() -> None:
        for place, text in enumerate(texts):
            texts[place] = [*text, 5]
            chooser.process(logits, texts[place])

    return 1e3 * statistics.median(timeit.repeat(step, number=1, repeat=REPEATS)) / beams


def main() -> None:
    """Print one line per way of sampling."""
    vocabulary = int(sys.argv[1]) if len(sys.argv) > 1 else 152_000
    # Normal with deviation 3: the shape of a language model's logits, with a flatter head than most have.
    logits = (np.random.default_rng(0).standard_normal(vocabulary) * 3).astype(np.float32)
    print(
        f"one choice from {vocabulary:,} logits after {HISTORY:,} tokens, one thread, NumPy {np.__version__}, median of {REPEATS}"
    )
    for name, config in CONFIGS.items():
        print(f"{name:<40}{median_ms(config, logits):8.3f} ms")
    print(f"{'one of four beams, repetition penalty':<40}{median_ms_of_beam(logits):8.3f} ms")


if __name__ == "__main__":
    main()
