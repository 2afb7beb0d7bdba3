"""The first guess of what 4 bits will cost, against what they do cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onnx_textgen_export import DecoderConfig, TinyTransformer, export
from onnx_textgen_export.calibration.attempts import Budget
from onnx_textgen_export.calibration.estimate import estimate
from onnx_textgen_export.exporting import estimate_line
from onnx_textgen_export.opening import as_source, open_source
from onnx_textgen_export.passes.quantization import Quantization

PLAIN = Quantization(4, symmetric=False, method="rtn")


@pytest.mark.parametrize("streamed", [True, False])
def test_the_estimate_is_near_what_is_measured_and_leaves_the_model_as_it_is(tmp_path: Path, shared: Path, streamed: bool) -> None:
    checkpoint = shared / "checkpoints" / "stories260K"
    opened = open_source(checkpoint, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        if not streamed:
            for name, parameter in source.module.named_parameters():
                parameter.data = opened.weights.load(name).clone()
        before = {name: parameter.clone() for name, parameter in source.module.named_parameters()}
        found = estimate(source, opened.weights, opened.assets, PLAIN)
        assert all(torch.equal(parameter, before[name]) for name, parameter in source.module.named_parameters())
    assert found is not None
    made = export(checkpoint, tmp_path / "out", precision="int4", quantization=PLAIN, budget=Budget(strict_bits=True))
    measured = made.manifest.certificate["rounding"]["all"]["kl_mean"]
    assert measured / 2.5 < found.plain_kl < measured * 2.5
    assert found.narrow_bytes < found.wide_bytes


def test_within_a_wide_budget_4_bits_are_enough_and_within_none_all_are_8(shared: Path) -> None:
    opened = open_source(shared / "checkpoints" / "stories260K", tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        found = estimate(source, opened.weights, opened.assets, PLAIN)
    assert found is not None
    assert f"{found.narrow_bytes / 1e6:.1f} MB" in found.describe(10.0)
    assert f"{found.wide_bytes / 1e6:.1f} MB" in found.describe(1e-9)


def test_a_source_that_cannot_be_estimated_says_so_and_is_exported() -> None:
    model = TinyTransformer(DecoderConfig(vocab_size=300, width=32, layers=1, heads=2, context_length=32))
    opened = open_source(model, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:

        def fails(ids: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no batches here")

        object.__setattr__(source, "reference", fails)
        assert estimate_line(source, opened.weights, opened.assets, PLAIN, 0.03) == "no estimate: no batches here"
