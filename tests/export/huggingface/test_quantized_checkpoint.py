"""Checkpoints of GPTQ, AWQ and compressed-tensors keep their integers; what cannot be kept is refused unless it is asked for."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from support.quantized_checkpoints import tiny_llama, write_quantized

KINDS = [
    ("gptq", {"act_order": True}),
    ("awq", {}),
    ("compressed-tensors", {}),
    *(
        pytest.param(method, changes, marks=pytest.mark.slow)
        for method, changes in (
            ("gptq", {}),
            ("gptq", {"symmetric": True}),
            ("gptq", {"bits": 8}),
            ("compressed-tensors", {"bits": 8, "symmetric": True}),
        )
    ),
]
IDS = [5, 9, 20, 31, 7, 7, 64, 1]


def operators(folder: Path) -> list[str]:
    return [node.op_type for node in onnx.load(folder / GRAPH, load_external_data=False).graph.node]


@pytest.mark.parametrize(("method", "changes"), KINDS, ids=str)
def test_a_package_multiplies_with_the_integers_of_the_checkpoint(tmp_path: Path, method: str, changes: dict) -> None:
    model = tiny_llama()
    values = write_quantized(tmp_path / "checkpoint", model, method, **changes)
    plain = copy.deepcopy(model).half().float()
    plain.load_state_dict({name: torch.from_numpy(matrix) for name, matrix in values.items()}, strict=False)
    made = export(tmp_path / "checkpoint", tmp_path / "out")
    bits = changes.get("bits", 4)
    with_zeros = "" if changes.get("symmetric") else " with zero points"
    assert made.manifest.quantization["as_stored"] == {
        f"int{bits} in blocks of 32{with_zeros}": pytest.approx(
            sum(m.size for m in values.values()) * (bits / 8 + 2 / 32 + (bits / 8 / 32 if with_zeros else 0)), rel=0.01
        )
    }
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4
    assert operators(made.folder).count("MatMulNBits") == 2 * 4 + 1
    with torch.no_grad():
        wanted = plain(torch.tensor([IDS])).logits[0].log_softmax(-1).numpy()
    found = onnx_textgen.load(made.folder).score(IDS).logprobs
    np.testing.assert_allclose(found, wanted[np.arange(len(IDS) - 1), IDS[1:]], atol=0.03)  # the inputs of products are rounded


def test_inputs_in_the_order_of_their_groups_are_reordered_before_each_product(tmp_path: Path) -> None:
    write_quantized(tmp_path / "checkpoint", tiny_llama(), "gptq", act_order=True)
    made = export(tmp_path / "checkpoint", tmp_path / "out")
    plain = export(tiny_llama(), tmp_path / "plain", precision="int8")
    assert operators(made.folder).count("Gather") - operators(plain.folder).count("Gather") == 2 * 4


def test_numbers_that_no_form_holds_are_rounded_only_if_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_quantized(tmp_path / "checkpoint", tiny_llama(), "fp8")
    with pytest.raises(
        ExportError, match=r"\(14 in all\) is stored as fp8 and no form of ours holds its numbers; add --requantise"
    ):
        export(tmp_path / "checkpoint", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    made = export(tmp_path / "checkpoint", tmp_path / "plain", precision="fp32")
    assert made.manifest.precision == "fp32"
    assert run(["export", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "again"), "--requantise"]) == 0
    assert "int8" in capsys.readouterr().out


def test_fewer_bits_than_are_stored_are_refused_too(tmp_path: Path) -> None:
    write_quantized(tmp_path / "checkpoint", tiny_llama(), "gptq", bits=8)
    with pytest.raises(ExportError, match="is stored as GPTQ and no form of ours holds its numbers"):
        export(tmp_path / "checkpoint", tmp_path / "out", precision="int4")


def test_a_target_without_these_operators_refuses_too(tmp_path: Path) -> None:
    write_quantized(tmp_path / "checkpoint", tiny_llama(), "awq")
    with pytest.raises(ExportError, match="is stored as AWQ and no form of ours holds its numbers"):
        export(tmp_path / "checkpoint", tmp_path / "out", target="standard")


def test_a_method_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    write_quantized(tmp_path / "checkpoint", tiny_llama(), "awq")
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"awq"', '"quip"'), encoding="utf-8")
    with pytest.raises(
        ExportError, match="quantised by quip, which cannot be read; give the original checkpoint, or one quantised by"
    ):
        export(tmp_path / "checkpoint", tmp_path / "out")
