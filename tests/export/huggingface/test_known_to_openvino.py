"""Graphs of many architectures: where the runtime says, without OpenVINO, that OpenVINO reads them, it does."""

from pathlib import Path

import pytest

from onnx_textgen.backends.openvino.known import is_known
from onnx_textgen.backends.openvino.session import read_graph
from onnx_textgen.errors import PackageError
from onnx_textgen_export import export
from support.costs import by_cost
from support.tiny_models import tiny_model

pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')

KNOWN = (("llama", "fp32"), ("gemma3_text", "int8"), ("phi3", "int4"))
MORE = (("llama", "int4"), ("gpt2", "fp32"), ("granite", "fp32"))
OTHERS = {
    "gemma2": "softcap",
    "mixtral": "MoE",
    "bloom": "no GroupQueryAttention",
}
"""Types that OpenVINO does not run, and what it says."""


@pytest.mark.parametrize(("name", "precision"), by_cost([], KNOWN, MORE))
def test_openvino_reads_what_is_known(tmp_path: Path, name: str, precision: str) -> None:
    export(tiny_model(name), tmp_path / "package", precision=precision, context_length=64)
    assert is_known(tmp_path / "package" / "model.onnx")
    read_graph(tmp_path / "package" / "model.onnx", device="openvino")


@pytest.mark.parametrize("name", by_cost([], ["gemma2"], [name for name in OTHERS if name != "gemma2"]))
def test_what_openvino_refuses_is_not_known(tmp_path: Path, name: str) -> None:
    export(tiny_model(name), tmp_path / "package", context_length=64)
    assert not is_known(tmp_path / "package" / "model.onnx")
    with pytest.raises(PackageError, match=OTHERS[name]):
        read_graph(tmp_path / "package" / "model.onnx", device="openvino")
