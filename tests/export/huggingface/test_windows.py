"""Models with sliding windows, several times as long as what their layers hold: the package against transformers itself."""

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.backends.window import Window
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen_export import export
from support import tiny_models
from support.costs import by_cost
from support.tiny_models import VOCABULARY, WINDOW, tiny_model

CONTEXT, LENGTH = 2560, 2400
MODELS = {
    "mistral": "a window on every layer",
    "gemma2": "a window on every other layer, softcap",
    "gemma3_text": "two rotary embeddings, norms of queries and keys",
    "gpt_oss": "attention sinks, experts, YaRN",
}
QUICK = "gpt_oss"


@pytest.fixture(scope="module", params=by_cost([QUICK], [name for name in MODELS if name != QUICK]))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A transformers model and its exported package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_models.SIZES, "max_position_embeddings", CONTEXT)
        model = tiny_model(request.param)
        folder = tmp_path_factory.mktemp(request.param) / "package"
        export(model, folder, context_length=CONTEXT, other_runtimes=False)
    package = onnx_textgen.load(folder, threads=1, device="cpu")
    assert {tensor.window for tensor in package.graph.cache_tensors} >= {Window(WINDOW)}
    assert 2 * Window(WINDOW).capacity < LENGTH
    return model, package


@pytest.fixture(scope="module")
def text(pair) -> tuple[list[int], np.ndarray]:
    """Ids and PyTorch's logits of each."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH).tolist()
    return ids, wanted_logits(pair[0], ids)


def wanted_logits(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def check(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_a_prompt_fed_whole_and_then_token_by_token_gives_pytorchs_logits(pair, text) -> None:
    (_, package), (ids, wanted) = pair, text
    decoder = package.new_context()
    check(decoder.feed(ids[:1500], every_position=True), wanted[:1500])
    check(np.concatenate([decoder.feed([i]) for i in ids[1500:]]), wanted[1500:])


def test_rows_of_very_different_lengths_give_pytorchs_logits(pair, text) -> None:
    (_, package), (ids, wanted) = pair, text
    decoder = Decoder(package.graph, package.manifest.geometry, rows=3)
    lengths = [880, 3, 2000]
    for row, length in enumerate(lengths):
        check(prefill(decoder, ids[:length], row=row), wanted[length - 1])
    for step in range(40):  # in which the first row forgets
        logits = decoder.step([ids[length + step] for length in lengths], [True] * 3)
        check(logits, np.stack([wanted[length + step] for length in lengths]))


def test_a_long_answer_is_taken_back_to_the_end_of_its_prompt(pair, text) -> None:
    (_, package), (ids, wanted) = pair, text
    decoder = package.new_context()
    prefill(decoder, ids[:1000])
    for token_id in ids[1:1200]:
        decoder.feed([token_id])
    assert decoder.reusable(ids) == 1000
    check(prefill(decoder, ids), wanted[-1])


def test_greedy_texts_with_and_without_drafts_are_those_of_transformers(pair, text) -> None:
    (model, package), (ids, _) = pair, text
    prompt, new = ids[:880] + ids[860:880], 40
    found = package.generate(prompt, max_new_tokens=new, temperature=0, ignore_eos=True)
    whole = [*prompt, *found.token_ids]
    logits = wanted_logits(model, whole)[len(prompt) - 1 : -1]
    best = np.sort(logits, axis=-1)
    for row, (chosen, second, first) in enumerate(zip(found.token_ids, best[:, -2], best[:, -1], strict=True)):
        assert int(logits[row].argmax()) == chosen or first - second < 1e-4 * abs(first)
    drafted = package.generate(prompt, max_new_tokens=new, temperature=0, ignore_eos=True, prompt_lookup_num_tokens=6)
    assert drafted.token_ids == found.token_ids
