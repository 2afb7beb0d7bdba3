"""A GGUF file opens as the model, the tokenizer and the settings that it holds: the same numbers as transformers' own load."""

from pathlib import Path

import numpy as np
import onnx_ir
import peft
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.recipes.steps import steps_of
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.tracing.opening import open_source
from support.gguf_files import END_OF_TURN, TEMPLATE, tiny_model, write_gguf


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "architecture"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0", "Q4_1"])
def test_weights_are_those_in_the_file(tmp_path: Path, kind: str, architecture: str, stored: str, tied: bool) -> None:
    model = tiny_model(kind, tie_word_embeddings=tied)
    expected = write_gguf(tmp_path / "tiny.gguf", model, architecture, kind=stored)
    opened = open_source(tmp_path / "tiny.gguf")
    assert opened.name == "tiny"
    assert opened.module.config.tie_word_embeddings is tied  # type: ignore[union-attr]
    for name, values in expected.items():
        assert np.array_equal(opened.weights.load(name).numpy(), values), name
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(opened.weights.load(name), tensor), name


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_rows_of_the_file_are_in_the_order_of_the_module(tmp_path: Path, architecture: str) -> None:
    model, kinds = tiny_model(architecture, hidden_size=256, intermediate_size=256), {"v_proj": "Q6_K", "k_proj": "Q5_0"}
    names = write_gguf(tmp_path / "tiny.gguf", model, architecture, kind="Q4_K", kinds=kinds)
    weights, found = open_source(tmp_path / "tiny.gguf").weights, set[str]()
    for name, form in weights.stored.items():
        assert form.rows is not None
        numbers = steps_of(form.name)["float32"](form.rows(), form.name)
        assert np.array_equal(numbers, weights.load(name).numpy()), name
        found.add(form.name)
    assert found == {"Q4_K", "Q5_0", "Q6_K"}
    assert weights.stored.keys() >= {name for name, values in names.items() if values.ndim == 2}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about what peft asks
def test_a_merged_adapter_leaves_no_rows_of_what_it_changes(tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=256)
    write_gguf(tmp_path / "tiny.gguf", model, "llama", kind="Q4_K")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["down_proj"], task_type="CAUSAL_LM")).save_pretrained(
        tmp_path / "lora"
    )
    opened = open_source(tmp_path / "tiny.gguf", adapter=str(tmp_path / "lora"))
    without = {name for name, form in opened.weights.stored.items() if form.rows is None}
    assert without == {name for name in opened.weights.stored if "down_proj" in name} and len(without) == 2


def test_tokenizer_template_and_ends_come_from_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama")
    assets = open_source(tmp_path / "tiny.gguf").assets
    assert assets.tokenizer is not None
    assert assets.tokenizer.decode([3, 4]) == '!"'
    assert assets.chat_template == TEMPLATE
    assert assets.bos_id == 0
    assert set(assets.eos_ids) == {1, END_OF_TURN}


def test_a_file_is_exported_and_proved(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama", kind="Q8_0")
    export(tmp_path / "tiny.gguf", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 100_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def test_kept_numbers_can_be_multiplied_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama", kind="Q4_0")
    assert run(["export", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path / "out"), "--exact"]) == 0
    assert "forecast: about " in capsys.readouterr().err
    quantization = onnx_textgen.load(tmp_path / "out").manifest.quantization
    assert quantization["accuracy_level"] == 0
    assert "Q4_0" in quantization["as_stored"]
    nodes = [node for node in onnx_ir.load(tmp_path / "out" / "model.onnx").graph if node.op_type == "MatMulNBits"]
    assert {node.attributes.get_int("bits") for node in nodes} == {4}
    assert {node.attributes.get_int("accuracy_level") for node in nodes} == {0}


def test_factors_of_the_rotary_frequencies_are_applied(tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters=LLAMA_3)
    plain = tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": LLAMA_3["rope_theta"]})
    factors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq  # what llama.cpp's converter writes
    assert len(set(factors.tolist())) > 2, "some frequencies are scaled, some are not, and some lie between"
    write_gguf(tmp_path / "tiny.gguf", model, "llama", extra={"rope_freqs.weight": factors.numpy()})
    ids = torch.arange(3, 67)[None]
    opened = open_source(tmp_path / "tiny.gguf")
    with torch.no_grad(), opened.weights.present():
        found, wanted, other = (each(ids).logits for each in (opened.module, model, plain))
    assert (found - wanted).abs().max() < 0.01 * (other - wanted).abs().max()
    made = export(tmp_path / "tiny.gguf", tmp_path / "out")
    assert made.manifest.summary["top1_agreement"] == 1.0


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    extra = {"rope_factors_long.weight": np.ones(8, np.float32)}
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama", extra=extra)
    with pytest.raises(ExportError, match=r"holds rope_factors_long\.weight, for which transformers' llama has no place"):
        open_source(tmp_path / "tiny.gguf")


def test_an_architecture_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("llama"), "llama")
    path.write_bytes(path.read_bytes().replace(b"llama", b"ollma"))
    with pytest.raises(ExportError, match=r"transformers cannot read .* \(ollma\)"):
        open_source(path)
