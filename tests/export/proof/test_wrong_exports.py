"""Exports made wrong on purpose are refused, and nothing is left behind."""

import shutil
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
import transformers
from torch import nn

from onnx_textgen_export import DecoderConfig, ExportError, TinyTransformer, cached_attention, export
from onnx_textgen_export.exporting import graphs as exported_graphs
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.weights.streamed import Weights


def tiny(**options: object) -> TinyTransformer:
    torch.manual_seed(5)
    module = TinyTransformer(DecoderConfig(vocab_size=120, width=32, layers=1, context_length=64, **options)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return module


def refused(source: object, folder: Path, match: str, **options: object) -> None:
    with pytest.raises(ExportError, match=match) as caught:
        export(source, folder / "package", **options)
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == [], "something half-written was left"


def spoil(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Change the graph between tracing and comparing."""
    traced = exported_graphs.trace

    def trace(source: Source, target: str, weights: Weights, **options: object) -> ir.Model:
        model = traced(source, target, weights)
        change(model)
        return model

    monkeypatch.setattr(exported_graphs, "trace", trace)


def test_a_graph_without_its_sliding_window_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.MistralConfig(
        vocab_size=120, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, sliding_window=60, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(6)
    model = transformers.AutoModelForCausalLM.from_config(config)

    def drop_window(graph: ir.Model) -> None:
        for node in graph.graph:
            node.attributes.pop("local_window_size", None)

    spoil(monkeypatch, drop_window)
    refused(model, tmp_path, "long text beyond the window of 60")


def test_a_graph_with_one_matrix_transposed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def transpose(graph: ir.Model) -> None:
        square = next(v for v in graph.graph.initializers.values() if tuple(v.shape or ()) == (32, 32))
        assert square.const_value is not None
        square.const_value = ir.tensor(square.const_value.numpy().T.copy(), name=square.name)

    spoil(monkeypatch, transpose)
    refused(tiny(), tmp_path, "disagrees with PyTorch")


def test_a_graph_without_its_last_norm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skip_norm(graph: ir.Model) -> None:
        last = [node for node in graph.graph if node.op_type == "LayerNormalization"][-1]
        ir.convenience.replace_all_uses_with(last.outputs[0], last.inputs[0])

    spoil(monkeypatch, skip_norm)
    refused(tiny(), tmp_path, "disagrees with PyTorch")


def test_a_graph_that_gives_no_numbers_is_refused(tmp_path: Path) -> None:
    module = tiny()
    with torch.no_grad():
        module.norm.weight.fill_(float("nan"))
    refused(module, tmp_path, "disagrees with PyTorch")


class NoCache(nn.Module):
    def forward(self, input_ids, position_ids, cache=None):
        return nn.functional.one_hot(input_ids, 50).float()


class BranchesOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, input_ids, position_ids, cache=None):
        x = self.table(input_ids)
        if x.sum() > 0:
            x = x * 2
        heads = x[:, None]
        return cached_attention(heads, heads, heads, cache[0] if cache is not None else None)[:, 0]


class BranchesOnLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, input_ids, past_key_values=None, attention_mask=None):
        x = self.table(input_ids)
        key = x[:, None] if past_key_values is None else torch.cat([past_key_values[0][0], x[:, None]], dim=2)
        if key.shape[2] > 100:
            x = -x
        return x + key.sum(dim=(1, 2))[:, None] * 1e-3 * attention_mask.sum(), [(key, key)]


class BranchesOnSizes(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.table = what, nn.Embedding(64, 64)

    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        if (x.shape[1] > 40) if self.what == "new" else (x.shape[0] > 7):
            x = -x
        return cached_attention(x[:, None], x[:, None], x[:, None], None if cache is None else cache[0])[:, 0]


class LooksLikeAHead(nn.Module):
    """Its logits are no linear layer's output, though a dead one may have lain at the same address."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(64, 64), nn.Linear(64, 64)

    def forward(self, input_ids, position_ids, cache=None):
        x = self.table(input_ids)
        heads = x[:, None]
        attended = cached_attention(heads, heads, heads, cache[0] if cache is not None else None)[:, 0]
        y = self.mix(attended)
        z = y * 2
        del y
        return z + x


def test_a_head_is_only_what_made_the_logits(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = LooksLikeAHead()
    assert export(module, tmp_path / "package", context_length=64).manifest.geometry.layers == 1
    assert module.training, "the caller's module stays as it was"


def test_a_half_precision_module_is_exported_in_float32_and_stays_as_it_was(tmp_path: Path) -> None:
    module = tiny().half()
    assert export(module, tmp_path / "package").manifest.precision == "fp32"
    assert module.embedding.weight.dtype == torch.float16


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, input_ids, position_ids, cache=None):
        raise ZeroDivisionError("its own\nmistake")


def test_models_that_cannot_be_exported_are_refused_in_one_line(tmp_path: Path) -> None:
    refused(NoCache(), tmp_path, "attention cannot be traced", context_length=32)
    refused(BranchesOnData(), tmp_path, "cannot be traced", context_length=32)
    refused(BranchesOnLength(), tmp_path, "computes differently above 100 tokens.*add --context-length 100", context_length=300)
    refused(BranchesOnSizes("new"), tmp_path, "computes differently above 40 tokens", context_length=300)
    assert export(BranchesOnSizes("new"), tmp_path / "package", context_length=40).manifest.geometry.context_length == 40
    shutil.rmtree(tmp_path / "package")
    refused(BranchesOnSizes("rows"), tmp_path, "computes differently for more than 7 texts at once", context_length=300)
    refused(Breaks(), tmp_path, "failed on two tokens: its own", context_length=32)
    refused(tiny(), tmp_path, "too short to prove", context_length=8)
    refused(tiny(), tmp_path, "special id 500 is outside", eos_ids=(500,))
    refused(tiny(), tmp_path, "is not a tokenizer", tokenizer=tmp_path / "nowhere.json")
    refused(nn.Linear(3, 3), tmp_path, "it needs `cache`", context_length=32)
    refused(NoCache(), tmp_path, r"NoCache does not say how long its texts may be; add --context-length N \(in Python")
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=2))
    refused(bloom, tmp_path, "bloom does not say how long .* or more if it has no positions, as with ALiBi")
    refused(tiny(), tmp_path, "there is no precision int3; take one of as-stored, fp32, fp16, int8, int4", precision="int3")
    refused(tiny(), tmp_path, "int8, block 32, symmetric, k_quant is asked for", precision="int4", quantization=Quantization(8))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_biases_of_packed_layers_survive_every_precision(precision: str, target: str, tmp_path: Path) -> None:
    module = tiny(positions="rotary", bias=True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    assert export(module, tmp_path / "package", precision=precision, target=target).manifest.precision == precision


def test_a_model_without_a_cache_is_refused(tmp_path: Path) -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=100, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    refused(transformers.OpenAIGPTLMHeadModel(config), tmp_path, "keeps no key/value cache", context_length=64)


def test_a_folder_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "package"
    target.mkdir()
    (target / "thesis.txt").write_text("the only copy")
    with pytest.raises(ExportError, match="exists already"):
        export(tiny(), target)
    with pytest.raises(ExportError, match="is no model folder"):
        export(tiny(), target, force=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["package", "thesis.txt"]


@pytest.mark.slow
def test_a_forced_export_that_fails_keeps_the_old_package(tmp_path: Path) -> None:
    target = tmp_path / "package"
    export(tiny(), target)
    before = {path.name: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    module = tiny()
    with torch.no_grad():
        module.norm.weight.fill_(float("nan"))
    with pytest.raises(ExportError):
        export(module, target, force=True)
    assert {path.name: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert export(tiny(positions="rotary"), target, force=True).folder == target
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_checkpoints_that_cannot_be_opened_are_refused_in_one_line(tmp_path: Path, shared: Path) -> None:
    out = tmp_path / "out"
    source = tmp_path / "source"
    for expected in ("is not a folder", "has no config.json"):
        with pytest.raises(ExportError, match=expected):
            export(source, out)
        source.mkdir(exist_ok=True)
    (source / "config.json").write_bytes((shared / "checkpoints/stories260K/config.json").read_bytes())
    with pytest.raises(ExportError, match="no weights"):
        export(source, out)
    (source / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(ExportError, match="a pickle, which can run code"):
        export(source, out)
    (source / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(ExportError, match="cannot be opened"):
        export(source, out)
    assert not out.exists()


def test_a_tokenizer_that_is_larger_than_the_model_is_refused(tmp_path: Path, shared: Path) -> None:
    refused(tiny(), tmp_path, "do not belong together", tokenizer=shared / "tokenizers" / "phi-3" / "tokenizer.json")
