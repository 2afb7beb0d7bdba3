"""Folders made by onnxruntime-genai's own builder open as they are, and give what transformers and that engine give."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.backends import kernels
from support.processor import products_by_onnx_runtime

pytest.importorskip("onnxruntime_genai", reason="the builder and the engine are onnxruntime-genai")

from support.genai_engine import genai_tokens

BUILDER = "onnxruntime_genai.models.builder"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
CASES = {
    "fp32": ("fp32", "cpu", {}, []),
    "fp32, logits of the last token only": ("fp32", "cpu", {}, ["prune_lm_head=true"]),
    "fp32, hidden states": ("fp32", "cpu", {}, ["include_hidden_states=true"]),
    "fp32, a window in two layers": ("fp32", "cpu", WINDOWED, []),
    "fp16, positions given": ("fp16", "dml", {}, []),
    "int8": ("int8", "cpu", {}, []),
    "int4, shared embedding": ("int4", "cpu", {"tie_word_embeddings": True}, []),
}
ERRORS = {"fp32": 1e-4, "fp16": 2e-2}
"""Of a log-probability; what rounding to 4 and 8 bits does to random weights is the engine's to compare with."""


@pytest.fixture(scope="module", params=CASES)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, transformers.PreTrainedModel]:
    """Precision, the builder's folder, and the checkpoint in PyTorch."""
    precision, provider, changes, options = CASES[request.param]
    folder = tmp_path_factory.mktemp("built")
    torch.manual_seed(0)
    reference = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **changes)).eval()
    for parameter in reference.parameters():
        parameter.data *= 4 if parameter.ndim > 1 else 1  # or every row of logits is flat
    reference.save_pretrained(folder / "checkpoint")
    backend = transformers.PreTrainedTokenizerFast.from_pretrained(Path(__file__).parents[2] / "packages" / "ort")
    backend.save_pretrained(folder / "checkpoint")
    places = ["-i", folder / "checkpoint", "-o", folder / "made", "-c", folder / "cache"]
    command = [sys.executable, "-m", BUILDER, *places, "-p", precision, "-e", provider]
    subprocess.run(command + (["--extra_options", *options] if options else []), check=True, capture_output=True)
    return precision, folder / "made", reference


PROMPTS = [[5], [150, 17, 42, 9, 111, 66, 3], list(range(3, 120, 3))]


@pytest.mark.slow
@pytest.mark.usefixtures("same_rounding")
def test_folders_of_the_builder_open_as_they_are(built: tuple[str, Path, transformers.PreTrainedModel]) -> None:
    precision, folder, reference = built
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    assert {tensor.kind for tensor in model.graph.cache_tensors} == {"shared"}
    found = model.generate(PROMPTS, max_new_tokens=40, temperature=0)
    for prompt, made in zip(PROMPTS, found, strict=True):
        if precision not in ERRORS:
            want = genai_tokens(folder, prompt, 40)
        else:
            ids = torch.tensor([prompt])
            with torch.no_grad():
                want = reference.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)[0][len(prompt) :].tolist()
                rows = torch.log_softmax(reference(ids).logits[0].double(), -1)
            expected = [rows[place, token_id].item() for place, token_id in enumerate(prompt[1:])]
            if expected:
                np.testing.assert_allclose(model.score(prompt).logprobs, expected, atol=ERRORS[precision])
        assert made.token_ids == tuple(want[: want.index(2)] if 2 in want else want)


@pytest.mark.slow
def test_the_kernels_compute_the_builders_products_too(built: tuple[str, Path, transformers.PreTrainedModel]) -> None:
    precision, folder, _ = built
    if kernels.instructions() is None or precision in ERRORS:
        pytest.skip("no products of 4 or 8 bits, or no kernels")
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    with products_by_onnx_runtime():
        other = onnx_textgen.load(folder, threads=1, device="cpu")
    assert (model.graph.shares_weights, other.graph.shares_weights) == (True, False)
    for prompt in PROMPTS[1:]:
        np.testing.assert_allclose(model.score(prompt).logprobs, other.score(prompt).logprobs, atol=0.05)
