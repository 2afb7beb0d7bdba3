"""Tiny random models that stand for what architectures do differently: the package against transformers itself.

`python -m tests.support.architectures` does this for every model type there is.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen_export import export
from support.costs import by_cost
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
    "qwen3_5": ("ort", "the gated delta rule without experts"),
    "bamba": ("ort", "linear attention with one decay per head, beside attention"),
    "minimax": ("ort", "linear attention in a cache of its own, and experts"),
    "recurrent_gemma": ("ort", "states that the model's layers keep themselves, and a window"),
    "rwkv": ("standard", "states that the model takes as a list, a running maximum"),
    "olmo_hybrid": ("standard", "the gated delta rule as a Scan"),
    "mamba2": ("ort", "recurrent states alone, as linear attention"),
    "falcon_h1": ("ort", "layers with keys and with states, and attention code of its own"),
    "jamba": ("ort", "the selective scan"),
}
"""Model types, with a target and what they are here for."""
SLOW = ("llama4_text", "qwen3_next", "qwen3_5", "bamba", "minimax", "recurrent_gemma", "olmo_hybrid", "falcon_h1", "jamba")


ROUNDED_BY_COMPANY = {
    "recurrent_gemma": "ONNX Runtime multiplies one row with the blocks of a gate otherwise than several",
    "bamba": "cosines of two frequencies: ONNX Runtime computes four numbers at a time otherwise than those that are left",
}
"""Types whose steps of several rows differ in the last bits, and why."""


@pytest.fixture(scope="module", params=by_cost([name for name in MODELS if name not in SLOW], SLOW))
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


def test_rows_of_a_ragged_batch_give_pytorchs_logits_though_some_wait(pair) -> None:
    model, package = pair
    texts = [ids_of_length(length, seed=length) for length in (4, 2 * WINDOW, 11)]
    decoder = Decoder(package.graph, package.manifest.geometry, rows=3)
    for row, ids in enumerate(texts):
        check(decoder.feed(ids, row=row)[-1], wanted_logits(model, ids)[-1])
    for step in range(6):
        new, active = [(step * 7 + row) % VOCABULARY for row in range(3)], [True, step % 3 != 1, step % 2 == 0]
        texts = [[*ids, token] if on else ids for ids, token, on in zip(texts, new, active, strict=True)]
        got = decoder.step(new, active)
        for row, ids in enumerate(texts):
            if active[row]:
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
    package.generator.prefixes.clear()
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


def interleaved(package: onnx_textgen.Model, prompts: list[list[int]], **options: object) -> list[list[int]]:
    """The texts of streams that begin one after another and take turns."""
    streams, texts = {}, [list[int]() for _ in prompts]
    waiting = list(enumerate(prompts))
    while waiting or streams:
        if waiting:
            index, prompt = waiting.pop(0)
            streams[index] = package.stream(prompt, seed=index, **options)
        for index, stream in list(streams.items()):
            for chunk in (each for _ in range(2) if (each := next(stream, None)) is not None):
                texts[index] += chunk.token_ids
                if chunk.finish_reason is not None:
                    del streams[index]
    return texts


def test_texts_that_come_and_go_have_the_ids_that_they_have_alone(pair) -> None:
    """Five texts in four rows, drawn and greedy, with and without a store of prompts."""
    _, package = pair
    begin = ids_of_length(30, seed=5)
    prompts = [[*begin, 7, 8, 9], ids_of_length(17, seed=6), [*begin, 4, 4], ids_of_length(5, seed=7), [*begin, 7, 8, 9, 10]]
    for options in ({"temperature": 0}, {"temperature": 1.0}):
        every = {"max_new_tokens": 14, **options}
        alone = [list(fresh(package).generate(prompt, seed=index, **every).token_ids) for index, prompt in enumerate(prompts)]
        for size in (0, 2**24):
            assert interleaved(fresh(package, prefix_cache=size, batch_size=4), prompts, **every) == alone


def fresh(package: onnx_textgen.Model, **options: int) -> onnx_textgen.Model:
    """Another model over the same graph, which by default remembers nothing and writes one text at a time."""
    options = {"prefix_cache": 0, "batch_size": 1} | options
    return onnx_textgen.Model(package.folder, package.manifest, package.graph, chat_template=None, **options)


def test_samples_of_a_prompt_are_those_that_one_row_draws(pair) -> None:
    _, package = pair
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 4, "num_return_sequences": 3}
    alone, together = (fresh(package, batch_size=rows).generate(ids_of_length(21, seed=8), **options) for rows in (1, 4))
    assert [each.token_ids for each in together.sequences] == [each.token_ids for each in alone.sequences]
    assert len({each.token_ids for each in together.sequences}) == 3


def test_beams_are_those_of_transformers(pair) -> None:
    model, package = pair
    ids = ids_of_length(9, seed=9)
    with torch.no_grad():
        want = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=10,
            num_beams=3,
            do_sample=False,
            use_cache=False,
        )
    assert list(package.generate(ids, max_new_tokens=10, num_beams=3).token_ids) == want[0, len(ids) :].tolist()


def test_a_step_of_several_rows_gives_the_bits_of_each_row_alone(pair) -> None:
    model, package = pair
    if package.manifest.target != "ort" or "growing" in {tensor.kind for tensor in package.graph.cache_tensors}:
        pytest.skip("attention that is spelt out reads the padding of shorter rows")
    if model._can_set_experts_implementation():
        pytest.skip("ONNX Runtime's MoE multiplies the tokens of an expert together")
    if reason := ROUNDED_BY_COMPANY.get(model.config.model_type):
        pytest.skip(reason)
    texts, geometry = [ids_of_length(length, seed=length) for length in (5, 33, 12)], package.manifest.geometry
    together, alone = Decoder(package.graph, geometry, rows=3), [Decoder(package.graph, geometry) for _ in texts]
    for row, ids in enumerate(texts):
        together.feed(ids, row=row)
        alone[row].feed(ids)
    for step in range(12):
        new = [(step * 7 + row) % VOCABULARY for row in range(3)]
        np.testing.assert_array_equal(
            together.step(new, [True] * 3), np.concatenate([alone[row].feed([token]) for row, token in enumerate(new)])
        )


def test_a_text_goes_on_from_a_kept_length_a_fork_and_a_snapshot_with_the_same_bits(pair) -> None:
    """Parts of a prompt are fed with the same ends in all three ways, so every logit is the same number."""
    _, package = pair
    decoder = Decoder(package.graph, package.manifest.geometry, rows=3)
    begin, more, other = ids_of_length(24, seed=10), ids_of_length(6, seed=11), ids_of_length(8, seed=12)
    decoder.feed(begin, row=1)
    decoder.keep(row=1)
    want = decoder.feed(more, row=1)
    decoder.rewind(len(begin), row=1)
    decoder.feed(other, row=1)
    decoder.rewind(len(begin), row=1)
    decoder.fork(1, 2)
    snapshot = decoder.snapshot(row=1)
    assert snapshot.usable(len(begin)) == len(begin)
    decoder.restore(snapshot, len(begin), row=0)
    for row in (2, 1, 0):
        np.testing.assert_array_equal(decoder.feed(more, row=row), want)


def test_sessions_fork_rewind_and_save_and_go_on_with_the_same_ids(pair, tmp_path: Path) -> None:
    _, package = pair
    package = fresh(package)
    session = package.session()
    ids = ids_of_length(26, seed=13)
    session.append(ids)
    ids += session.generate(max_new_tokens=6, temperature=1.0, seed=1).token_ids
    session.save(tmp_path / "saved")
    for length, other in enumerate((session.fork(), package.load_session(tmp_path / "saved"), session), start=24):
        for kept in (len(ids), length):
            other.rewind(kept)
            other.append([7, 11, 13])
            text = [*ids[:kept], 7, 11, 13]
            want = package.generate(text, max_new_tokens=6, temperature=1.0, seed=2).token_ids
            assert other.generate(max_new_tokens=6, temperature=1.0, seed=2).token_ids == want
