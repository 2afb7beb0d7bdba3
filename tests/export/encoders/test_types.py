"""Each type of text encoder that transformers has is exported with proof, or refused in one line; none gives other numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from support.costs import by_cost
from support.text_encoder_checkpoints import random_weights
from support.tiny_models import PADDED, SPECIAL, shrink

REFUSED: dict[str, str] = {
    "convbert": "texts of several lengths together",
    "fnet": "texts of several lengths together",
    "nystromformer": "texts of several lengths together",
    "yoso": "texts of several lengths together",
    "funnel": "failed on four tokens",
    "ibert": "failed on .* tokens",
    "longformer": "cannot be traced",
    "perceiver": "failed on four tokens",
    "reformer": "cannot be traced",
}
"""Types that are not exported, and what the line says: some read what comes after the end of a text."""
OWN_SIZES = {"mobilebert": {"num_hidden_layers": 2, "vocab_size": 300}}
"""Of types whose sizes depend on one another."""
NOT_OF_TEXT = {"wav2vec2", "esmc", "modernvbert", "ultravbert"}
"""Of speech, of proteins, and of images with texts."""
ALIKE = [
    "camembert",
    "data2vec-text",
    "electra",
    "flaubert",
    "layoutlm",
    "megatron-bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "tapas",
    "ultrabert",
    "xlm-roberta",
    "xlm-roberta-xl",
    "yoso",
]
"""Types that compute as others do, or are refused as others are."""
IDS = [[7, 5, 9, 11, 6, 8], [12, 5, 9], [3, 4]]


def types() -> list[str]:
    """Types of the mapping that are no encoder-decoders."""
    found = sorted(set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) - NOT_OF_TEXT)
    return [name for name in found if not transformers.CONFIG_MAPPING[name]().is_encoder_decoder]


def tiny(model_type: str, *, scores: bool) -> transformers.PreTrainedModel:
    """A random model of a type."""
    torch.manual_seed(0)
    config_class = transformers.CONFIG_MAPPING[model_type]
    sizes = OWN_SIZES.get(model_type) or shrink(config_class(), SPECIAL.get(model_type, {})) | PADDED | {
        "is_decoder": False,
        "causal": False,
    }
    config = config_class(**sizes)
    config.num_labels, config.architectures = 1, []
    kind = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModel
    model = kind.from_config(config).eval().float()
    random_weights(model)
    return model


@pytest.mark.parametrize("model_type", by_cost([], slow=[each for each in types() if each not in ALIKE], rare=ALIKE))
def test_a_type_is_exported_with_proof_or_refused(model_type: str, tmp_path: Path) -> None:
    if model_type in REFUSED:
        with pytest.raises(ExportError, match=REFUSED[model_type]) as error:
            export(tiny(model_type, scores=False), tmp_path / "package")
        assert "\n" not in str(error.value)
        return
    module = tiny(model_type, scores=False)
    ours = onnx_textgen.load(export(module, tmp_path / "package").folder, device="cpu", threads=1)
    found = ours.embed(IDS, normalize=False)
    for ids, vector in zip(IDS, found, strict=True):
        with torch.no_grad():
            states = module(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).last_hidden_state
        np.testing.assert_allclose(vector, states[0].mean(0).numpy(), atol=2e-4 * float(states.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type", ["albert", "deberta-v2", "distilbert", "electra", "gte", "modernbert", "mpnet", "xlm-roberta", "perceiver"]
)
def test_a_cross_encoder_of_a_type_is_exported_with_proof_or_refused(model_type: str, tmp_path: Path) -> None:
    if model_type in REFUSED:
        with pytest.raises(ExportError) as error:
            export(tiny(model_type, scores=True), tmp_path / "package")
        assert "\n" not in str(error.value)
        return
    made = export(tiny(model_type, scores=True), tmp_path / "package")
    assert made.manifest.pair_scoring is not None
    assert made.manifest.certificate["summary"]["error"] < 1e-4
