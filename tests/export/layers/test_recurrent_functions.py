"""The recurrences of transformers, and ours that take their place: the same numbers from the same arguments, states included."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RwkvForCausalLM

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.huggingface.opening import source_from_model
from onnx_textgen_export.huggingface.probed_model import Model
from onnx_textgen_export.layers.recurrent_functions import (
    CURRENT,
    RecurrentRun,
    own_recurrences,
    recurrences_of,
    replacement_of,
)
from support.costs import by_cost
from support.tiny_models import CONTEXT, tiny_config, tiny_model

TOKENS, ROWS, HEADS, SIZE, VALUE_SIZE = 150, 2, 4, 16, 8
"""More than two chunks of transformers' 64."""
GATED_DELTA = {
    "qwen3_next": "torch_chunk_gated_delta_rule",
    "qwen3_5": "torch_chunk_gated_delta_rule",
    "olmo_hybrid": "torch_chunk_gated_delta_rule",
    "kimi_linear": "chunk_kimi_delta_attention",
}
MAMBA_2 = ("mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "zamba2")
MAMBA = ("mamba", "falcon_mamba", "jamba")
CONVOLUTIONS = ("lfm2", "qwen3_next", "kimi_linear", "mamba2", "jamba")


def module_of(model_type: str) -> ModuleType:
    return importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def with_parameters(module: ModuleType, *names: str) -> Any:
    """The function of a module that has these parameters, and whose replacement is ours."""
    found = [
        value
        for value in vars(module).values()
        if replacement_of(value) is not None and set(names) <= inspect.signature(value).parameters.keys()
    ]
    assert len(found) == 1
    return found[0]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-5 * float(want.abs().max()), rtol=0)


