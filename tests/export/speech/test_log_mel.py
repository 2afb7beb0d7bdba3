"""The graph of features computes what transformers' extractor computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from onnx_textgen.speech.speech_encoder import SOUND
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.speech import opening
from onnx_textgen_export.speech.log_mel import log_mel_graph

SECONDS = 2


def opened(extractor: Any) -> onnxruntime.InferenceSession:
    data = ir.to_proto(log_mel_graph(extractor)).SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module", params=[80, 128])
def both(request: pytest.FixtureRequest) -> tuple[Any, onnxruntime.InferenceSession]:
    extractor = WhisperFeatureExtractor(feature_size=request.param, chunk_length=SECONDS)
    return extractor, opened(extractor)


@given(st.integers(1, 3 * SECONDS * 16_000), st.integers(0, 2**32 - 1), st.floats(1e-5, 1), st.floats(0, 7900))
@settings(max_examples=40)
def test_features_are_the_extractors(both: Any, count: int, seed: int, loudness: float, pitch: float) -> None:
    extractor, session = both
    draw = np.random.default_rng(seed)
    sound = loudness * (np.sin(2 * np.pi * pitch * np.arange(count) / 16_000) + 0.1 * draw.normal(size=count))
    samples = sound.astype(np.float32)
    want = extractor(samples, sampling_rate=16_000, return_tensors="np")["input_features"]
    (found,) = session.run(None, {SOUND: samples})
    assert np.abs(found - want).max() < opening.MOST_APART


def test_a_graph_that_computes_otherwise_is_found() -> None:
    extractor = WhisperFeatureExtractor(chunk_length=SECONDS)
    extractor.mel_filters = extractor.mel_filters * 1.01
    graph = log_mel_graph(extractor)
    assert opening.largest_difference(graph, WhisperFeatureExtractor(chunk_length=SECONDS)) > opening.MOST_APART
    assert issubclass(ExportError, Exception)
