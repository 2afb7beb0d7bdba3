"""All passes together on traced decoders: the logits stay, and little is left."""

from __future__ import annotations

import collections

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

from onnx_textgen_export.huggingface.opening import source_from_model
from onnx_textgen_export.passes.attention.probing import depends_on_tokens
from onnx_textgen_export.passes.folding import fold
from onnx_textgen_export.passes.order import Settings, run_passes
from onnx_textgen_export.sources.own_module import source_from_module
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from onnx_textgen_export.tracing.tracer import trace
from support.costs import by_cost
from support.small_graphs import run

CONTEXT, LAYERS = 128, 2
PARTS = (40, 1, 1, 25, 1)
"""Tokens fed at once."""
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
GATED = DecoderConfig(
    300, 64, heads=4, kv_heads=2, context_length=CONTEXT, positions="rotary", norm="rms", activation="silu_gated", bias=False
)


def config(kind: str, **more: object) -> transformers.PretrainedConfig:
    return getattr(transformers, f"{kind}Config")(**{**SIZES, **more})


DECODERS = {
    "llama": lambda: config("Llama", tie_word_embeddings=True),
    "mistral": lambda: config("Mistral", sliding_window=16),
    "qwen2": lambda: config("Qwen2"),
    "qwen3": lambda: config("Qwen3", head_dim=16),
    "gemma3": lambda: config("Gemma3Text", head_dim=16, sliding_window=16, query_pre_attn_scalar=16, layer_types=LAYER_TYPES),
    "phi3 with longrope": lambda: config("Phi3", original_max_position_embeddings=50, rope_scaling=LONG_ROPE),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5),
    "gpt-2": lambda: transformers.GPT2Config(
        vocab_size=300, n_embd=64, n_layer=LAYERS, n_head=4, n_positions=CONTEXT, bos_token_id=None, eos_token_id=None
    ),
    "our own": lambda: GATED,
}
SLOW = ("mistral", "qwen2", "gemma3", "phi3 with longrope", "gpt-neox")
LAYER_TYPES = ["sliding_attention", "full_attention"]
MOST_PER_LAYER = {"qwen3": 20, "gemma3": 20, "gpt-neox": 15}
"""Where it is not 14: norms of queries and keys are nodes of their own, and GPT-NeoX has two norms and two sums side by side."""
MOST_BEFORE = {"phi3 with longrope": 38, "gpt-2": 20}
"""Where it is not 8: positions or angles have to be computed."""


def make_source(name: str) -> Source:
    torch.manual_seed(3)
    made = DECODERS[name]()
    if isinstance(made, DecoderConfig):
        return source_from_module(TinyTransformer(made).eval())
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.15) if parameter.ndim > 1 else parameter.add_(0.2 * torch.randn_like(parameter))
    return source_from_model(model)


def logits(model: ir.Model) -> np.ndarray:
    """Of a text fed in parts, at every position."""
    ids = np.random.default_rng(0).integers(0, 300, (1, sum(PARTS)))
    pasts = [value for value in model.graph.inputs if (value.name or "").startswith("past_")]
    past = {v.name: np.zeros([size if isinstance(size, int) else 1 for size in v.shape], np.float32) for v in pasts}
    shared = any("cache_length" in str(v.shape) for v in pasts)
    past = {name: np.repeat(array, CONTEXT, axis=2) if shared else array[:, :, :0] for name, array in past.items()}
    names, found, start = [value.name for value in model.graph.outputs], [], 0
    for new in PARTS:
        feeds = {"input_ids": ids[:, start : start + new], "attention_mask": np.ones((1, start + new), np.int64)}
        out = dict(zip(names, run(model, feeds | past | {"logits_positions": np.arange(new)}), strict=True))
        past, start = {name: out[name.replace("past_key_values", "present")] for name in past}, start + new
        found.append(out["logits"][0])
    return np.concatenate(found)


def watch(model: ir.Model) -> collections.Counter[str]:
    """Make every matrix of the model tell when it is read."""
    reads: collections.Counter[str] = collections.Counter()
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or len(tensor.shape) != 2 or "table" in name or tensor.shape[0] == CONTEXT:
            continue

        def load(tensor: ir.TensorProtocol = tensor, name: str = name) -> ir.TensorProtocol:
            reads[name] += 1
            return tensor

        value.const_value = ir.LazyTensor(load, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
    return reads


@pytest.fixture(scope="module", params=by_cost([name for name in DECODERS if name not in SLOW], SLOW))
def optimized(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, ir.Model]:
    """A decoder's name, its logits before, and the optimized graph."""
    model = trace(make_source(request.param), "ort")
    fold(model)
    want = logits(model)
    reads = watch(model)
    run_passes("optimize", model, Settings("ort", CONTEXT))
    assert not reads, "a pass read a weight"
    return request.param, want, model


@pytest.mark.slow
def test_the_logits_stay(optimized) -> None:
    _, want, model = optimized
    assert np.abs(logits(model) - want).max() <= 5e-6 * np.abs(want).max()


def depends_on_constants(graph: ir.Graph) -> set[ir.Node]:
    """What a runtime computes once, when it opens the graph."""
    found: set[ir.Node] = set()
    for node in graph:
        given = [value for value in node.inputs if value is not None]
        if given and all(value.is_initializer() or value.producer() in found for value in given):
            found.add(node)
    return found


def test_few_nodes_are_left(optimized) -> None:
    """Before the layers: what does not depend on the tokens, and the embedding. After them: choosing positions, and the head."""
    name, _, model = optimized
    tokens = depends_on_tokens(model.graph)
    folded = depends_on_constants(model.graph)
    before = [node for node in model.graph if not tokens.intersection(node.outputs) and node not in folded]
    embeddings = [node for node in model.graph if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0]
    head = next(node for node in model.graph if node.outputs[0].name == "logits")
    choice = next(node for node in model.graph if any(v is not None and v.name == "logits_positions" for v in node.inputs))
    after = {head, choice, *(v.producer() for v in head.inputs if v is not None and v.producer() is not None)}
    layers = [node for node in model.graph if node not in {*before, *embeddings, *after, *folded}]
    assert len({*before, *embeddings} - after) <= MOST_BEFORE.get(name, 8)
    assert len(layers) <= LAYERS * MOST_PER_LAYER.get(name, 14) + 1, "the last norm is one more"


def test_every_attention_turns_by_itself_where_its_angles_allow_it(optimized) -> None:
    name, _, model = optimized
    turning = [node.attributes.get_int("do_rotary", 0) for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert turning == [0 if name in {"phi3 with longrope", "gpt-2"} else 1] * LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt-2"])
def test_the_standard_target_stays_within_the_standard_and_keeps_its_logits(name: str) -> None:
    model = trace(make_source(name), "standard")
    fold(model)
    want, reads = logits(model), watch(model)
    run_passes("optimize", model, Settings("standard", CONTEXT))
    assert not reads
    assert {node.domain for node in model.graph} == {""}
    assert np.abs(logits(model) - want).max() <= 5e-6 * np.abs(want).max()
