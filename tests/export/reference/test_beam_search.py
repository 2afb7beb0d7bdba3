"""Beam search finds the texts of transformers' `generate`, with their scores."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig as TransformersConfig

BEAMS = [
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.0},
    {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 5, "num_return_sequences": 5, "length_penalty": -1.0, "early_stopping": "never"},
    {"num_beams": 3, "num_return_sequences": 3, "early_stopping": "never"},
    {"num_beams": 4, "num_return_sequences": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    {"num_beams": 2, "num_return_sequences": 2, "min_new_tokens": 12, "bad_words_ids": [[5], [261, 7]]},
]


def transformers_texts(model, prompt, eos_ids, options, most):
    config = TransformersConfig(
        do_sample=False,
        max_new_tokens=most,
        eos_token_id=eos_ids,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    with torch.no_grad():
        found = model.generate(torch.tensor([prompt]), generation_config=config)
    texts = []
    for sequence, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((i for i, token in enumerate(sequence) if token in eos_ids), len(sequence))
        texts.append((sequence[:end], score))
    return texts


@pytest.mark.parametrize("options", BEAMS, ids=str)
@pytest.mark.parametrize("ends", ["one end of text", "three, often met"])
def test_texts_and_scores_equal_transformers(options, ends, tiny_pair):
    model, package = tiny_pair
    if ends == "three, often met":
        # Ends that come soon and often: the period, and two common words.
        ids = tuple({*package.manifest.eos_ids, *package.tokenizer.encode("It was. and", add_special_tokens=False)[-3:]})
        package = with_ends(package, ids)
    eos_ids = sorted(package.generator.limits.eos_ids)
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(3, 500, 6).tolist()
        want = transformers_texts(model, prompt, eos_ids, options, 24)
        got = package.generate(prompt, max_new_tokens=24, **options)
        texts = got.sequences or (got,)
        assert [list(text.token_ids) for text in texts] == [text for text, _ in want]
        np.testing.assert_allclose([text.score for text in texts], [score for _, score in want], rtol=1e-4)


def with_ends(package, eos_ids):
    """The same package with other ids that end a text."""
    import dataclasses  # noqa: PLC0415

    from onnx_textgen import Model  # noqa: PLC0415

    return Model(package.folder, dataclasses.replace(package.manifest, eos_ids=eos_ids), package.graph, chat_template=None)
