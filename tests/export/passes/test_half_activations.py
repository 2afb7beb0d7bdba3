"""Quantised weights with float16 around them: what GPUs' attention takes. Here on the CPU, whose float16 kernels run it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.errors import OptionError
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export import ExportError, cli, export
from onnx_textgen_export.cli import quantization_from
from onnx_textgen_export.passes.quantization.options import Quantization


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "target"), [("int8", "standard"), ("int4", "ort")])
def test_cache_and_logits_are_float16_and_right(
    tmp_path: Path, shared: Path, precision: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = shared / "checkpoints" / "stories260K"
    options = Quantization(8 if precision == "int8" else 4, activations="fp16", method="calibrated")
    made = export(source, tmp_path / "half", precision=precision, target=target, quantization=options)
    whole = export(source, tmp_path / "whole", precision=precision, target=target)
    certificate = made.manifest.certificate
    assert 1e-6 < max(scenario["logits_error"] for scenario in certificate["same_weights"]) < 0.02
    assert certificate["tolerance"]["logits_error"] == 0.02
    assert certificate["rounding"]["all"]["kl_mean"] < 1.2 * whole.manifest.certificate["rounding"]["all"]["kl_mean"] + 1e-3
    with caplog.at_level(logging.WARNING):
        model = onnx_textgen.load(made.folder)
    assert "meant for GPUs" in caplog.text
    session = open_session(made.folder / GRAPH, device="cpu").ort
    floats = [node.type for node in (*session.get_inputs(), *session.get_outputs()) if "int" not in node.type]
    assert len(floats) > 2 and set(floats) == {"tensor(float16)"}
    both = (model, onnx_textgen.load(whole.folder))
    ours, theirs = (each.generate("Once upon a time", max_new_tokens=12, temperature=0).text for each in both)
    assert ours[:12] == theirs[:12]


def test_float16_activations_are_for_quantised_weights_and_no_8_bit_cache(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(ExportError, match="float16 is meant for GPUs"):
        export(
            shared / "checkpoints" / "stories260K",
            tmp_path / "half",
            precision="int4",
            quantization=Quantization(4, activations="fp16"),
            int8_cache=True,
        )
    with pytest.raises(OptionError, match="fp32 is not quantised, so --activations does nothing"):
        quantization_from("fp32", activations="fp16")
    with pytest.raises(OptionError, match="--precision fp16 is float16 throughout"):
        cli.export("story", out=tmp_path / "half", precision=cli.PrecisionName.fp16, activations=cli.ActivationsName.fp32)
