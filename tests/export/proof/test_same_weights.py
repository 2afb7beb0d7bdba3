"""Errors of the graph that hide among the rounding of a quantised package are found, and rounding itself is no error."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from onnx_textgen.package.manifest import Manifest, weights_files
from onnx_textgen_export import DecoderConfig, ExportError, TinyTransformer, export
from onnx_textgen_export.exporting import graphs as exported_graphs
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.passes.quantization.rounding import Rounding, Roundings
from onnx_textgen_export.proof import measures, same_weights
from onnx_textgen_export.weights.streamed import OwnWeights
from support.examples import examples

LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [1.3] * 8}
SIZES = {
    "vocab_size": 1200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


def steady(kind: str, **more: object) -> transformers.PreTrainedModel:
    """A model in whose logits one's own token stands out, as training makes it, so that int4 does not change it."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**{**SIZES, **more})).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.normal_(std=0.05)
    return model


def weight_of(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.initializers.values() if str(value.name).endswith(name))


def change_weight(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[ir.Model], None]:
    """Other numbers under the name of a parameter, as if the graph had been made wrong."""

    def spoil(model: ir.Model) -> None:
        value = weight_of(model, name)
        made, before = ir.tensor(change(value.const_value.numpy().copy()), name=value.name), value.const_value
        made.meta.update(before.meta)
        value.const_value = made

    return spoil


def scale_one_head(numbers: np.ndarray) -> np.ndarray:
    numbers[16:32] *= 1.05
    return numbers


def swap_layers(model: ir.Model) -> None:
    one, other = (weight_of(model, f"layers.{layer}.mlp.down_proj.weight") for layer in (0, 1))
    one.const_value, other.const_value = other.const_value, one.const_value


