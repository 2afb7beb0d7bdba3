"""The first guess of what 4 bits will cost, against what they do cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from onnx_textgen_export import DecoderConfig, TinyTransformer, export
from onnx_textgen_export.calibration.attempts import Budget
from onnx_textgen_export.calibration.rounding_estimate import Estimate, estimate_rounding
from onnx_textgen_export.exporting.checks import estimate_line
from onnx_textgen_export.exporting.options import ExportOptions
from onnx_textgen_export.passes.quantization.options import DEFAULTS, Quantization
from onnx_textgen_export.tracing.opening import as_source, open_source
from support import gguf_files
from support.gguf_files import write_gguf
from support.tiny_models import tiny_model

PLAIN = Quantization(4, symmetric=False, method="rtn")
CALIBRATED = DEFAULTS["int4"]


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
def test_the_estimate_is_near_what_is_measured_and_leaves_the_model_as_it_is(tmp_path: Path, shared: Path, streamed: bool) -> None:
    checkpoint = shared / "checkpoints" / "stories260K"
    opened = open_source(checkpoint, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        if not streamed:
            for name, parameter in source.module.named_parameters():
                parameter.data = opened.weights.load(name).clone()
        before = {name: parameter.clone() for name, parameter in source.module.named_parameters()}
        found = estimate_rounding(source, opened.weights, opened.assets, PLAIN, Budget(), target="ort")
        assert all(torch.equal(parameter, before[name]) for name, parameter in source.module.named_parameters())
    made = export(checkpoint, tmp_path / "out", precision="int4", quantization=PLAIN, budget=Budget(strict_bits=True))
    measured = made.manifest.certificate["rounding"]["all"]["kl_mean"]
    assert measured / 2.5 < found.plain_kl < measured * 2.5
    assert found.narrow_bytes < found.wide_bytes


def found_of(checkpoint: Path, options: Quantization, budget: Budget) -> Estimate:
    opened = open_source(checkpoint, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        return estimate_rounding(source, opened.weights, opened.assets, options, budget, target="ort")


def test_within_a_wide_limit_4_bits_are_enough_and_within_none_all_are_8(shared: Path) -> None:
    found = found_of(shared / "checkpoints" / "stories260K", CALIBRATED, Budget())
    assert found.describe(Budget(), 10.0).endswith(f"within KL 10 they take about {found.narrow_bytes / 1e6:.1f} MB")
    assert found.describe(Budget(), 1e-9).endswith(f"a mix with 8 bits within KL 1e-09 takes about {found.wide_bytes / 1e6:.1f} MB")


def test_the_line_speaks_of_a_mix_only_where_one_is_to_be_made(shared: Path) -> None:
    checkpoint = shared / "checkpoints" / "stories260K"
    found = found_of(checkpoint, CALIBRATED, Budget())
    for line in (
        found.describe(Budget(strict_bits=True), 1e-9),
        found.describe(Budget(target_bytes=10**6), 1e-9),
        found.describe(Budget(), 1e-9, is_fixed=True),
    ):
        assert line == f"estimate: 4 bits alone lose about KL {found.plain_kl:.2g} (uncalibrated)"
    without = found_of(checkpoint, CALIBRATED, Budget(calibrates=False))
    assert "step by step" in without.describe(Budget(calibrates=False), 1e-9)
    assert "uncalibrated" not in without.describe(Budget(calibrates=False), 1e-9)
    larger = found_of(checkpoint, dataclasses.replace(CALIBRATED, finer_blocks=False), Budget())
    assert larger.narrow_bytes != found.narrow_bytes


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gemma2", "granite"])
def test_what_follows_the_output_layer_is_part_of_the_estimate(tmp_path: Path, model_type: str) -> None:
    """Gemma 2 caps its logits, Granite divides them."""
    model = tiny_model(model_type)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(200)
    opened = open_source(model, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        found = estimate_rounding(source, opened.weights, opened.assets, PLAIN, Budget(), target="ort")
    made = export(model, tmp_path / "out", precision="int4", quantization=PLAIN, budget=Budget(strict_bits=True))
    measured = made.manifest.certificate["rounding"]["all"]["kl_mean"]
    assert measured / 4 < found.plain_kl < 4 * measured


def line_of(model: nn.Module) -> str:
    opened = open_source(model, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        return estimate_line(source, opened.weights, opened.assets, PLAIN, ExportOptions())


def test_numbers_of_a_quantised_file_that_are_kept_cost_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", gguf_files.tiny_model("llama", tie_word_embeddings=False), "llama", kind="Q4_0")
    opened = open_source(tmp_path / "model.gguf", tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        kept, rounded = (
            estimate_rounding(source, opened.weights, opened.assets, PLAIN, Budget(), target=target).plain_kl
            for target in ("ort", "standard")
        )
    assert kept < 1e-9 < rounded


def test_a_mixture_has_no_estimate() -> None:
    assert line_of(tiny_model("mixtral")).startswith("no estimate: what the experts of a mixture lose")


def test_a_source_that_cannot_be_estimated_says_so_in_a_line() -> None:
    model = TinyTransformer(DecoderConfig(vocab_size=300, width=32, layers=1, heads=2, context_length=32))
    opened = open_source(model, tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:

        def fails(ids: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no batches here")

        object.__setattr__(source, "reference", fails)
        assert estimate_line(source, opened.weights, opened.assets, PLAIN, ExportOptions()) == "no estimate: no batches here"
