"""Time of a product of some tokens with a quantised matrix, by how its weights are stored: ONNX Runtime's MatMulNBits on the CPU.

    python benchmarks/products.py [--tokens 1 8] [--size 576x3072] [--threads 1] [--rounds 15]

The forms are timed in turn, round after round, and medians are printed. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIZES = ("576x1536", "2048x8192")
"""Rows and columns of the matrix."""
SECONDS = 0.02
"""Of one timing."""


@dataclasses.dataclass(frozen=True)
class Form:
    """How weights are stored, and what the product computes in."""

    bits: int
    block_size: int = 32
    zero_points: str = "none"
    """`none`, `whole` numbers, or `real` ones, as HQQ has them."""
    accuracy_level: int = 4
    """4: activations become int8; 1: float32."""

    def describe(self) -> str:
        """For the table."""
        return f"int{self.bits}, block {self.block_size}, zero points {self.zero_points}, accuracy level {self.accuracy_level}"


FORMS = (
    Form(4),
    Form(4, zero_points="whole"),
    Form(4, zero_points="real"),
    Form(4, block_size=16, zero_points="whole"),
    Form(4, block_size=64, zero_points="whole"),
    Form(4, zero_points="whole", accuracy_level=1),
    Form(8),
    Form(8, zero_points="whole"),
    Form(8, block_size=64),
    Form(8, accuracy_level=1),
)


def session_of(form: Form, rows: int, columns: int, threads: int) -> onnxruntime.InferenceSession:
    """A graph of one product of random weights."""
    random, blocks = np.random.default_rng(0), rows // form.block_size
    arrays = {
        "weights": random.integers(0, 256, (columns, blocks, form.block_size * form.bits // 8), dtype=np.uint8),
        "scales": random.uniform(0.001, 0.01, columns * blocks).astype(np.float32),
    }
    if form.zero_points == "whole":
        arrays["zeros"] = random.integers(0, 256, columns * -(-blocks * form.bits // 8), dtype=np.uint8)
    elif form.zero_points == "real":
        arrays["zeros"] = random.uniform(6, 9, columns * blocks).astype(np.float32)
    sizes = {"K": rows, "N": columns, "bits": form.bits, "block_size": form.block_size, "accuracy_level": form.accuracy_level}
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **sizes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, rows])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, columns])]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "product", inputs, outputs, constants)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def microseconds(session: onnxruntime.InferenceSession, rows: int, tokens: int) -> float:
    """Of one product, over many in a row."""
    x = {"x": np.random.default_rng(1).normal(size=(1, tokens, rows)).astype(np.float32)}
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
        rows, columns = map(int, size.split("x"))
        sessions = {form: session_of(form, rows, columns, arguments.threads) for form in FORMS}
        times: dict[tuple[Form, int], list[float]] = {(form, tokens): [] for form in FORMS for tokens in arguments.tokens}
        for _ in range(arguments.rounds):
            for (form, tokens), found in times.items():
                found.append(microseconds(sessions[form], rows, tokens))
        print(f"{size}, {arguments.threads} thread(s), microseconds of a product of {arguments.tokens} tokens")
        for form in FORMS:
            medians = [statistics.median(times[form, tokens]) for tokens in arguments.tokens]
            print(f"  {form.describe():60} {' '.join(f'{median:9.1f}' for median in medians)}")


if __name__ == "__main__":
    main()
