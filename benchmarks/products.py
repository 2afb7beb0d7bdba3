"""Time of a product of some tokens with a quantised matrix, by how its weights are stored: ONNX Runtime's MatMulNBits on the CPU.

    python benchmarks/products.py [--tokens 1 8] [--size 576x3072] [--threads 1] [--rounds 15]

The forms are timed in turn, round after round, and medians are printed. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnxruntime

from onnx_textgen.backends.onnxruntime_session import make_options
from onnx_textgen.diagnostics.product_forms import Form, Product
from onnx_textgen.diagnostics.product_graph import INPUT, product_model, random_weights

SIZES = ("576x1536", "2048x8192")
"""Inputs and outputs of the product."""
SECONDS = 0.02
"""Of one timing."""
LEVELS = {4: "int8", 1: "float32"}
"""What ONNX Runtime multiplies in, by accuracy level."""

FORMS = (
    Form(4, 32),
    Form(4, 32, "whole"),
    Form(4, 32, "real"),
    Form(4, 16, "whole"),
    Form(4, 64, "whole"),
    Form(4, 32, "whole", accuracy_level=1),
    Form(8, 32),
    Form(8, 32, "whole"),
    Form(8, 64),
    Form(8, 32, accuracy_level=1),
)


def open_product(product: Product, threads: int) -> onnxruntime.InferenceSession:
    """Open a graph of one product of random weights."""
    model = product_model(product, random_weights(product))
    return onnxruntime.InferenceSession(model, make_options(threads), providers=["CPUExecutionProvider"])


def microseconds(session: onnxruntime.InferenceSession, inputs: int, tokens: int) -> float:
    """Of one product, over many in a row."""
    x = {INPUT: np.random.default_rng(1).normal(size=(tokens, inputs)).astype(np.float32)}
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < SECONDS:
        session.run(None, x)
        count += 1
    return passed / count * 1e6


def main() -> None:
    """Print a line per form and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for size in arguments.size:
        inputs, outputs = map(int, size.split("x"))
        sessions = {form: open_product(Product(inputs, outputs, form), arguments.threads) for form in FORMS}
        times: dict[tuple[Form, int], list[float]] = {(form, tokens): [] for form in FORMS for tokens in arguments.tokens}
        for _ in range(arguments.rounds):
            for (form, tokens), found in times.items():
                found.append(microseconds(sessions[form], inputs, tokens))
        print(f"{size}, {arguments.threads} thread(s), microseconds of a product of {arguments.tokens} tokens")
        for form in FORMS:
            medians = [statistics.median(times[form, tokens]) for tokens in arguments.tokens]
            name = f"{form.describe()}, in {LEVELS[form.accuracy_level]}"
            print(f"  {name:50} {' '.join(f'{median:9.1f}' for median in medians)}")


if __name__ == "__main__":
    main()
