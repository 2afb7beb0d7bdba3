"""Packages exported with hidden states embed texts as PyTorch's own hidden states do, at every precision and target."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.passes.quantization.options import Quantization
from support.tiny_models import tiny_model

ERRORS = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.1, "int4": 0.5}


@pytest.fixture(scope="module")
def llama() -> transformers.PreTrainedModel:
    """Wide enough to be rounded to 4 bits."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=256)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("precision", ERRORS)
def test_vectors_are_those_of_transformers(
    precision: str, target: str, llama: transformers.PreTrainedModel, tmp_path: Path
) -> None:
    fine = Quantization(4, block_size=32, symmetric=False) if precision == "int4" else None  # a tiny model is hurt by blocks of 64
    made = export(llama, tmp_path / "out", precision=precision, target=target, hidden_states=True, quantization=fine)
    assert made.manifest.certificate["hidden_states_error"] < ERRORS[precision]
    model = onnx_textgen.load(made.folder, device="cpu", threads=1)
    texts = [[5, 9, 1, 0, 28], list(range(1, 240, 3)), [7]]
    for pooling in ("mean", "weightedmean", "last"):
        want = []
        for text in texts:
            with torch.no_grad():
                states = llama.model(torch.tensor([text])).last_hidden_state[0].numpy()
            weights = {"mean": np.ones(len(states)), "weightedmean": np.arange(len(states)) + 1, "last": np.eye(len(states))[-1]}
            want.append(np.average(states, axis=0, weights=weights[pooling]))
        got = model.embed(texts, pooling=pooling, normalize=False)
        assert (got.shape, got.dtype) == ((3, 256), np.float32)
        assert np.linalg.norm(got - want) < ERRORS[precision] * np.linalg.norm(want)
    draw = np.random.default_rng(1)
    many = [draw.integers(0, 300, length).tolist() for length in (*draw.integers(1, 40, 30), 200, 8, 8)]
    for pooling in ("mean", "weightedmean", "last"):
        together, alone = model.embed(many, pooling=pooling), [model.embed(each, pooling=pooling) for each in many]
        np.testing.assert_array_equal(together, alone, "texts that are computed in one run have the vectors they have alone")
    unit = model.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(model.embed(texts[0]), unit[0], atol=1e-6)
    assert model.generate(texts[0], max_new_tokens=4, temperature=0).token_ids, "text is generated all the same"


@pytest.mark.slow
def test_a_recurrent_model_and_other_norms_give_hidden_states_too(tmp_path: Path) -> None:
    for model_type in ("gpt2", "gemma2", "opt", "mamba"):
        model = tiny_model(model_type)
        made = export(model, tmp_path / model_type, context_length=64, hidden_states=True)
        assert made.manifest.certificate["hidden_states_error"] < 1e-4
        vectors = onnx_textgen.load(made.folder, device="cpu", threads=1).embed([[1, 2, 3, 4], [5, 6]])
        assert vectors.shape == (2, made.manifest.geometry.hidden_size)


class Bare(torch.nn.Module):
    """Logits that no layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, 64)

    def forward(self, input_ids, past_key_values=None, attention_mask=None):
        x = self.table(input_ids)[:, None]
        keys = x if past_key_values is None else torch.cat([past_key_values[0][0], x], dim=2)
        return keys[:, 0, -x.shape[2] :] * 2, [(keys, keys * 1)]


@pytest.mark.slow
def test_what_gives_no_hidden_states_is_told_in_one_line(stories: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no layer whose output is the logits"):
        export(Bare(), tmp_path / "out", context_length=64, hidden_states=True)
    model = onnx_textgen.load(stories["ort"], device="cpu", threads=1)
    with pytest.raises(PackageError, match="gives no hidden states to embed by; export it again with --hidden-states"):
        model.embed("A dog.")
    with pytest.raises(OptionError, match="pooling should be one of 'mean', 'weightedmean', 'last', 'cls', 'max'"):
        model.embed("A dog.", pooling="median")  # type: ignore[arg-type]
