"""Guesses change no text and no logit, at any precision: greedy or drawn, by prompt lookup or by an assistant model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.backends import kernels
from onnx_textgen.backends.variants.single_attention import MOST_TOKENS
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.options import Quantization
from support.examples import examples
from support.processor import HAS_VNNI

VOCAB_SIZE = 40
"""So few that much of a text has come before."""
TEXT = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=2, max_size=40)
CHOICE = st.one_of(
    st.just({"temperature": 0}),
    st.fixed_dictionaries({"temperature": st.sampled_from([0.05, 0.3, 1.0]), "seed": st.integers(0, 9), "top_k": st.just(20)}),
)
FEW = examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
PRECISIONS = {
    "fp32": None,
    "int8 by 32": Quantization(8, block_size=32),
    "int8 by 64": Quantization(8, block_size=64),
    "int4 by 32": Quantization(4, block_size=32, symmetric=False),
    "int4 by 64": Quantization(4, block_size=64, symmetric=False),
}


@pytest.fixture(scope="module")
def source() -> transformers.PreTrainedModel:
    """A decoder whose texts go round, as one's own token stands out."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 160, "tie_word_embeddings": True}
    sizes |= {"hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "embed" in name else 0.05)
    return model


@pytest.fixture(scope="module")
def packages(source: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each precision, made when it is asked for."""

    class Packages(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            given: dict[str, Any] = {}
            if (quantization := PRECISIONS[name]) is not None:
                given = {"precision": name.partition(" ")[0], "quantization": quantization}
            made = export(source, tmp_path_factory.mktemp("drafts") / "out", **given)
            self[name] = made.folder
            return made.folder

    return Packages()


@pytest.fixture(scope="module", params=PRECISIONS)
def model(request: pytest.FixtureRequest, packages: dict[str, Path]) -> Model:
    """One that is its own assistant, which counts as small."""
    folder = packages[request.param]
    opened = onnx_textgen.load(folder, device="cpu", threads=1, assistant_model=folder, prefix_cache=0)
    object.__setattr__(opened.generator.assistant, "cost", 0.01)
    return opened


def is_exact(model: Model) -> bool:
    """Whether the products of its precision take a row of several as a single one: at 4 bits, by blocks and by processor.

    Those of this project's kernels always do.
    """
    if kernels.instructions() is not None:
        return True
    return model.manifest.precision != "int4" or (model.manifest.quantization["block_size"] == 32 and HAS_VNNI)


@pytest.mark.slow
@FEW
@given(prompt=TEXT, choice=CHOICE, most=st.integers(1, 12))
def test_texts_and_their_logits_are_those_without_guesses(model: Model, prompt: list, choice: dict, most: int) -> None:
    wanted = {"max_new_tokens": 60, "logprobs": 3, **choice}
    plain = model.generate(prompt, num_assistant_tokens=0, **wanted)
    for drafts in (
        {"prompt_lookup_num_tokens": most, "max_matching_ngram_size": 1},
        {"num_assistant_tokens": most, "assistant_confidence_threshold": 1e-9},
    ):
        found = model.generate(prompt, **drafts, **wanted)
        assert (found.token_ids, found.logprobs, found.alternatives) == (plain.token_ids, plain.logprobs, plain.alternatives)
        assert is_exact(model) or found.stats.drafted_tokens == 0


def test_many_guesses_are_made_and_many_are_right(model: Model) -> None:
    """Else the test above tests little."""
    found = [
        model.generate([1, 2, 3] * 5, max_new_tokens=100, temperature=0.1, seed=1, **drafts).stats
        for drafts in ({"prompt_lookup_num_tokens": 8}, {"num_assistant_tokens": 8, "assistant_confidence_threshold": 1e-9})
    ]
    for stats in found:
        assert (stats.drafted_tokens > 30 and stats.accepted_tokens > 10) if is_exact(model) else stats.drafted_tokens == 0


@FEW
@given(text=TEXT, data=st.data())
def test_several_tokens_leave_what_single_ones_leave_in_any_row(model: Model, text: list, data: st.DataObject) -> None:
    if not is_exact(model):
        return
    verifier = model.generator.verification.verifier()
    assert verifier is not None
    rows, row = 3, data.draw(st.integers(0, 2))
    alone, together = (Decoder(model.graph, model.manifest.geometry, rows=rows, capacity=8) for _ in range(2))
    for decoder in (alone, together):
        for each in range(rows):
            decoder.feed(text[each:] or text, row=each)
    for _ in range(3):
        new = data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=MOST_TOKENS))
        want = np.concatenate([alone.feed([token_id], row=row) for token_id in new])
        assert np.array_equal(together.verify(new, verifier, row=row), want)
        keep = data.draw(st.integers(0, len(new)))  # the others were wrong
        for decoder in (alone, together):
            decoder.rewind(len(decoder.token_ids[row]) - keep, row=row)
    for each in range(rows):
        held = alone.token_ids[each]
        assert held == together.token_ids[each]
        assert alone.exact_length[each] == together.exact_length[each]
        found, left = together.cache.take(each, len(held)), alone.cache.take(each, len(held))
        assert all(np.array_equal(found[name], left[name]) for name in left)


@pytest.mark.usefixtures("same_rounding")
def test_products_that_take_tokens_in_pairs_are_found_out(packages: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_textgen.load(packages["int4 by 64"], device="cpu", threads=1)
    for _ in range(2):
        assert model.generate([1, 2, 3] * 5, prompt_lookup_num_tokens=4, max_new_tokens=20).stats.drafted_tokens == 0
    fast = model.generate([1, 2, 3] * 5, prompt_lookup_num_tokens=4, max_new_tokens=20, draft_verification="fast", temperature=0)
    assert fast.stats.drafted_tokens > 0
    assert [each for each in caplog.messages if "guessed" in each] == [
        "no tokens are guessed: 2 tokens in one run are computed otherwise than one by one; "
        'draft_verification "fast" may guess, and may change a text'
    ]
