"""How long one row of logits takes to become a token id: `python benchmarks/sampling.py [VOCABULARY]` prints medians in ms."""

import statistics
import sys
import timeit

import numpy as np

from onnx_textgen.generation_config import GenerationConfig
from onnx_textgen.sampling import make_sampler

CONFIGS = {
    "greedy": GenerationConfig(temperature=0),
    "temperature 0.8": GenerationConfig(temperature=0.8),
    "temperature 0.8, top-k 50": GenerationConfig(temperature=0.8, top_k=50),
    "temperature 0.8, top-k 50, top-p 0.9": GenerationConfig(temperature=0.8, top_k=50, top_p=0.9),
    "temperature 0.8, top-p 0.9": GenerationConfig(temperature=0.8, top_p=0.9),
    "temperature 0.8, min-p 0.05": GenerationConfig(temperature=0.8, min_p=0.05),
}
REPEATS = 300


def median_ms(config: GenerationConfig, logits: np.ndarray) -> float:
    """Measure the median time of one draw in milliseconds."""
    sample_token = make_sampler(config)
    sample_token(logits, 1, 0, 0)
    return 1e3 * statistics.median(timeit.repeat(lambda: sample_token(logits, 1, 0, 1), number=1, repeat=REPEATS))


def main() -> None:
    """Print one line per way of sampling."""
    vocabulary = int(sys.argv[1]) if len(sys.argv) > 1 else 152_000
    # Normal with deviation 3: the shape of a language model's logits, with a flatter head than most have.
    logits = (np.random.default_rng(0).standard_normal(vocabulary) * 3).astype(np.float32)
    print(f"one draw from {vocabulary:,} logits, one thread, NumPy {np.__version__}, median of {REPEATS}")
    for name, config in CONFIGS.items():
        print(f"{name:<40}{median_ms(config, logits):8.3f} ms")


if __name__ == "__main__":
    main()
