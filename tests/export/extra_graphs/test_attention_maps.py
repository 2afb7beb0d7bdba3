"""Packages exported with attention maps give what transformers gives with `output_attentions=True`, and refuse what they cannot."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.package.integrity import package_digest
from onnx_textgen.package.manifest import ATTENTION_GRAPH, ENCODER_GRAPH, GRAPH
from onnx_textgen.tasks.attention_maps import read_maps
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.extra_graphs import attention_graph
from onnx_textgen_export.huggingface.encoder_decoder import EncoderDecoder
from support.costs import by_cost
from support.encoder_decoder_types import sources
from support.tiny_encoder_decoders import CONTEXT, END, START, tiny_encoder_decoder
from support.tiny_models import WINDOW, tiny_model

IDS = [(37 * place + 11) % 300 for place in range(60)]
ERRORS = {"fp32": 1e-5, "fp16": 0.01, "int8": 0.1}


def weights_of(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    """transformers' own attention weights [layers, heads, tokens, tokens]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    return torch.cat([each for each in found if each is not None]).numpy()


def check_rows(weights: np.ndarray, atol: float) -> None:
    """Nobody looks ahead, and every row adds up to 1."""
    assert not np.triu(weights, k=1).any()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "target"),
    [("llama", "ort"), ("llama", "standard"), ("gpt2", "standard"), ("mistral", "ort"), ("gemma2", "standard")],
)
def test_maps_are_those_of_transformers(model_type: str, target: str, tmp_path: Path) -> None:
    reference = tiny_model(model_type)
    made = export(reference, tmp_path / "out", target=target, attention_maps=True)
    assert made.manifest.certificate["attention_maps_error"] < 1e-5
    model = onnx_textgen.load(made.folder, device="cpu", threads=1)
    maps = model.attentions(IDS)
    assert (maps.token_ids, maps.layers, maps.weights.dtype) == (tuple(IDS), (0, 1), np.float32)
    np.testing.assert_allclose(maps.weights, weights_of(reference, IDS), atol=1e-5)
    check_rows(maps.weights, atol=1e-5)
    if model_type == "mistral":
        assert not np.tril(maps.weights, k=-WINDOW).any(), "nobody looks beyond the window"
    if model_type == "llama":
        _, in_pieces, _ = read_maps(model.generator.opened.attention_graph, model.manifest.geometry, IDS, rows=25, size=7)
        np.testing.assert_allclose(in_pieces, maps.weights[:, :, -25:], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_rounded_weights_give_maps_that_are_near(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=256)
    reference = transformers.LlamaForCausalLM(config).eval()
    made = export(reference, tmp_path / "out", precision=precision, attention_maps=True)
    assert made.manifest.certificate["attention_maps_error"] < (1e-4 if precision == "int8" else 0.01), "the same rounded weights"
    weights = onnx_textgen.load(made.folder, device="cpu", threads=1).attentions(IDS).weights
    want = weights_of(reference, IDS)
    assert np.linalg.norm(weights - want) < ERRORS[precision] * np.linalg.norm(want)
    check_rows(weights, atol=2e-3)


@pytest.mark.slow
def test_sinks_take_their_share_and_recurrent_layers_do_not_attend(tmp_path: Path) -> None:
    sinks = tiny_model("gpt_oss")
    made = export(sinks, tmp_path / "sinks", attention_maps=True)
    weights = onnx_textgen.load(made.folder, device="cpu", threads=1).attentions(IDS).weights
    np.testing.assert_allclose(weights, weights_of(sinks, IDS), atol=1e-5)
    assert weights.sum(axis=-1).max() < 1
    with pytest.raises(ExportError, match="no attention maps: layer 0 attends by more than one operator"):
        export(sinks, tmp_path / "standard", target="standard", attention_maps=True)
    for model_type in ("lfm2", "qwen3_next"):
        hybrid = tiny_model(model_type)
        maps = onnx_textgen.load(export(hybrid, tmp_path / model_type, attention_maps=True).folder, device="cpu").attentions(IDS)
        assert maps.layers == (1,)
        np.testing.assert_allclose(maps.weights, weights_of(hybrid, IDS), atol=1e-5)


def weights_after(model: transformers.PreTrainedModel, ids: list[int], source: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """transformers' own weights of a text after a source, [layers, heads, tokens, tokens] and [layers, heads, tokens, source]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False
        )
    return torch.cat(found.decoder_attentions).numpy(), torch.cat(found.cross_attentions).numpy()


SLOW = ("marian", "t5gemma2")
RARE = ("bart", "encoder-decoder", "fsmt", "longt5", "m2m_100", "pegasus_x", "plbart", "seamless_m4t", "t5", "t5gemma")


@pytest.mark.parametrize("model_type", by_cost([], SLOW, RARE))
def test_maps_over_text_and_source_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    reference = tiny_encoder_decoder(model_type)
    made = export(reference, tmp_path / "out", eos_ids=(END,), context_length=CONTEXT // 2, attention_maps=True)
    assert made.manifest.certificate["attention_maps_error"] < 1e-5
    package = onnx_textgen.load(made.folder, device="cpu", threads=1)
    source, text = sources(21, 33)
    maps = package.attentions(text, source=source)
    assert (maps.token_ids, maps.source_ids, maps.layers) == ((START, *text), tuple(source), (0, 1))
    own, cross = weights_after(reference, [START, *text], source)
    np.testing.assert_allclose(maps.weights, own, atol=1e-4)
    np.testing.assert_allclose(maps.cross_weights, cross, atol=1e-4)
    totals = maps.weights.sum(axis=-1), maps.cross_weights.sum(axis=-1)
    for total in [totals[0] + totals[1]] if model_type == "t5gemma2" else totals:
        np.testing.assert_allclose(total, 1, atol=1e-5)
    assert not np.triu(maps.weights, k=1).any()
    last = package.attentions(text, source=source, last=5)
    np.testing.assert_allclose(last.cross_weights, maps.cross_weights[:, :, -5:], atol=1e-5)


@pytest.mark.parametrize("options", by_cost([{"precision": "int8"}], [{"precision": "int4"}, {"target": "standard"}]), ids=str)
def test_maps_over_the_source_are_proven_at_every_precision_and_target(options: dict[str, str], tmp_path: Path) -> None:
    made = export(tiny_encoder_decoder("t5"), tmp_path / "out", eos_ids=(END,), context_length=128, attention_maps=True, **options)
    assert made.manifest.certificate["attention_maps_error"] < 1e-4, "the same rounded weights"
    assert onnx_textgen.load(made.folder, device="cpu", threads=1).attentions([5, 6], source=[7, 8, 9]).cross_weights.shape[3] == 3


@pytest.mark.slow
def test_maps_over_the_source_leave_the_packages_own_graphs_alone(tmp_path: Path) -> None:
    reference, made = tiny_encoder_decoder("t5"), dict[str, Path]()
    for name, maps in (("plain", False), ("maps", True)):
        made[name] = export(reference, tmp_path / name, eos_ids=(END,), context_length=128, attention_maps=maps).folder
    for graph in (GRAPH, ENCODER_GRAPH):
        plain, other = (onnx.load(folder / graph, load_external_data=False).graph for folder in made.values())
        assert [node.op_type for node in plain.node] == [node.op_type for node in other.node]
        assert [value.name for value in plain.output] == [value.name for value in other.output]
    plain, other = (folder / "onnx" / "model.onnx_data" for folder in made.values())
    assert plain.read_bytes() == other.read_bytes()
    assert (made["maps"] / ATTENTION_GRAPH).stat().st_size < 100_000


def test_an_encoder_decoder_whose_maps_are_not_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of another layer."""
    own = EncoderDecoder.attentions
    monkeypatch.setattr(EncoderDecoder, "attentions", lambda *given: own(*given)[::-1])
    with pytest.raises(ExportError, match="the attention maps are not PyTorch's"):
        export(tiny_encoder_decoder("t5"), tmp_path / "out", eos_ids=(END,), context_length=128, attention_maps=True)
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_that_attends_by_its_own_code_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"no attention maps: MambaForCausalLM .* leave out --attention-maps"):
        export(tiny_model("mamba"), tmp_path / "out", context_length=64, attention_maps=True)
    assert list(tmp_path.iterdir()) == []


def test_maps_that_are_not_the_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as scores before the softmax."""
    monkeypatch.setattr(attention_graph, "AFTER_SOFTMAX", {"GroupQueryAttention": ("qk_output", 1)})
    with pytest.raises(ExportError, match="the attention maps are not PyTorch's"):
        export(tiny_model("llama"), tmp_path / "out", attention_maps=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_packages_own_graph_and_weights_are_those_without_maps(tmp_path: Path) -> None:
    reference = tiny_model("llama")
    plain = export(reference, tmp_path / "plain", other_runtimes=False)
    made = export(reference, tmp_path / "out", other_runtimes=False, attention_maps=True)
    assert package_digest(made.folder, made.manifest) == package_digest(plain.folder, plain.manifest)
    assert made.manifest.files.keys() - plain.manifest.files.keys() == {ATTENTION_GRAPH}
    outputs = [value.name for value in onnx.load(made.folder / GRAPH, load_external_data=False).graph.output]
    assert not [name for name in outputs if name.startswith("attentions")]
