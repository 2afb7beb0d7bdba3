"""Matrices of three values, as BitNet b1.58 trains them (Ma et al. 2024): 2 bits store them losslessly.

Each output has one magnitude s, and its weights are -s, 0 and s. Such a matrix is stored in 2 bits at any quantised precision of
the target `ort`: ONNX Runtime reads half the bytes of 4 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BLOCK_SIZE = 128
"""The block size that ONNX Runtime 1.31 multiplies fastest: 1.5 times as fast as 4 bits in blocks of 32."""
FIRST = 8
"""Outputs that are checked first, before all are."""
TOLERANCE = 1e-6
"""Relative difference of magnitudes that count as equal: multiplying by a float32 scale leaves less."""


def is_ternary(matrix: Array, *, inputs_first: bool) -> bool:
    """Return whether each output of a matrix [out, in] ([in, out] if `inputs_first`) has one magnitude besides zero."""
    outputs = matrix.T if inputs_first else matrix
    return has_one_magnitude(outputs[:FIRST]) and has_one_magnitude(outputs)


def has_one_magnitude(outputs: Array) -> bool:
    """See `is_ternary`."""
    sizes = np.abs(outputs.astype(np.float32))
    largest = sizes.max(axis=1, keepdims=True, initial=0)
    return bool(np.all((sizes == 0) | (sizes >= largest * np.float32(1 - TOLERANCE))))
