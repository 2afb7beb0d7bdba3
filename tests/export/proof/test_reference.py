"""PyTorch's logits of a comparison: short texts that are computed together have the logits of each alone."""

import numpy as np
import pytest
import torch
from tests.support.tiny_models import CONTEXT, not_a_text_decoder, tiny_model
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from onnx_textgen_export import ExportError
from onnx_textgen_export.proof.reference import SHORT, Reference
from onnx_textgen_export.proof.scenarios import Fed, ScenarioRun
from onnx_textgen_export.tracing.opening import make_source
from support.costs import by_cost

QUICK = ("llama", "mistral", "gpt_oss", "bloom", "mamba2", "recurrent_gemma")
"""Rotary positions, a window, experts, positions by distance, and two kinds of recurrence."""
OTHERS = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in QUICK]
SMALLEST_VOCABULARY = 64


@pytest.mark.parametrize("model_type", by_cost(QUICK, rare=OTHERS))
def test_texts_computed_together_have_the_logits_of_each_alone(model_type: str) -> None:
    if reason := not_a_text_decoder(model_type):
        pytest.skip(reason)
    try:
        model = tiny_model(model_type)
        config = model.config.get_text_config(decoder=True)
        source = make_source(model, None if isinstance(getattr(config, "max_position_embeddings", None), int) else CONTEXT)
    except (ImportError, ExportError) as error:
        pytest.skip(f"is not exported: {error}")
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(5, SMALLEST_VOCABULARY, (length,), generator=generator).tolist() for length in (SHORT - 1, 48, 31, 8)]
    reference = Reference(source)
    reference.read([ScenarioRun("texts", [Fed(ids, np.empty((len(ids), 0), np.float32)) for ids in texts])], [])
    assert len(reference.known) == (len(texts) if source.rotary_switch is None else 0), (
        "computed together, where length is no matter"
    )
    for ids in texts:
        alone = Reference(source).logits(ids, len(ids))
        np.testing.assert_allclose(reference.logits(ids, len(ids)), alone, atol=2e-5 * np.abs(alone).max())
        np.testing.assert_array_equal(reference.logits(ids, 3), reference.logits(ids, len(ids))[-3:])
