"""A LoRA adapter in llama.cpp's form is that of PEFT: the same numbers, names and order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.backends.variants.adapter_file import LowRank, read_adapter
from onnx_textgen.cli import run
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.gguf.gguf_adapter import read_gguf_adapter
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from support.gguf_files import tiny_model, write_gguf, write_gguf_adapter

RANK = 4


def changes_of(model: Any) -> dict[str, LowRank]:
    """Random products for all linear layers."""
    draw, found = np.random.default_rng(0), dict[str, LowRank]()
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            sizes = (weight.shape[1], RANK), (RANK, weight.shape[0])
            found[name] = LowRank(*(0.1 * draw.normal(size=size).astype(np.float32) for size in sizes))
    return found


@pytest.mark.parametrize("alpha", [0.0, 6.0])
def test_numbers_names_and_order_are_those_of_the_module(alpha: float, tmp_path: Path) -> None:
    model = tiny_model("llama")
    changes = changes_of(model)
    write_gguf_adapter(tmp_path / "adapter.gguf", model.config, changes, alpha=alpha)
    found = read_gguf_adapter(tmp_path / "adapter.gguf", model)
    assert found.keys() == changes.keys()
    for name, each in changes.items():
        assert np.array_equal(found[name].narrow, each.narrow)
        assert np.allclose(found[name].wide, each.wide * (alpha / RANK if alpha else 1), atol=1e-7)


def test_a_gguf_base_and_a_gguf_adapter_are_exported_and_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model("llama")
    write_gguf(tmp_path / "base.gguf", model, "llama")
    write_gguf_adapter(tmp_path / "polite.gguf", model.config, changes_of(model))
    made = export(tmp_path / "base.gguf", tmp_path / "out", adapters={"own": tmp_path / "polite.gguf"})
    assert made.manifest.adapters["own"].source == "the adapter polite.gguf"
    command = ["adapter", "add", str(made.folder), str(tmp_path / "polite.gguf")]
    assert run(command) == 1
    assert "names layers as llama.cpp does, which only the base can translate; add --against SOURCE" in capsys.readouterr().err
    assert run([*command, "--against", str(tmp_path / "base.gguf")]) == 0
    assert [*onnx_textgen.load(made.folder).manifest.adapters] == ["own", "polite"]
    own, polite = (read_adapter(made.folder / f"{name}.onnx_adapter") for name in ("own", "polite"))
    assert all(np.array_equal(own[name].wide, polite[name].wide) for name in own)


def test_what_is_no_adapter_of_the_base_is_one_line(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(tmp_path / "base.gguf", model, "llama")
    with pytest.raises(ExportError, match=r"base\.gguf holds no LoRA adapter"):
        read_gguf_adapter(tmp_path / "base.gguf", model)
    changes = changes_of(model)
    write_gguf_adapter(tmp_path / "adapter.gguf", model.config, changes)
    with pytest.raises(ExportError, match="TinyTransformer is no model of transformers; give the adapter as PEFT saved it"):
        read_gguf_adapter(
            tmp_path / "adapter.gguf", TinyTransformer(DecoderConfig(vocab_size=9, width=16, layers=1, context_length=32))
        )
    name, change = next((name, change) for name, change in changes.items() if "mlp" in name)
    write_gguf_adapter(tmp_path / "torn.gguf", model.config, {name: dataclasses.replace(change, wide=change.wide[:2])})
    with pytest.raises(ExportError, match="do not belong together; convert the adapter again"):
        read_gguf_adapter(tmp_path / "torn.gguf", model)
