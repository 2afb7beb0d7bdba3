"""A real trained model keeps its quality: fp32 writes transformers' tokens, int8 and int4 hold their budgets in their sizes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.artifact import GRAPH, WEIGHTS
from onnx_textgen_export import export
from onnx_textgen_export.calibration.attempts import BUDGETS, Wish
from smollm2 import smollm2_checkpoint

PROMPTS = [
    "The history of the town begins in the year",
    "def fibonacci(n):\n    ",
    "La capitale de la France est",
    "Zahlen: 1, 2, 3, 5, 8, 13,",
    "🙂🎉 What a day! ",
    "SELECT name FROM users WHERE",
]
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read GGUF
        return smollm2_checkpoint(tmp_path_factory.mktemp("smollm2") / "checkpoint")


def sizes(folder: Path) -> int:
    """Bytes of graph and weights."""
    return (folder / GRAPH).stat().st_size + (folder / WEIGHTS).stat().st_size


def test_fp32_writes_the_tokens_of_transformers_and_fills_its_template(checkpoint: Path, tmp_path: Path) -> None:
    model = onnx_textgen.load(export(checkpoint, tmp_path / "fp32").folder, device="cpu")
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    chat = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    for prompt in [*PROMPTS, chat]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert model.encode(prompt) == ids[0].tolist()
        with torch.no_grad():
            whole = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        ours = model.generate(ids[0].tolist(), max_new_tokens=24, temperature=0)
        theirs = whole[0, ids.shape[1] :].tolist()
        ends = tokenizer.eos_token_id in theirs  # which ours leaves out
        assert list(ours.token_ids) == (theirs[: theirs.index(tokenizer.eos_token_id)] if ends else theirs)
        assert ours.finish_reason == ("eos" if ends else "length")


@pytest.mark.parametrize(("precision", "most"), [("int8", 140), ("int4", 108)])
def test_a_quantised_package_holds_its_budget(checkpoint: Path, tmp_path: Path, precision: str, most: int) -> None:
    said: list[str] = []
    made = export(checkpoint, tmp_path / precision, precision=precision, report=said.append)
    rounding = made.manifest.certificate["rounding"]
    assert set(rounding) == {"prose", "code", "chat", "all"}
    assert rounding["all"]["tokens"] > 2500
    assert rounding["all"]["kl_mean"] <= BUDGETS[precision]
    assert rounding["all"]["kl_p99"] >= rounding["all"]["kl_mean"]
    assert made.manifest.summary["kl_divergence"] == rounding["all"]["kl_mean"]
    assert made.manifest.certificate["same_weights"], "the graph is proved right with the same rounded weights"
    assert sizes(made.folder) <= most * MEGABYTE
    assert any(line.startswith("rounding: ") and "the budget of" in line for line in said)
    if precision == "int4":
        assert len(made.manifest.quantization["mix"]) > 1
    model = onnx_textgen.load(made.folder, device="cpu")
    answer = model.generate(PROMPTS[0], max_new_tokens=16, temperature=0)
    assert np.isfinite(model.score(PROMPTS[0] + answer.text).perplexity)


def test_exactly_four_bits_are_kept_with_a_warning(checkpoint: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = export(
        checkpoint, tmp_path / "strict", precision="int4", wish=Wish(strict_bits=True, calibrates=False), report=said.append
    )
    assert "mix" not in made.manifest.quantization
    assert any("above the budget of 0.03, as --strict-bits asks" in line for line in said)
    assert made.manifest.summary["kl_divergence"] > BUDGETS["int4"]
