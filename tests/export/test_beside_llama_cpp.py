"""The trained GGUF file as llama.cpp has it: the same token ids, and the same greedy tokens except where two were about as likely.

`python benchmarks/beside_llama_cpp.py FILE.gguf --record smollm2_by_llama_cpp.json` recorded what llama.cpp does.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.tracing.opening import open_source
from support.smollm2 import smollm2_file

CLOSE = 0.5
"""Nats between the two likeliest tokens, below which llama.cpp's rounding of activations may exchange them."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("smollm2_by_llama_cpp.json").read_text(encoding="utf-8"))
    assert hashlib.sha256(smollm2_file().read_bytes()).hexdigest() == found["sha256"]
    return found


def test_texts_have_llama_cpps_token_ids(recorded: dict[str, Any]) -> None:
    tokenizer = open_source(smollm2_file()).assets.tokenizer
    assert tokenizer is not None
    for each in recorded["texts"]:
        assert tokenizer.encode(each["text"], add_special_tokens=False).ids == each["ids"], each["text"]


@pytest.mark.slow
def test_greedy_texts_leave_llama_cpps_only_where_two_tokens_were_close(recorded: dict[str, Any], tmp_path: Path) -> None:
    model = onnx_textgen.load(export(smollm2_file(), tmp_path / "package", precision="fp32").folder, device="cpu")
    leads = np.concatenate([each["ahead"] for each in recorded["greedy"]])
    assert len(recorded["greedy"]) == 20
    assert (leads > CLOSE).mean() > 0.6, "most places leave no room"
    for each in recorded["greedy"]:
        ours = model.generate(each["prompt_ids"], max_new_tokens=len(each["new_ids"]), temperature=0).token_ids
        places = zip(ours, each["new_ids"], each["ahead"], strict=False)
        lead = next((lead for own, other, lead in places if own != other), 0.0)
        assert lead < CLOSE, model.tokenizer.decode(each["prompt_ids"])
