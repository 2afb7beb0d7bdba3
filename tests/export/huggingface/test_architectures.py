"""Tiny random models that stand for what architectures do differently: the package against transformers itself.

`python -m tests.support.architectures` does this for every model type there is.
"""

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen_export import export
from support.tiny_models import CONTEXT, VOCABULARY, WINDOW, tiny_model

MODELS = {
    "gpt2": ("standard", "learned positions, biases, tied head"),
    "mistral": ("ort", "a window on every layer"),
    "gemma2": ("standard", "a window on some layers, softcap"),
    "gpt_oss": ("ort", "attention sinks, experts, YaRN"),
    "llama4_text": ("ort", "chunks, complex rotary, layers without"),
    "deepseek_v3": ("ort", "latent attention: keys and values of different size"),
    "bloom": ("ort", "attention code of its own, ALiBi"),
    "lfm2": ("ort", "states of convolutions beside the cache"),
    "qwen3_next": ("ort", "the gated delta rule, and experts"),
    "olmo_hybrid": ("standard", "the gated delta rule as a Scan"),
    "mamba2": ("ort", "recurrent states alone, as linear attention"),
    "falcon_h1": ("ort", "layers with keys and with states, and attention code of its own"),
    "jamba": ("ort", "the selective scan"),
}
"""Model types, with a target and what they are here for."""


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A transformers model and its exported package."""
    name = request.param
    model = tiny_model(name)
    folder = tmp_path_factory.mktemp(name) / "package"
    export(model, folder, target=MODELS[name][0], context_length=CONTEXT)
    return model, onnx_textgen.load(folder, threads=1)


def ids_of_length(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def wanted_logits(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def check(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.slow
def test_a_whole_prompt_longer_than_the_window_gives_pytorchs_logits(pair) -> None:
    model, package = pair
    ids = ids_of_length(3 * WINDOW)
    check(package.new_context().feed(ids, every_position=True), wanted_logits(model, ids))


def test_token_by_token_gives_pytorchs_logits(pair) -> None:
    model, package = pair
    ids, decoder = ids_of_length(2 * WINDOW + 5, seed=1), package.new_context()
    check(np.concatenate([decoder.feed([i]) for i in ids]), wanted_logits(model, ids))


def test_several_tokens_over_a_past_give_pytorchs_logits(pair) -> None:
    model, package = pair
    ids, decoder = ids_of_length(2 * WINDOW + 10, seed=2), package.new_context()
    parts = [ids[:7], ids[7:8], ids[8:30], ids[30:]]
    check(np.concatenate([decoder.feed(part, every_position=True) for part in parts]), wanted_logits(model, ids))


def test_rows_of_a_ragged_batch_give_pytorchs_logits(pair) -> None:
    model, package = pair
    texts = [ids_of_length(length, seed=length) for length in (4, 2 * WINDOW, 11)]
    decoder = Decoder(package.graph, package.manifest.geometry, rows=3)
    for row, ids in enumerate(texts):
        check(decoder.feed(ids, row=row)[-1], wanted_logits(model, ids)[-1])
    for step in range(5):
        new = [(step * 7 + row) % VOCABULARY for row in range(3)]
        texts = [[*ids, token] for ids, token in zip(texts, new, strict=True)]
        got = decoder.step(new, [True] * 3)
        for row, ids in enumerate(texts):
            check(got[row], wanted_logits(model, ids)[-1])


def test_sixty_greedy_tokens_equal_transformers_generate(pair) -> None:
    model, package = pair
    ids = ids_of_length(12, seed=3)
    with torch.no_grad():
        want = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, 12, dtype=torch.int64),
            max_new_tokens=60,
            do_sample=False,
            use_cache=False,
        )
    got = package.generate(ids, max_new_tokens=60, temperature=0)
    assert list(got.token_ids) == want[0, 12:].tolist()


def test_a_prompt_that_begins_like_an_earlier_one_continues_as_from_the_start(pair) -> None:
    _, package = pair
    first = ids_of_length(70, seed=4)
    alone = package.generate([*first, 5, 6, 7, 8], max_new_tokens=12, temperature=0).token_ids
    package.prefixes.clear()
    package.generate(first, max_new_tokens=1, temperature=0)
    again = package.generate([*first, 5, 6, 7, 8], max_new_tokens=12, temperature=0)
    assert again.token_ids == alone
    assert again.stats.reused_tokens >= len(first) - 2


def test_greedy_rows_of_a_batch_equal_those_alone(pair) -> None:
    _, package = pair
    prompts = [ids_of_length(length, seed=length) for length in (3, 20, 8)]
    together = package.generate(prompts, max_new_tokens=12, temperature=0)
    for prompt, result in zip(prompts, together, strict=True):
        assert package.generate(prompt, max_new_tokens=12, temperature=0).token_ids == result.token_ids
