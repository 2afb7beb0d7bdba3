"""The recurrences of transformers, and ours that take their place: the same numbers from the same arguments, states included."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.huggingface.opening import source_from_model
from onnx_textgen_export.huggingface.probed_model import Model
from onnx_textgen_export.huggingface.recurrent_functions import CURRENT, RecurrentRun, own_recurrences, replacement_of
from support.tiny_models import CONTEXT, tiny_model

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


def test_the_functions_of_a_model_are_its_own_again_afterwards() -> None:
    module, model = module_of("mamba2"), tiny_model("mamba2")
    before = dict(vars(module))
    with own_recurrences(model):
        assert vars(module) != before
    assert vars(module) == before


@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_next", "kimi_linear", "mamba2", "falcon_h1", "mamba", "jamba"])
def test_recurrent_layers_take_several_tokens_in_a_run(model_type: str) -> None:
    source = source_from_model(tiny_model(model_type), context_length=CONTEXT)
    assert not source.one_token
    assert source.call.__self__.model.owns_recurrences  # type: ignore[attr-defined]


def test_a_model_whose_recurrence_is_unknown_is_exported_token_by_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(model: Model) -> Model:
        raise TypeError(f"no recurrence of {type(model.module).__name__} is known")

    monkeypatch.setattr(Model, "with_own_recurrences", unknown)
    package = onnx_textgen.load(export(tiny_model("mamba2"), tmp_path / "out", context_length=CONTEXT).folder, threads=1)
    assert package.graph.roles["input_ids"].shape[1] == 1


def test_a_model_that_computes_something_else_with_our_functions_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "onnx_textgen_export.huggingface.recurrent_functions.linear_attention"
    real = importlib.import_module("onnx_textgen_export.sources.recurrence").linear_attention
    monkeypatch.setattr(own, lambda *given, **options: tuple(1.01 * part for part in real(*given, **options)))
    assert source_from_model(tiny_model("mamba2"), context_length=CONTEXT).one_token