def attentions(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def drop_one_window(model: ir.Model) -> None:
    del attentions(model)[1].attributes["local_window_size"]


def widen_one_window(model: ir.Model) -> None:
    attentions(model)[1].attributes.add(ir.AttrInt64("local_window_size", 17))


def scale_scores(model: ir.Model) -> None:
    attentions(model)[2].attributes.add(ir.AttrFloat32("scale", 0.26))


def change_a_norm(model: ir.Model) -> None:
    norm = [node for node in model.graph if node.op_type == "RMSNormalization"][1]
    other = ir.Value(name="other", const_value=ir.tensor(np.full(64, 1.01, np.float32), name="other"), shape=ir.Shape([64]))
    model.graph.register_initializer(other)
    norm.replace_input_with(1, other)


def move_switch(model: ir.Model) -> None:
    switch = next(node for node in model.graph if node.op_type == "Greater")
    switch.replace_input_with(1, ir.Value(name="off.by.one", const_value=ir.tensor(np.array(65, np.int64), name="off.by.one")))
    model.graph.register_initializer(switch.inputs[1])


ERRORS: dict[str, tuple[str, dict[str, object], Callable[[ir.Model], None]]] = {
    "one head scaled": ("Llama", {}, change_weight("layers.1.self_attn.q_proj.weight", scale_one_head)),
    "a square matrix transposed": ("Llama", {}, change_weight("layers.1.self_attn.q_proj.weight", np.transpose)),
    "the weights of two layers swapped": ("Llama", {}, swap_layers),
    "a scale of scores changed": ("Llama", {}, scale_scores),
    "a norm's weight changed": ("Llama", {}, change_a_norm),
    "the window of one layer missing": ("Mistral", {"sliding_window": 16}, drop_one_window),
    "the window of one layer longer by one": ("Mistral", {"sliding_window": 16}, widen_one_window),
    "a rotary switch late by one": ("Phi3", {"original_max_position_embeddings": 64, "rope_scaling": LONG_ROPE}, move_switch),
}


@pytest.fixture(scope="module")
def models() -> dict[str, transformers.PreTrainedModel]:
    """What the errors are made in, by its kind."""
    return {kind: steady(kind, **options) for kind, options, _ in ERRORS.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("error", "precision"), list(zip(ERRORS, itertools.cycle(["int4", "int8"]), strict=False)))
def test_a_small_error_is_refused_that_rounding_alone_would_hide(
    error: str,
    precision: str,
    models: dict[str, transformers.PreTrainedModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, _, spoil = ERRORS[error]
    model, traced = models[kind], exported_graphs.trace

    def trace(*arguments: object, **named: object) -> ir.Model:
        made = traced(*arguments, **named)
        spoil(made)
        return made

    monkeypatch.setattr(exported_graphs, "trace", trace)
    with pytest.raises(ExportError, match="disagrees with PyTorch by more than its rounding"):
        export(model, tmp_path / "package", precision=precision)
    assert list(tmp_path.iterdir()) == []
    if error in {"one head scaled", "the window of one layer longer by one"}:  # the wide limits alone let it pass
        monkeypatch.setattr(same_weights, "prove_exactly", lambda *_, drafts, **__: ([], drafts))
        monkeypatch.setattr(same_weights, "ANY_ROUNDING", measures.TOLERANCES[precision])
        export(model, tmp_path / "package", precision=precision)


def largest_error(manifest: Manifest) -> float:
    """Of the comparison with the same rounded weights."""
    return max(scenario["logits_error"] for scenario in manifest.certificate["same_weights"])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": lambda: steady("Llama"),
    "untied": lambda: steady("Llama", tie_word_embeddings=False),
    "tied to a table that stays float32": lambda: steady("Llama", vocab_size=300),
    "windows": lambda: steady("Mistral", sliding_window=16),
    "layers of [in, out]": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=1200, n_embd=64, n_layer=2, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=None
        )
    ),
    "experts": lambda: steady("Mixtral", num_local_experts=4, sliding_window=None),
    "a module of one's own": lambda: TinyTransformer(DecoderConfig(vocab_size=1200, width=64, context_length=64, bias=True)),
}
WAYS = [Quantization(8), Quantization(4, symmetric=False), Quantization(4, 16, method="rtn", head_bits=8)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), list(zip(MODELS, itertools.cycle(["ort", "standard"]), strict=False)))
def test_pytorch_with_the_same_rounded_weights_gives_the_same_logits(name: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    options = WAYS[list(MODELS).index(name) % len(WAYS)]
    made = export(model, tmp_path / "package", precision=f"int{options.bits}", quantization=options, target=target)
    assert largest_error(made.manifest) < 1e-5
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert made.manifest.files.keys() == {"model.onnx", *weights_files(made.manifest)}
    assert {path.name for path in made.folder.iterdir()} == {"model.onnx", "onnx", "manifest.json"}


def test_a_checkpoint_on_disk_is_rounded_block_by_block(tmp_path: Path) -> None:
    model = steady("Llama", hidden_size=256, intermediate_size=384, num_key_value_heads=2)  # large enough to be left on disk
    model.bfloat16().save_pretrained(tmp_path / "checkpoint")
    made = export(tmp_path / "checkpoint", tmp_path / "package", precision="int4")
    assert largest_error(made.manifest) < 1e-5


def test_a_float32_package_needs_no_such_comparison(tmp_path: Path) -> None:
    made = export(TinyTransformer(DecoderConfig(vocab_size=60, width=32, context_length=64)), tmp_path / "package")
    assert "same_weights" not in json.loads((made.folder / "manifest.json").read_text())["certificate"]


METHODS = [("rtn", True), ("rtn", False), ("k_quant", True), ("k_quant", False), ("hqq", False)]


@examples(60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(METHODS),
    st.sampled_from([4, 8]),
    st.sampled_from([16, 32]),
    st.tuples(st.integers(2, 70), st.integers(1, 100)),  # of a single block NumPy adds up the numbers in another order
)
def test_rounding_does_not_mind_in_which_order_or_orientation_the_rows_lie(seed, method, bits, block, sizes) -> None:
    (name, symmetric), (rows, inputs) = method, sizes
    options = Quantization(4 if name == "hqq" else bits, block, symmetric, name)
    rounding = Rounding(options, options.bits, gathered=False, inputs_first=False)
    random = np.random.default_rng(seed)
    matrix = random.standard_t(4, (rows, inputs)).astype(np.float32)
    whole, turned, order = matrix.copy(), matrix.T.copy(), random.permutation(rows)
    rounding.round(whole)
    dataclasses.replace(rounding, inputs_first=True).round(turned)
    np.testing.assert_array_equal(turned.T, whole)
    mixed = np.concatenate([matrix[order], random.standard_normal((7, inputs)).astype(np.float32)])
    rounding.round(mixed)
    np.testing.assert_array_equal(mixed[:rows], whole[order])


def test_of_a_tied_parameter_the_embeddings_name_stands_for_the_table() -> None:
    tied = TinyTransformer(DecoderConfig(vocab_size=60, width=32, tie_embeddings=True))
    rounding = Rounding(Quantization(4), 4, gathered=False, inputs_first=False)
    names = {"embedding.weight", "head.weight"}
    assert names <= dict(tied.named_parameters(remove_duplicate=False)).keys()
    everywhere = Roundings(products={"head.weight": rounding}, tables={"embedding.weight": rounding})
    assert everywhere.by_name(tied) == dict.fromkeys(names, rounding)
    in_products = Roundings(products={"embedding.weight": rounding}, plain=frozenset({"embedding.weight"}))
    assert in_products.by_name(tied) == {"head.weight": rounding}
    with OwnWeights(tied).present({"head.weight": rounding}):
        assert not torch.equal(tied.head.weight, tied.embedding.weight)
    assert tied.head.weight is tied.embedding.weight
    assert Roundings(products={"norm.weight": rounding}, plain=frozenset({"norm.weight"})).by_name(tied) is None
    assert Roundings(products={"head.weight": rounding}, complete=False).by_name(tied) is None


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
@given(seed=st.integers(0, 2**32 - 1), near=st.booleans())
def test_another_first_token_counts_unless_logits_or_distributions_are_very_near(
    precision: measures.Precision, seed: int, near: bool
) -> None:
    """Logits with two tokens in front at every position, changed so that the second comes first at half of them."""
    tolerance, random = measures.TOLERANCES[precision], np.random.default_rng(seed)
    error = tolerance.logits_error * (0.09 if near else 0.2)
    want = random.uniform(-0.2, 0.2, (64, 50)).astype(np.float32)
    want[:, :2] = [1, 1 - error]
    got = want.copy()
    got[::2, 1] = 1 - 0.1 * error
    got[::2, 0] = 1 - 0.9 * error
    scenario = measures.compare("changed", got, want, [None] * 64)
    assert scenario.top1_agreement == 0.5
    assert tolerance.accepts(dataclasses.replace(scenario, kl_divergence=0.5 * tolerance.kl_divergence)) == near
    assert tolerance.accepts(dataclasses.replace(scenario, kl_divergence=0.005 * tolerance.kl_divergence))
    assert not tolerance.accepts(dataclasses.replace(scenario, kl_divergence=1.1 * tolerance.kl_divergence))
