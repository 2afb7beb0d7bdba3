"""How a transformers model finds its way in: which path, what is refused, and the parts that make models traceable."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import masking_utils

from onnx_textgen_export import ExportError
from onnx_textgen_export.huggingface.opening import source_from_model
from onnx_textgen_export.huggingface.path_choice import attention_paths, check_path
from onnx_textgen_export.layers.eager_attention import CACHE_NAMES
from onnx_textgen_export.layers.mask_kinds import VisibleKind, classify
from onnx_textgen_export.layers.torch_substitutes import OnnxSubstitutes, inverse_error_function
from support.tiny_models import tiny_config, tiny_model


@pytest.mark.parametrize(
    ("model_type", "path"), [("llama", "fused"), ("gpt_oss", "fused"), ("falcon", "own"), ("doge", "own"), ("diffllama", "own")]
)
def test_a_model_takes_the_door_that_computes_what_it_does(model_type: str, path: str) -> None:
    assert source_from_model(tiny_model(model_type)).attention_path == path


@pytest.mark.parametrize(
    ("mask", "size", "kind"),
    [
        (masking_utils.causal_mask_function, None, VisibleKind("causal")),
        (masking_utils.sliding_window_causal_mask_function(4096), 4096, VisibleKind("window", 4096)),
        (masking_utils.chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.int64)), 8192, VisibleKind("chunk", 8192)),
        (masking_utils.sliding_window_causal_mask_function(4096), 4095, VisibleKind("unknown")),
        (masking_utils.bidirectional_mask_function, None, VisibleKind("unknown")),
        (lambda batch, head, query, key: (key <= query) | (key < 3), None, VisibleKind("unknown")),
    ],
)
def test_a_mask_is_known_by_what_it_answers(mask, size: int | None, kind: VisibleKind) -> None:
    assert classify(mask, size) == kind


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_the_cache_goes_to_the_argument_that_the_model_has_for_it(name: str) -> None:
    model = tiny_model("llama")
    run, parameters = model.forward, inspect.signature(model.forward).parameters
    own = next(known for known in CACHE_NAMES if known in parameters)

    def forward(**given: object) -> SimpleNamespace:
        if name in given:
            given[own] = given.pop(name)
        output = run(**given)
        return SimpleNamespace(**{"logits": output.logits, name: output.get(own)})

    renamed = [each.replace(name=name) if each.name == own else each for each in parameters.values()]
    forward.__signature__ = inspect.Signature(renamed)  # type: ignore[attr-defined]
    model.forward = forward
    source = source_from_model(model)
    assert source.call.__self__.model.layout.argument == name  # type: ignore[attr-defined]
    assert source.attention_path == "fused"
    assert [tensor.name for tensor in source.cache[:2]] == ["past_key_values.0.key", "past_key_values.0.value"]


def test_a_model_that_keeps_no_cache_is_refused_by_name() -> None:
    with pytest.raises(ExportError, match="OpenAIGPTLMHeadModel keeps no key/value cache"):
        source_from_model(tiny_model("openai-gpt"))


def test_a_model_without_a_limit_needs_a_context_length() -> None:
    with pytest.raises(ExportError, match="add --context-length N"):
        source_from_model(tiny_model("bloom"))
    assert source_from_model(tiny_model("bloom"), context_length=100).geometry.context_length == 100


def test_dynamic_scaling_is_exported_up_to_the_trained_length_only() -> None:
    config = tiny_config("llama")
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = transformers.LlamaForCausalLM(config).eval()
    assert source_from_model(model).rotary_switch is None
    with pytest.raises(ExportError, match="changes every cached key beyond 256 tokens"):
        source_from_model(model, context_length=512)


def test_layers_and_states_are_named_as_the_runtime_knows_them() -> None:
    cache = {tensor.name: tensor for tensor in source_from_model(tiny_model("jamba")).cache}
    assert {"past_conv.0", "past_recurrent.0", "past_key_values.1.key", "past_key_values.1.value"} <= set(cache)
    assert cache["past_key_values.1.key"].shape == ("batch", 3, "length", 8)
    assert cache["past_conv.0"].present == "present_conv.0"


def test_a_door_that_computes_something_else_is_not_taken() -> None:
    source = source_from_model(tiny_model("llama"))
    path = source.call.__self__  # type: ignore[attr-defined]
    with pytest.raises(ExportError, match="differ from its own"):
        check_path(path, lambda ids: source.reference(ids) * 1.01, 64)
    assert len(list(attention_paths(path.model))) > 1


def test_complex_products_as_pairs_of_reals_are_the_same_numbers() -> None:
    def rotate() -> torch.Tensor:
        x, angle = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(0)), torch.arange(10.0).reshape(2, 5)[..., None]
        turn = torch.polar(torch.ones(2, 5, 4), angle * torch.arange(4)) * 1.5
        return torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 3, 4, 2)) * turn.unsqueeze(2)[:, :, :]).flatten(3)

    want = rotate()
    with OnnxSubstitutes():
        got = rotate()
    torch.testing.assert_close(got, want)


def test_the_inverse_error_function_is_torchs() -> None:
    x = torch.linspace(-0.999, 0.999, 501)
    torch.testing.assert_close(inverse_error_function(x), torch.erfinv(x), atol=1e-5, rtol=1e-5)
