"""Every rotary scaling of transformers, and LongRoPE's switch crossed in every way that a text can be fed."""

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.backends.signature import HIDDEN_STATES
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.tasks.embeddings import pooled
from onnx_textgen_export import export
from onnx_textgen_export.layers import rotary_scaling
from support.tiny_models import tiny_config

SWITCH = 40
SCALINGS = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


def make_model(rope: dict) -> transformers.PreTrainedModel:
    config = tiny_config("llama")
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    return model


def longrope() -> transformers.PreTrainedModel:
    half = tiny_config("llama").head_dim // 2
    factors = {"short_factor": [1.0] * half, "long_factor": list(np.linspace(1.5, 6, half))}
    return make_model({"rope_type": "longrope", "factor": 6.0, "original_max_position_embeddings": SWITCH, **factors})


def logits_of(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def check(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCALINGS)
def test_every_fixed_scaling_exports_with_proof(kind: str, tmp_path) -> None:
    export(make_model({"rope_type": kind, **SCALINGS[kind]}), tmp_path / "package")  # compares, and raises on a difference


@pytest.fixture(scope="module")
def switching(tmp_path_factory: pytest.TempPathFactory):
    model = longrope()
    made = export(model, tmp_path_factory.mktemp("longrope") / "package", hidden_states=True)
    return model, onnx_textgen.load(made.folder, threads=1)


def ids_of_length(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 300, length).tolist()


@pytest.mark.slow
def test_the_two_sets_of_frequencies_differ_enough_to_tell(switching) -> None:
    model, _ = switching
    ids = ids_of_length(SWITCH + 1)
    assert np.abs(logits_of(model, ids)[:SWITCH] - logits_of(model, ids[:SWITCH])).max() > 0.01


def test_a_text_that_crosses_the_switch_token_by_token_has_transformers_logits_at_every_step(switching) -> None:
    model, package = switching
    ids, decoder = ids_of_length(SWITCH + 6), package.new_context()
    decoder.feed(ids[: SWITCH - 3])
    for step in range(SWITCH - 3, len(ids)):
        check(decoder.feed([ids[step]])[-1], logits_of(model, ids[: step + 1])[-1])


def test_a_prompt_that_crosses_the_switch_in_pieces_has_the_logits_of_the_whole(switching) -> None:
    model, package = switching
    ids, decoder = ids_of_length(SWITCH + 30, seed=1), package.new_context()
    decoder.feed(ids[: SWITCH - 8])
    got = decoder.feed(ids[SWITCH - 8 :], every_position=True)
    check(got, logits_of(model, ids)[SWITCH - 8 :])


def test_a_text_rewound_to_before_the_switch_goes_on_as_a_short_one(switching) -> None:
    model, package = switching
    ids, decoder = ids_of_length(SWITCH + 10, seed=2), package.new_context()
    decoder.feed(ids)
    decoder.rewind(9)
    check(decoder.feed([7])[-1], logits_of(model, [*ids[:9], 7])[-1])


def test_rows_cross_the_switch_one_at_a_time(switching) -> None:
    model, package = switching
    texts = [ids_of_length(length, seed=length) for length in (SWITCH - 2, SWITCH + 5, 6)]
    decoder = Decoder(package.graph, package.manifest.geometry, rows=3)
    for row, ids in enumerate(texts):
        decoder.feed(ids, row=row)
    for step in range(6):
        new = [step + 1, step + 2, step + 3]
        texts = [[*ids, token] for ids, token in zip(texts, new, strict=True)]
        got = decoder.step(new, [True] * 3)
        for row, ids in enumerate(texts):
            check(got[row], logits_of(model, ids)[-1])


@pytest.mark.parametrize("length", [SWITCH - 2, SWITCH, SWITCH + 1, SWITCH + 30])
def test_a_text_across_the_switch_is_embedded_as_a_whole(switching, length: int) -> None:
    model, package = switching
    ids = ids_of_length(length)
    with torch.no_grad():
        states = model.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()
    context = package.new_context(output=HIDDEN_STATES)
    context.part_size = 16
    check(pooled(context, ids, "mean"), states.mean(axis=0))
    check(package.embed(ids, pooling="last", normalize=False), states[-1])


def test_a_token_is_as_likely_whatever_follows_it_across_the_switch(switching) -> None:
    model, package = switching
    ids = ids_of_length(SWITCH + 30)
    want = []
    for length in range(1, len(ids)):
        row = torch.log_softmax(torch.tensor(logits_of(model, ids[:length])[-1]).double(), -1)
        want.append(row[ids[length]].item())
    np.testing.assert_allclose(package.score(ids).logprobs, want, atol=2e-4)
    np.testing.assert_allclose(package.score(ids[:-9]).logprobs, want[:-9], atol=2e-4)


def test_an_error_while_rotary_modules_are_changed_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.ModuleList([longrope(), longrope()])
    real, made = rotary_scaling.switching_forward, []

    def fail_at_the_second(*given: object) -> object:
        made.append(given)
        if len(made) == 2:
            raise ValueError("no")
        return real(*given)

    monkeypatch.setattr(rotary_scaling, "switching_forward", fail_at_the_second)
    with pytest.raises(ValueError, match="no"), rotary_scaling.traceable_rotary(model):
        pass
    assert not [module for module in model.modules() if "forward" in vars(module)]
    made.clear()
    with pytest.raises(KeyError), rotary_scaling.traceable_rotary(model[0]):
        assert [module for module in model[0].modules() if "forward" in vars(module)]
        raise KeyError
    assert not [module for module in model.modules() if "forward" in vars(module)]
