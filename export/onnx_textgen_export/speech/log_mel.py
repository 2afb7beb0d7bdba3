"""The graph of a feature extractor: from the samples of a sound to a spectrogram on the mel scale, in logarithms.

A window of the samples is cut every `hop` of them, weighted, and measured at frequencies: a convolution with cosines and sines. The
powers are joined to mels by the extractor's own matrix. As in Whisper's paper (arXiv 2212.04356), nothing is quieter than eight
powers of ten below the loudest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_textgen.speech.features import INPUT_FEATURES
from onnx_textgen.speech.speech_encoder import SOUND

from ..image_processors.pixel_steps import Operators, finished, named, scalar

FLOOR, RANGE = 1e-10, 8.0
"""Of powers, and of logarithms."""


def log_mel_graph(extractor: Any) -> ir.Model:  # noqa: ANN401 - a feature extractor of transformers
    """The graph: samples float32 [samples], of any number, to features float32 [1, mels, frames] of a whole window."""
    size, hop, samples, filters = extractor.n_fft, extractor.hop_length, extractor.n_samples, np.asarray(extractor.mel_filters)
    ops = Operators()
    given = ir.Value(name=SOUND, shape=ir.Shape(["samples"]), type=ir.TensorType(ir.DataType.FLOAT))
    zero, most = ops.constant(0), ops.constant(samples)
    cut = ops.op("Slice", given, zero, most, zero)
    missing = ops.op("Sub", most, ops.op("Shape", cut))
    whole = ops.op("Pad", cut, ops.op("Concat", zero, missing, axis=0))
    around = ops.op("Pad", whole, ops.constant([size // 2, size // 2]), mode="reflect")
    waves = ops.op("Conv", ops.op("Unsqueeze", around, ops.constant([0, 1])), waves_of(ops, size), strides=[hop])
    real, imaginary = (
        ops.op("Slice", waves, ops.constant(start), ops.constant(end), ops.constant(1)) for start, end in halves(size)
    )
    powers = ops.op("Add", *(ops.op("Mul", each, each) for each in (real, imaginary)))
    powers = ops.op("Slice", powers, zero, ops.constant(samples // hop), ops.constant(2))
    mels = ops.op("MatMul", ops.constant(filters.T, np.float32), powers)
    logs = ops.op("Mul", ops.op("Log", ops.op("Max", mels, scalar(ops, FLOOR))), scalar(ops, 1 / math.log(10)))
    least = ops.op("Sub", ops.op("ReduceMax", logs, keepdims=0), scalar(ops, RANGE))
    found = ops.op("Div", ops.op("Add", ops.op("Max", logs, least), scalar(ops, 4.0)), scalar(ops, 4.0))
    named(found, INPUT_FEATURES, [1, filters.shape[1], samples // hop])
    return finished(ops, given, [found], "log_mel")


def halves(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the channels of cosines and those of sines begin and end."""
    count = size // 2 + 1
    return (0, count), (count, 2 * count)


def waves_of(ops: Operators, size: int) -> ir.Value:
    """Cosines and sines of each frequency, under Hann's window, as the weights [channels, 1, size] of a convolution."""
    times = np.arange(size)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * times / size)
    angles = 2 * np.pi * np.outer(np.arange(size // 2 + 1), times) / size
    return ops.constant(np.concatenate([np.cos(angles), -np.sin(angles)])[:, None] * window, np.float32)