@pytest.mark.parametrize("model_type", GATED_DELTA)
def test_the_gated_delta_rule_over_a_state_is_that_of_transformers(model_type: str) -> None:
    function = getattr(module_of(model_type), GATED_DELTA[model_type])
    by_row = model_type == "kimi_linear"
    decay = random(ROWS, TOKENS, HEADS, *([SIZE] if by_row else []), seed=3)
    given: dict[str, Any] = {
        "query": random(ROWS, TOKENS, HEADS, SIZE),
        "key": random(ROWS, TOKENS, HEADS, SIZE, seed=1),
        "value": random(ROWS, TOKENS, HEADS, VALUE_SIZE, seed=2),
        "g": -(decay / 2).exp() / 4,
        "beta": random(ROWS, TOKENS, HEADS, seed=4).sigmoid(),
        "initial_state": random(ROWS, HEADS, SIZE, VALUE_SIZE, seed=5),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    own = replacement_of(function)
    assert own is not None
    for got, want in zip(own(**given), function(**given), strict=True):
        check(got, want)


@pytest.mark.parametrize("model_type", MAMBA_2)
def test_the_scan_of_mamba_2_over_a_state_is_that_of_transformers(model_type: str) -> None:
    function = with_parameters(module_of(model_type), "initial_states", "dt_limit")
    groups, state = 2, random(ROWS, HEADS, VALUE_SIZE, SIZE, seed=5)
    given: dict[str, Any] = {
        "hidden_states": random(ROWS, TOKENS, HEADS, VALUE_SIZE),
        "dt": random(ROWS, TOKENS, HEADS, seed=1),
        "A": -random(HEADS, seed=2).exp(),
        "B": random(ROWS, TOKENS, groups, SIZE, seed=3),
        "C": random(ROWS, TOKENS, groups, SIZE, seed=4),
        "chunk_size": 64,
        "D": random(HEADS, seed=6),
        "dt_bias": random(HEADS, seed=7),
        "dt_softplus": True,
        "dt_limit": (0.1, 2.0),
        "return_final_states": True,
    }
    own = replacement_of(function)
    assert own is not None
    want, want_state = function(**given, initial_states=state)
    got, got_state = own(**given, initial_states=state.transpose(2, 3))
    check(got, want)
    check(got_state.transpose(2, 3), want_state)


@pytest.mark.parametrize("model_type", MAMBA)
def test_the_scan_of_mamba_is_that_of_transformers_and_continues_from_a_state(model_type: str) -> None:
    function = with_parameters(module_of(model_type), "delta_bias", "return_last_state")
    channels = 12
    given: dict[str, Any] = {
        "hidden_states": random(ROWS, channels, TOKENS),
        "dt": random(ROWS, channels, TOKENS, seed=1),
        "A": -random(channels, SIZE, seed=2).exp(),
        "B": random(ROWS, SIZE, TOKENS, seed=3),
        "C": random(ROWS, SIZE, TOKENS, seed=4),
    }
    rest: dict[str, Any] = {
        "D": random(channels, seed=6),
        "delta_bias": random(channels, seed=7),
        "delta_softplus": True,
        "return_last_state": True,
    }
    gate = random(ROWS, channels, TOKENS, seed=8)
    own = replacement_of(function)
    assert own is not None
    want, want_state = function(**given, **rest, z=gate)
    got, state = own(**given, **rest, z=gate)
    check(got, want)
    check(state, want_state)
    run, cut = RecurrentRun(), 70
    token = CURRENT.set(run)
    try:
        parts = []
        for piece in (slice(0, cut), slice(cut, TOKENS)):
            part = {name: value[..., piece] if name != "A" else value for name, value in given.items()}
            made, run.recurrent = own(**part, **rest, z=gate[..., piece])
            parts.append(made)
    finally:
        CURRENT.reset(token)
    check(torch.cat(parts, dim=-1), want)


@pytest.mark.parametrize("model_type", CONVOLUTIONS)
def test_the_convolution_is_that_of_transformers(model_type: str) -> None:
    function = with_parameters(module_of(model_type), "weight", "activation")
    x, weight, bias = random(ROWS, 12, TOKENS), random(12, 4, seed=1), random(12, seed=2)
    own = replacement_of(function)
    assert own is not None
    check(own(x, weight, bias, activation="silu"), function(x, weight, bias, activation="silu"))


@pytest.mark.parametrize("key_scale", [1.0, 60.0])
def test_the_kernel_of_rwkv_is_that_of_transformers_however_the_text_is_split(key_scale: float) -> None:
    """A state of zeros, from which the runtime begins, is a text without tokens; large keys do not overflow."""
    function, channels, cut = module_of("rwkv").rwkv_linear_attention, 12, 70
    decay, first = random(channels, seed=1), random(channels, seed=2)
    key, value = key_scale * random(ROWS, TOKENS, channels, seed=3), random(ROWS, TOKENS, channels, seed=4)
    own = replacement_of(function)
    assert own is not None
    want, _ = function(decay, first, key, value, return_state=True)
    empty = [torch.zeros(ROWS, channels)] * 3
    output, state = own(decay, first, key[:, :cut], value[:, :cut], state=empty)
    rest, _ = own(decay, first, key[:, cut:], value[:, cut:], state=state)
    check(torch.cat([output, rest], dim=1), want)
    check(own(decay, first, key, value)[0], want)


LAYERS = ("minimax", "recurrent_gemma", "xlstm")
"""Types whose layers compute a recurrence in methods of their own."""


@pytest.mark.parametrize("model_type", LAYERS)
def test_a_layer_that_computes_a_recurrence_itself_is_replaced_and_computes_the_same(model_type: str) -> None:
    model = tiny_model(model_type)
    ids = torch.randint(3, 300, (ROWS, 40), generator=torch.Generator().manual_seed(0))
    methods = {(kind, name): getattr(kind, name) for kind, name, _ in recurrences_of(model) if isinstance(kind, type)}
    assert methods
    with torch.no_grad():
        want = model(ids, use_cache=False).logits
        with own_recurrences(model):
            assert all(getattr(kind, name) is not own for (kind, name), own in methods.items())
            got = model(ids, use_cache=False).logits
    check(got, want)


@pytest.mark.parametrize("model_type", ["mamba2", *LAYERS])
def test_the_functions_of_a_model_are_its_own_again_afterwards(model_type: str) -> None:
    model = tiny_model(model_type)
    owners = {owner for owner, _, _ in recurrences_of(model)}
    before = {owner: dict(vars(owner)) for owner in owners}
    with own_recurrences(model):
        assert all(vars(owner) != before[owner] for owner in owners)
    assert all(vars(owner) == before[owner] for owner in owners)


SEVERAL = ("lfm2", "qwen3_next", "kimi_linear", "mamba2", "falcon_h1", "mamba", "jamba", "rwkv", *LAYERS)


@pytest.mark.parametrize("model_type", SEVERAL)
def test_recurrent_layers_take_several_tokens_in_a_run(model_type: str) -> None:
    source = source_from_model(tiny_model(model_type), context_length=CONTEXT)
    assert not source.one_token
    assert source.call.__self__.model.owns_recurrences  # type: ignore[attr-defined]


@pytest.mark.parametrize("model_type", by_cost([], ["mamba2", "minimax", "recurrent_gemma"]))
def test_a_model_whose_recurrence_is_unknown_is_exported_token_by_token(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(model: Model) -> Model:
        raise TypeError(f"no recurrence of {type(model.module).__name__} is known")

    monkeypatch.setattr(Model, "with_own_recurrences", unknown)
    package = onnx_textgen.load(export(tiny_model(model_type), tmp_path / "out", context_length=CONTEXT).folder, threads=1)
    assert package.graph.roles["input_ids"].shape[1] == 1


def test_a_model_that_computes_something_else_with_our_functions_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "onnx_textgen_export.layers.recurrent_functions.linear_attention"
    real = importlib.import_module("onnx_textgen_export.sources.recurrence").linear_attention
    monkeypatch.setattr(own, lambda *given, **options: tuple(1.01 * part for part in real(*given, **options)))
    assert source_from_model(tiny_model("mamba2"), context_length=CONTEXT).one_token


def test_a_model_whose_layers_keep_states_is_exported_after_a_run_and_leaves_none_of_its_own() -> None:
    model, ids = tiny_model("recurrent_gemma"), torch.arange(5, 45)[None]
    with torch.no_grad():
        want = model(ids, use_cache=True).logits
        model(ids[:, :7], use_cache=False)
        source = source_from_model(model, context_length=CONTEXT)
        blocks = [layer.temporal_block for layer in model.model.layers if hasattr(layer.temporal_block, "rg_lru")]
        assert [block.conv1d_state for block in blocks] == [None, None]
        assert torch.equal(model(ids, use_cache=True).logits, want)
    assert [tensor.name for tensor in source.cache[:2]] == ["past_recurrent.0", "past_recurrent.0.1"]


@pytest.mark.slow
def test_a_checkpoint_of_rwkv_is_exported_without_the_halving_for_float16(tmp_path: Path) -> None:
    """transformers halves weights in place when a model first runs outside training; those of a checkpoint are read later."""
    config = tiny_config("rwkv")
    config.rescale_every = 1
    torch.manual_seed(0)
    model = RwkvForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "checkpoint")
    package = onnx_textgen.load(export(tmp_path / "checkpoint", tmp_path / "out", context_length=CONTEXT).folder, threads=1)
    ids = list(range(5, 45))
    with torch.no_grad():
        want = model.train()(torch.tensor([ids]), use_cache=False).logits[0]
    check(torch.from_numpy(package.new_context().feed(ids, every_position=True)), want)
