"""Calibration: rounding that makes up for its error, mixes under a budget, gradients, and packages that hold what was asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from onnx_textgen.package.manifest import WASM_GRAPH
from onnx_textgen_export import DecoderConfig, ExportError, TinyTransformer, export
from onnx_textgen_export.calibration.attempts import Attempt, Budget, Measured, best_of, expected_loss, next_attempt
from onnx_textgen_export.calibration.code_search import Calibrated
from onnx_textgen_export.calibration.compensate import Moments, round_compensated
from onnx_textgen_export.calibration.matrices import Matrix
from onnx_textgen_export.calibration.mix import Choice, cheapest_mix, hull
from onnx_textgen_export.calibration.observe import read_gradients
from onnx_textgen_export.calibration.quality import Positions
from onnx_textgen_export.passes.graph.provenance import Piece, chosen_pieces
from onnx_textgen_export.passes.quantization.options import DEFAULTS, Quantization
from onnx_textgen_export.passes.quantization.rounding import Roundings
from onnx_textgen_export.sources.own_module import source_from_module
from onnx_textgen_export.weights.streamed import OwnWeights
from support.examples import examples

INT4 = DEFAULTS["int4"]
SMALL_AND_WIDE = st.lists(
    st.tuples(st.integers(10, 100), st.floats(0.001, 1.0), st.integers(1, 100)).map(
        lambda each: [Choice(4, 32, each[0], each[1]), Choice(8, 64, each[0] + each[2], each[1] / 256)]
    ),
    min_size=1,
    max_size=8,
)


def moments_of(seed: int, inputs: int, tokens: int = 300) -> Moments:
    random = np.random.default_rng(seed)
    seen = random.standard_normal((tokens, inputs)) @ (np.eye(inputs) + 0.3 * random.standard_normal((inputs, inputs)))
    return Moments((seen.T @ seen).astype(np.float32))


def damped_moments(moments: Moments) -> np.ndarray:
    damped = moments.plain.astype(np.float64)
    np.fill_diagonal(damped, moments.importance)
    return damped


@examples(25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]), st.sampled_from([16, 32]), st.booleans(), st.sampled_from([64, 80]))
def test_compensated_rounding_loses_less_than_the_nearest_codes_of_the_same_grid(seed, bits, size, symmetric, inputs) -> None:
    matrix = np.random.default_rng(seed).standard_normal((24, inputs)).astype(np.float32)
    moments = moments_of(seed, inputs)
    found, loss = round_compensated(matrix, moments, bits, size, symmetric=symmetric)
    assert found.codes.min() >= 0
    assert found.codes.max() < 2**bits
    assert np.abs(found.scale_codes).max() <= (127 if symmetric else 255)
    np.testing.assert_allclose(found.scale_codes * found.row_scales, found.scales)
    scales, zeros = np.repeat(found.scales, size, 1)[:, :inputs], 1 << (bits - 1)
    if found.zeros is not None:
        zeros = np.repeat(found.zeros, size, 1)[:, :inputs]
    nearest = (np.clip(np.rint(matrix / scales + zeros), 0, 2**bits - 1) - zeros) * scales
    error, damped = found.values(bits, inputs) - matrix, damped_moments(moments)
    assert loss == pytest.approx(np.trace(error @ damped @ error.T), rel=1e-3)
    assert loss < np.trace((nearest - matrix) @ damped @ (nearest - matrix).T)


def test_the_spread_of_errors_is_the_upper_factor_of_the_inverse() -> None:
    moments = moments_of(1, 48)
    ordered = damped_moments(moments)[np.ix_(moments.order, moments.order)]
    want = np.linalg.cholesky(np.linalg.inv(ordered)).T
    np.testing.assert_allclose(moments.spread, want, atol=1e-4 * np.abs(want).max())


@given(SMALL_AND_WIDE, st.floats(0.0, 2.0))
def test_a_mix_holds_its_budget_or_is_the_best_there_is(choices, budget) -> None:
    named = {str(index): each for index, each in enumerate(choices)}
    mix = cheapest_mix(named, most_loss=budget)
    best = sum(each[-1].loss for each in choices)
    assert sum(each.loss for each in mix.values()) <= max(budget, best) + 1e-9


@given(SMALL_AND_WIDE, st.integers(0, 2000))
def test_a_mix_fits_its_size_wherever_one_does(choices, size) -> None:
    named = {str(index): each for index, each in enumerate(choices)}
    mix = cheapest_mix(named, most_bytes=size)
    smallest = sum(each[0].bytes for each in choices)
    assert sum(each.bytes for each in mix.values()) <= max(size, smallest)


def test_a_choice_that_costs_more_and_loses_more_is_on_no_hull() -> None:
    assert [each.bytes for each in hull([Choice(4, 32, 10, 1.0), Choice(4, 16, 15, 1.1), Choice(8, 64, 20, 0.1)])] == [10, 20]


def test_pieces_of_pieces_name_the_outputs_of_the_parameters() -> None:
    packed = (Piece("q", np.array([0, 1])), Piece("k", np.array([1, 0])))
    found = chosen_pieces(packed, np.array([3, 2, 0]))
    assert [(each.name, each.outputs.tolist()) for each in found] == [("k", [0, 1]), ("q", [0])]


def tiny(**options: object) -> TinyTransformer:
    torch.manual_seed(3)
    return TinyTransformer(DecoderConfig(vocab_size=200, width=32, layers=2, heads=4, context_length=64, **options)).eval()


def test_what_is_observed_is_what_autograd_gives_without_forgetting() -> None:
    module = tiny()
    source = source_from_module(module)
    layers = {f"{name}.weight": part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    ids = torch.arange(32).reshape(2, 16)
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def keep_both(name: str, given: torch.Tensor, gradients: torch.Tensor) -> None:
        seen.setdefault(name, []).append((given.clone(), gradients.clone()))

    read_gradients(source, OwnWeights(module), ids, layers, keep_both)
    assert seen.keys() == layers.keys()
    assert all(parameter.grad is None for parameter in module.parameters())
    inputs, outputs = {}, {}

    def keep(name: str):
        def hook(_: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            output.retain_grad()
            inputs[name], outputs[name] = given[0], output

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in layers.items()]
    logits = source.reference(ids)
    head = next(name for name, part in layers.items() if part is source.head)
    logits.backward(torch.cat([g for _, g in seen[head]]).reshape(logits.shape))  # the same drawn tokens
    for hook in hooks:
        hook.remove()
    with_all, seen[head] = seen[head], []
    read_gradients(source, OwnWeights(module), ids, {head: source.head}, keep_both)  # which needs no backward pass
    assert [(x.tolist(), g.tolist()) for x, g in seen[head]] == [(x.tolist(), g.tolist()) for x, g in with_all]
    for name, parts in seen.items():
        torch.testing.assert_close(torch.cat([x for x, _ in parts]), inputs[name].detach().flatten(0, -2))
        torch.testing.assert_close(torch.cat([g for _, g in parts]), outputs[name].grad.flatten(0, -2), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_kl": 0.1, "target_bytes": 5}, "--max-kl and --target-size are two budgets"),
        ({"max_kl": -1.0}, "--max-kl should be above 0"),
        ({"calibration": Path("x"), "calibrates": False}, "contradict each other"),
    ],
)
def test_budgets_that_make_no_sense_are_refused_in_one_line(asked: dict, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        Budget(**asked)


def test_a_budget_that_cannot_be_held_ends_with_a_package_and_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    made = export(tiny(), tmp_path / "out", precision="int4", budget=Budget(max_kl=1e-9), report=said.append)
    assert made.manifest.certificate["rounding"]["all"]["kl_mean"] > 1e-9
    assert any("above the budget of 1e-09, the widest form" in line for line in said)
    assert any(line.startswith("not calibrated: calibration on text needs a tokenizer") for line in said)
    assert made.manifest.quantization["all_bits"] == 8


def tried(size: int, loss: float, options: Quantization = INT4) -> Measured:
    return Measured(Attempt(options, {}), size, measures(loss), Roundings())


def measures(*losses: float) -> dict[str, Positions]:
    """Measures on a text of one token each."""
    return {f"text {place}": Positions(np.array([loss]), np.array([True]), np.array([])) for place, loss in enumerate(losses)}


def test_the_best_package_of_a_size_is_kept_and_the_smallest_one_within_a_budget() -> None:
    small, good, large = tried(10, 0.02), tried(20, 0.01), tried(30, 0.001)
    assert best_of([small, good, large], 0.03, Budget(target_bytes=25)) is good
    assert best_of([small, good, large], 0.03, Budget(target_bytes=5)) is small
    assert best_of([small, good, large], 0.015, Budget()) is good
    assert best_of([small, good], 0.001, Budget()) is good


def test_the_kind_of_text_where_the_loss_is_largest_counts_and_so_do_the_texts_that_accept_a_package() -> None:
    found = dataclasses.replace(tried(10, 0.0), searched=measures(0.01, 0.02))
    assert found.loss == 0.02
    assert dataclasses.replace(found, accepted=measures(0.03, 0.01)).loss == 0.03
    accepted = dataclasses.replace(found, accepted=measures(0.01, 0.01))
    assert accepted.loss == 0.02
    assert accepted.quality["text 1"].kl_mean == pytest.approx(0.015)
    assert accepted.quality["all"].tokens == 4


@pytest.mark.parametrize("limit", [0.03, 0.002, 0.001])
def test_a_first_attempt_leaves_something_for_weights_however_tight_the_budget(limit: float) -> None:
    assert 0 < expected_loss([], limit) < limit
    once = dataclasses.replace(tried(10, limit / 10), attempt=Attempt(INT4, {"w": Choice(4, 32, 10, limit / 10)}))
    assert limit / 10 < expected_loss([once], limit)


def calibrated_choices(options: Quantization) -> Calibrated:
    both = [Choice(4, 32, 10, 0.3), Choice(4, 16, 12, 0.2), Choice(8, 64, 20, 0.0)]
    tensor = ir.tensor(np.zeros((4, 32), np.float32))
    parts = {"head": "head", "down": "feed-forward out", "up": "other"}
    matrices = {name: Matrix(name, tensor, False, part, (), {}, None, False) for name, part in parts.items()}
    return Calibrated(matrices, dict.fromkeys(parts, both), {}, Path(), options)


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        (INT4, [4, 4, 4]),
        (dataclasses.replace(INT4, head_bits=8), [8, 4, 4]),
        (dataclasses.replace(INT4, head_bits=8, sensitive_bits=8), [8, 8, 4]),
    ],
)
def test_a_form_that_is_named_is_the_one_that_is_calibrated(options: Quantization, bits: list[int]) -> None:
    calibrated = calibrated_choices(options)
    first = next_attempt([], options, calibrated, Budget(strict_bits=True), 0.03)
    assert [choice.bits for choice in first.mix.values()] == bits
    if 8 in bits:
        assert next_attempt([], options, calibrated, Budget(), 0.03) == first, "it needs no other budget"
    assert next_attempt([tried(1, 1.0)], options, calibrated, Budget(strict_bits=True), 0.03) is None


def tokenizer_of_bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_tied_model_with_a_tokenizer_is_calibrated_and_right_at_both_targets(tmp_path: Path, target: str, precision: str) -> None:
    torch.manual_seed(4)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1100}
    config = transformers.LlamaConfig(
        **sizes, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None
    )
    model, said = transformers.LlamaForCausalLM(config).eval(), list[str]()
    made = export(model, tmp_path / "out", precision=precision, target=target, tokenizer=tokenizer_of_bytes(), report=said.append)
    assert any(line.startswith("calibrate on") for line in said)
    assert not any("not calibrated" in line for line in said)
    assert made.manifest.certificate["same_weights"]


def test_a_budget_for_what_is_not_rounded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="fp32 is not quantised"):
        export(tiny(), tmp_path / "out", budget=Budget(max_kl=0.1))


@pytest.mark.slow
def test_a_package_with_all_its_graphs_fits_the_size_that_was_asked_for(tmp_path: Path) -> None:
    torch.manual_seed(5)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 300}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, max_position_embeddings=128)).eval()

    def size_of(out: str, most: int) -> int:
        budget, graphs = Budget(target_bytes=most), {"attention_maps": True, "int8_cache": True, "eos_ids": (2,)}
        made = export(model, tmp_path / out, precision="int4", budget=budget, tokenizer=tokenizer_of_bytes(), **graphs)
        assert (made.folder / WASM_GRAPH).exists()
        return sum(file.stat().st_size for file in made.folder.rglob("*") if file.is_file())

    smallest = size_of("smallest", 1)
    asked = [int(part * smallest) for part in (1.1, 1.2)]
    assert all(smallest < size_of(str(most), most) <= most for most in asked)


@pytest.mark.slow
def test_a_layer_that_runs_twice_is_calibrated_once(tmp_path: Path) -> None:
    torch.manual_seed(6)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 300}
    model, said = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, max_position_embeddings=128)).eval(), list[str]()
    model.model.layers[2].mlp = model.model.layers[0].mlp
    made = export(model, tmp_path / "out", precision="int4", tokenizer=tokenizer_of_bytes(), report=said.append)
    assert not any("not calibrated" in line for line in said)
    assert made.manifest.quantization["method"] == "calibrated"
