"""Rounding is measured against PyTorch's own predictions, however the texts were read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_export.calibration.observe import draw
from onnx_textgen_export.calibration.quality import QualityMeter, logits_of
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.tracing.opening import as_source, open_source
from onnx_textgen_export.weights.streamed import OwnWeights
from support.gguf_files import tiny_model


def opened(kind: str) -> Source:
    """A tiny decoder with random weights."""
    with as_source(open_source(tiny_model(kind)), None) as source:
        return source


@pytest.mark.parametrize("kind", ["llama", "gemma2"])  # which caps its logits after the output layer
def test_texts_that_are_read_together_have_the_logits_of_each_alone(kind: str) -> None:
    source, ids = opened(kind), torch.randint(3, 60, (3, 70), generator=torch.Generator().manual_seed(1))
    passes = list[int]()
    embedding = source.module.get_submodule("model.embed_tokens")
    embedding.register_forward_hook(lambda _, __, output: passes.append(len(output)))
    with torch.no_grad():
        found = [torch.cat(list(slices)) for slices in logits_of(source, ids)]
        assert passes == ([3] if kind == "llama" else [3, 1, 1, 1])
        for text, logits in zip(ids, found, strict=True):
            assert torch.allclose(logits, source.reference(text[None])[0], atol=1e-5)


@pytest.mark.parametrize("searches", [False, True])
def test_a_text_has_two_halves_only_where_attempts_are_compared(tmp_path: Path, *, searches: bool) -> None:
    source = opened("llama")
    ids = torch.randint(3, 60, (1500,), generator=torch.Generator().manual_seed(1)).tolist()
    texts = {"long": ids, "short": ids[:40]}
    meter = QualityMeter(source, OwnWeights(source.module), texts, tmp_path, searches=searches)
    found = {part: [(window.kind, window.ids) for window, _ in meter.windows(part)] for part in ("search", "acceptance")}
    assert ("short", texts["short"]) in found["search"]
    assert ("short", texts["short"]) in found["acceptance"]
    long = {part: [text for kind, text in windows if kind == "long"] for part, windows in found.items()}
    assert (long["search"] == long["acceptance"]) is not searches
    for window, wanted in meter.windows("search"):
        with torch.no_grad():
            own = source.reference(torch.tensor([window.ids]))[0].log_softmax(-1).numpy()
        assert np.allclose(wanted, own, atol=2e-2)


@given(st.integers(0, 2**32), st.lists(st.floats(0, 1), min_size=2, max_size=50).filter(lambda each: sum(each) > 0.1))
def test_tokens_are_drawn_by_their_probabilities(seed: int, sizes: list[float]) -> None:
    count, probabilities = 4000, torch.tensor(sizes) / sum(sizes)
    drawn = draw(probabilities.repeat(count, 1), torch.Generator().manual_seed(seed))
    assert drawn.shape == (count, 1)
    shares = torch.bincount(drawn[:, 0], minlength=len(sizes)) / count
    assert (shares - probabilities).abs().max() < 0.05
