"""What a text's logits are at int4, whatever was computed before it or beside it, and however its prompt was cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.options import Quantization
from support.examples import examples

TEXT = st.lists(st.integers(0, 1499), min_size=6, max_size=40)
FEW = examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=[32, 64], ids=lambda size: f"blocks of {size}")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 1500, "max_position_embeddings": 128, "tie_word_embeddings": True}
    sizes |= {"hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(num_key_value_heads=2, **sizes)
    source = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # one's own token stands out, as training makes it, so that int4 does not change it
        for name, parameter in source.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "embed" in name else 0.05)
    options = Quantization(4, block_size=request.param, symmetric=False)
    made = export(source, tmp_path_factory.mktemp("int4") / "out", precision="int4", quantization=options)
    return onnx_textgen.load(made.folder, device="cpu", threads=1)


def test_the_default_is_the_one_whose_texts_are_the_same_in_a_batch() -> None:
    assert Quantization(4, symmetric=False).block_size == 32


@pytest.mark.slow
@FEW
@given(text=TEXT, data=st.data())
def test_a_prompt_cut_at_even_places_has_the_logits_of_the_whole(
    model: onnx_textgen.Model, text: list, data: st.DataObject
) -> None:
    whole, parts = Decoder(model.graph, model.manifest.geometry), Decoder(model.graph, model.manifest.geometry)
    want, start = whole.feed(text), 0
    while start < len(text):
        ends = [*range(start + 2, len(text) - 1, 2), len(text)]
        end = data.draw(st.sampled_from(ends))
        found, start = parts.feed(text[start:end]), end
    assert np.array_equal(found, want)
    assert np.array_equal(parts.feed([3]), whole.feed([3]))


@FEW
@given(texts=st.lists(TEXT, min_size=2, max_size=5), shared=st.integers(0, 20))
def test_texts_do_not_depend_on_earlier_ones(model: Model, texts: list, shared: int) -> None:
    model.generator.prefixes.clear()
    for text in texts:
        prompt = texts[0][:shared] + text
        found = model.generate(prompt, max_new_tokens=6, temperature=1.0, seed=1).token_ids
        fresh = Model(model.folder, model.manifest, model.graph, chat_template=None, prefix_cache=0)
        assert found == fresh.generate(prompt, max_new_tokens=6, temperature=1.0, seed=1).token_ids


@FEW
@given(texts=st.lists(TEXT, min_size=2, max_size=6))
def test_at_blocks_of_32_texts_do_not_depend_on_those_beside_them(model: Model, texts: list) -> None:
    if model.manifest.quantization["block_size"] != 32:
        pytest.skip("products of larger blocks take tokens in pairs")
    model.generator.prefixes.clear()
    together = model.generate(texts, max_new_tokens=6, temperature=1.0, seed=1)
    assert [each.token_ids for each in together] == [
        model.generate(text, max_new_tokens=6, temperature=1.0, seed=1).token_ids for text in texts
    ]
